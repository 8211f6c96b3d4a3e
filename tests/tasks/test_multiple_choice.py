"""Multiple choice: SWAG's form and one's own, and the model of transformers."""

import csv
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from peer_models import PIECES, peer, save_peer

from bert_jax.data.buckets import collate
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetuning import finetune
from bert_jax.interop import load_params, load_weights
from bert_jax.tasks.multiple_choice import Choice, MultipleChoice

COLUMNS = [
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    "ending0",
    "ending1",
    "ending2",
    "ending3",
    "label",
]
ROW = [
    "0",
    "v1",
    "3",
    "a bird. it",
    "a bird.",
    "it",
    "gold",
    "walks",
    "is a, river",
    "sinks",
    "x",
    1,
]


ENDINGS = {"sent1": "x", "ending0": "a", "ending1": "b"}


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(tmp_path / "vocab.txt")


def swag(tmp_path, *rows, columns=COLUMNS):
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return tmp_path / "train.csv"


def jsonl(tmp_path, *rows):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "a.jsonl"


def test_swag_and_json_lines_say_the_same(tmp_path):
    choices = ["it walks", "it is a, river", "it sinks", "it x"]
    row = {"context": "a bird.", "choices": choices, "label": 1}
    for path in (swag(tmp_path, ROW), jsonl(tmp_path, row)):
        (example,) = MultipleChoice().read(path)
        assert (example.text, example.choices, example.label) == ("a bird.", tuple(choices), "1")
    (test,) = MultipleChoice().read(swag(tmp_path, ROW[:-1], columns=COLUMNS[:-1]), labelled=False)
    assert test.label is None
    (known,) = MultipleChoice().read(jsonl(tmp_path, row), labelled=False)
    assert known.label == "1"
    for label in ("", None):
        (test,) = MultipleChoice().read(jsonl(tmp_path, row | {"label": label}), labelled=False)
        assert test.label is None
        with pytest.raises(UserError, match="label"):
            MultipleChoice().read(jsonl(tmp_path, row | {"label": label}))


def test_endings_are_in_the_order_of_their_numbers(tmp_path):
    endings = {f"ending{number}": f"it {number}" for number in (10, *range(10))}
    row = {"sent1": "a", "sent2": "", "label": 10} | endings
    (example,) = MultipleChoice().read(jsonl(tmp_path, row))
    assert example.choices == tuple(f"it {number}" for number in range(11))


def test_the_choices_of_an_argument_are_as_many_as_were_learnt():
    task = MultipleChoice(choices=3)
    assert task.columns == ("context", "choice 0", "choice 1", "choice 2")
    example = task.example("here", ["a", "b", "c", "d"])
    assert example == Choice(where="here", text="a", choices=("b", "c", "d"))


def test_endings_may_have_no_beginning(tmp_path):
    (example,) = MultipleChoice().read(jsonl(tmp_path, ENDINGS | {"sent2": None, "label": 1}))
    assert example.choices == ("a", "b")


def test_features_are_padded_within_an_example(tokenizer):
    examples = [Choice(where="", text="river", choices=("a", "green bird"), label="1")]
    task = MultipleChoice().learn(examples)
    ((feature,),) = task.features(examples, tokenizer)
    rows = [["[CLS]", "river", "[SEP]", "a", "[SEP]"]]
    rows += [["[CLS]", "river", "[SEP]", "green", "bird", "[SEP]"]]
    for ids, mask, pieces in zip(
        feature["input_ids"], feature["attention_mask"], rows, strict=True
    ):
        assert [tokenizer.pieces[i] for i in ids[: len(pieces)]] == pieces
        assert set(ids[len(pieces) :]) <= {tokenizer.pad_id}
        assert mask.tolist() == [1] * len(pieces) + [0] * (len(ids) - len(pieces))
    assert feature["token_type_ids"][0, :5].tolist() == [0, 0, 0, 1, 1]
    assert feature["label"] == 1
    assert feature["label"].dtype == np.int32


def test_long_texts_are_cut_to_the_longest_sequence(tokenizer):
    example = Choice(where="", text="river " * 50, choices=("a " * 50, "bird"))
    task = MultipleChoice(choices=2, max_length=16)
    ((feature,),) = task.features([example], tokenizer)
    assert feature["input_ids"].shape == (2, 16)
    assert "label" not in feature


def test_logits_and_loss_are_those_of_transformers(tmp_path):
    theirs = peer("BertForMultipleChoice")
    folder = save_peer(theirs, tmp_path / "theirs")
    examples = [
        Choice(
            where="", text="a river under stone", choices=("walks", "light, green", "?"), label="2"
        ),
        Choice(where="", text="bird", choices=("small house", "walk", "stone river a"), label="0"),
    ]
    task = MultipleChoice().learn(examples)
    weights = load_weights(folder)
    assert weights.tokenizer
    features = [feature for (feature,) in task.features(examples, weights.tokenizer)]
    batch = collate(features, 3, weights.tokenizer.pad_id)
    model = task.model(weights.config)
    inputs = [batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")]
    like = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"])
    params, missing = load_params(weights, like)
    assert missing == []
    outputs = model.apply({"params": params}, *inputs)
    assert isinstance(outputs, dict)

    encoder = transformers.BertTokenizer.from_pretrained(folder)
    texts = [example.text for example in examples for _ in range(3)]
    choices = [choice for example in examples for choice in example.choices]
    encoded = encoder(texts, choices, padding=True, return_tensors="pt")
    shaped = {name: value.reshape(2, 3, -1) for name, value in encoded.items()}
    with torch.no_grad():
        expected = theirs(**shaped, labels=torch.tensor([2, 0]))
    np.testing.assert_allclose(outputs["logits"][:2], expected.logits, atol=1e-5)
    arrays = {name: jnp.array(value) for name, value in batch.items()}
    total, weight = task.metrics(outputs, arrays)["loss"]
    assert float(total / weight) == pytest.approx(float(expected.loss), rel=1e-5)


def test_predictions_and_accuracy():
    examples = [Choice(where="", text="x", choices=("a", "b"), label=label) for label in "01"]
    task = MultipleChoice(choices=2)
    outputs = [[{"logits": np.array([2.0, 1.0], np.float32)}]] * 2
    predictions = task.predictions(examples, [[{}]] * 2, outputs)
    assert predictions[1]["label"] == "1"
    assert predictions[1]["predicted"] == "0"
    assert predictions[1]["choices"] == ["a", "b"]
    assert sum(predictions[1]["probabilities"].values()) == pytest.approx(1)
    assert task.scores(examples, predictions) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"context": "x", "choices": ["a", "b"], "label": 2}, "label 2 is none of 0, 1"),
        ({"context": "x", "choices": ["a", "b"], "label": True}, "label True is none of 0, 1"),
        ({"context": "x", "choices": ["a", "b"]}, "no column 'label'"),
        ({"context": "x", "choices": ["a"], "label": 0}, "a list of two texts or more"),
        ({"context": "x", "choices": "ab", "label": 0}, "a list of two texts or more"),
        ({"context": "x", "choices": ["a", ""], "label": 0}, r"'choices\[1\]' holds ''"),
        ({"context": " ", "choices": ["a", "b"], "label": 0}, "'context' holds ' '"),
        (ENDINGS | {"sent2": 5, "label": 0}, "'sent2' holds 5: a text is expected"),
        ({"sent1": "x", "label": 0}, "no columns ending0, ending1, .*; there are sent1, label"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path, row, told):
    with pytest.raises(UserError, match=rf"a\.jsonl:1: .*{told}"):
        MultipleChoice().read(jsonl(tmp_path, row))


def test_a_model_with_one_token_type_is_refused(tmp_path):
    model = save_peer(peer("BertModel", type_vocab_size=1), tmp_path / "model")
    table = jsonl(tmp_path, ENDINGS | {"sent2": "", "label": 1})
    config = FinetuneConfig(init_from=str(model), task=MultipleChoice(train=str(table)))
    with pytest.raises(UserError, match="type_vocab_size is 1"):
        finetune(config, tmp_path / "run")


def test_another_number_of_choices_is_told():
    task = MultipleChoice(choices=4)
    with pytest.raises(UserError, match=r"a:3: 2 choices, and in training there are 4"):
        task.check([Choice(where="a:3", text="x", choices=("a", "b"), label="0")])
