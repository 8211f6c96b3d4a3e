"""Classification: columns to labels to sequences to scores, and the sentences of its errors."""

import itertools
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from peer_models import PIECES
from sklearn.utils.class_weight import compute_class_weight

from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.classification import Classification, Labelled
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.multilabel import MultiLabel
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.registry import task_from_json, task_to_json, tasks
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.sequences import encode
from bert_jax.tasks.tagging import Tagging


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


@pytest.fixture(scope="module")
def tokenizer(vocab):
    return load_tokenizer(vocab)


def labelled(*labels):
    return [Labelled(where=f"a:{n}", text="river", label=label) for n, label in enumerate(labels)]


def written(tmp_path, *rows, name="train.jsonl"):
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / name


def learnt(*labels, **settings):
    return Classification(**settings).learn(labelled(*labels))


def original_truncation(first: list, second: list, room: int) -> tuple[list, list]:
    """Devlin et al.'s rule: pieces leave the longer text one by one, the second where equal."""
    first, second = first[:], second[:]
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


@given(st.integers(0, 30), st.integers(0, 30), st.integers(3, 40))
def test_pairs_are_cut_as_in_the_original(tokenizer, first, second, max_length):
    texts = " ".join(["a"] * first), " ".join(["b"] * second)
    (feature,) = encode([texts[0]], [texts[1]], tokenizer, max_length)
    a, b = (tokenizer.encode_batch([text])[0].tolist() for text in texts)
    a, b = original_truncation(a, b, max_length - 3)
    expected = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    assert feature["input_ids"].tolist() == expected
    assert feature["token_type_ids"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert feature["attention_mask"].tolist() == [1] * len(expected)


WORDS = st.lists(
    st.sampled_from(["river", "walks", "green birds", "a,b", "Über", "?"]), min_size=1, max_size=9
)


@given(WORDS, WORDS, st.integers(3, 20))
def test_sequences_are_those_of_transformers(vocab, tokenizer, first, second, max_length):
    theirs = transformers.BertTokenizer(str(vocab), do_lower_case=True)
    first, second = " ".join(first), " ".join(second)
    cut = {"truncation": "longest_first", "max_length": max_length}
    for pair in (None, second):
        expected = theirs(first, pair, **cut)
        (ours,) = encode([first], None if pair is None else [pair], tokenizer, max_length)
        pieces = [
            len(theirs(text, add_special_tokens=False)["input_ids"]) for text in (first, second)
        ]
        room = max_length - 3
        if pair is not None and sum(pieces) > room and room % 2 and min(pieces) > room // 2:
            # The odd place goes to the longer text there, and to the first one in the original.
            assert len(ours["input_ids"]) == len(expected["input_ids"]) == max_length
            continue
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            assert ours[name].tolist() == expected[name], name


def test_columns_of_a_file(tmp_path):
    rows = [
        {"n": 7, "q": "is it?", "a": "it is", "y": 1},
        {"n": 8, "q": "why?", "a": "so", "y": ""},
    ]
    path = written(tmp_path, *rows)
    columns: dict[str, Any] = {
        "text_column": "q",
        "pair_column": "a",
        "label_column": "y",
        "id_column": "n",
    }
    task = Classification(**columns)
    first, second = task.read(path, labelled=False)
    assert first == Labelled(where=f"{path}:1", text="is it?", pair="it is", label="1", id="7")
    assert second.label is None
    with pytest.raises(UserError, match=r"train\.jsonl:2: column 'y' is empty: a label is"):
        task.read(path)


def test_a_column_without_a_name_is_no_id(tmp_path):
    """As the index is that pandas writes into a .csv."""
    (tmp_path / "a.csv").write_text(",text,label\n0,x,a\n")
    (example,) = Classification().read(tmp_path / "a.csv")
    assert example == Labelled(where=f"{tmp_path}/a.csv:2", text="x", label="a")


@pytest.mark.parametrize("missing", [None, "", float("nan")])
@pytest.mark.parametrize(
    "task",
    [Classification(), Regression(label_column="label"), MultiLabel(), MultipleChoice()],
    ids=lambda task: task.kind,
)
def test_a_row_to_predict_may_have_no_label(task, missing, tmp_path):
    row = {"text": "x", "context": "x", "choices": ["y", "z"], "label": missing}
    path = written(tmp_path, row)
    (example,) = task.read(path, labelled=False)
    assert example.label is None
    with pytest.raises(UserError, match=r"train\.jsonl:1: .*label"):
        task.read(path)


def test_labels_are_learnt_in_their_order():
    assert learnt("no", "yes", "no").labels == ("no", "yes")
    assert learnt("10", "9", "-1", "x").labels == ("-1", "9", "10", "x")
    for labels in itertools.permutations(["10", "nan", "9", "x"]):
        assert learnt(*labels).labels == ("9", "10", "nan", "x")
    assert learnt("b", "a", labels=("b", "a")).labels == ("b", "a")


@pytest.mark.parametrize("kind", [Classification, MultiLabel, Tagging])
def test_a_label_that_is_given_twice_is_refused(kind):
    with pytest.raises(UserError, match=r"config\.task\.labels has 'B-A' twice"):
        kind(labels=("O", "B-A", "B-A")).learn([Labelled(where="", text="", label="O")])


def test_a_label_that_is_a_number_is_its_text_and_nan_is_none(tmp_path):
    rows = [{"text": "a", "label": label} for label in (1.5, 2, "nan")]
    labels = [example.label for example in Classification().read(written(tmp_path, *rows))]
    assert labels == ["1.5", "2", "nan"]
    with pytest.raises(UserError, match=r"train\.jsonl:1: column 'label' is empty"):
        Classification().read(written(tmp_path, {"text": "a", "label": float("nan")}))


def test_balanced_weights_are_those_of_scikit_learn():
    labels = ["a"] * 5 + ["b"] * 2 + ["c"]
    task = learnt(*labels, class_weights="balanced")
    names = np.array(["a", "b", "c"])
    expected = compute_class_weight("balanced", classes=names, y=labels)
    np.testing.assert_allclose(task.weights, expected)
    # A label of which training has no example weighs as if it had one.
    task = learnt("a", "a", "b", labels=("a", "b", "c"), class_weights="balanced")
    np.testing.assert_allclose(task.weights, [1 / 2, 1, 1])
    assert learnt(*labels).weights == ()


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ((1.0,), "1 weights, and there are 2 labels: a, b"),
        ((1.0, 2.0, 3.0), "3 weights, and there are 2 labels: a, b"),
        ((1.0, 0.0), "must be above 0 and finite"),
        ((1.0, -1.0), "must be above 0 and finite"),
        ((1.0, float("nan")), "must be above 0 and finite"),
        ((1.0, float("inf")), "must be above 0 and finite"),
        ((1.0, 1e39), "must be above 0 and finite"),
    ],
)
def test_weights_that_do_not_fit_the_labels_are_told(weights, told):
    with pytest.raises(UserError, match=rf"config\.task\.weights.*{told}"):
        learnt("a", "b", weights=weights)
    assert learnt("a", "b", weights=weights, class_weights="balanced").weights == (1, 1)
    assert learnt("a", "b", weights=(0.5, 2.0)).weights == (0.5, 2.0)


@pytest.mark.parametrize("weights", [(), (0.5, 2.0, 1.0)])
def test_the_loss_is_that_of_torch_and_padding_counts_nothing(weights):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (5, 3)).astype(np.float32)
    task = Classification(labels=("a", "b", "c"), weights=weights)
    labels = ["c", "a", "b", "b"]
    targets = [task.target(label) for label in labels]
    batch = {
        name: np.stack([*(target[name] for target in targets), np.zeros_like(targets[0][name])])
        for name in ("label", "weight")
    }
    metrics = task.metrics(
        {"logits": jnp.array(logits)}, {k: jnp.array(v) for k, v in batch.items()}
    )
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights) if weights else None)
    expected = loss(torch.tensor(logits[:4]), torch.tensor([2, 0, 1, 1]))
    assert float(metrics["loss"][0] / metrics["loss"][1]) == pytest.approx(
        float(expected), rel=1e-6
    )
    right = (logits[:4].argmax(1) == [2, 0, 1, 1]).mean()
    assert float(metrics["accuracy"][0] / metrics["accuracy"][1]) == pytest.approx(right)


def test_the_loss_is_finite_where_logits_are_large():
    logits = jnp.array([[1e4, -1e4]])
    metrics = cross_entropy(logits, jnp.array([1]), jnp.array([1.0]))
    assert float(metrics["loss"][0]) == pytest.approx(2e4)


def test_predictions_and_scores():
    task = Classification(labels=("no", "yes"))
    examples = labelled("yes", "no", "yes", "yes")
    logits = np.array([[0, 2], [0, 1], [3, 0], [0, 0.5]], np.float32)
    outputs = [[{"logits": row}] for row in logits]
    predictions = task.predictions(examples, [[{}]] * 4, outputs)
    assert [prediction["predicted"] for prediction in predictions] == ["yes", "yes", "no", "yes"]
    assert predictions[0]["label"] == "yes"
    assert predictions[0]["text"] == "river"
    expected = torch.softmax(torch.tensor(logits[0]).double(), 0).tolist()
    assert list(predictions[0]["probabilities"].values()) == pytest.approx(expected)
    scores = task.scores(examples, predictions)
    # 2 of 3 predicted "yes" are right, and 2 of 3 that are "yes" are found; no "no" is.
    assert scores == pytest.approx(
        {"accuracy": 0.5, "f1": 2 / 3, "macro_f1": 1 / 3, "matthews": -1 / 3}
    )
    absent = Classification(labels=("no", "yes", "perhaps")).scores(examples, predictions)
    assert absent["macro_f1"] == pytest.approx((0 + 2 / 3 + 0) / 3), "a label that none has counts"


def test_examples_without_a_label_have_features_without_one(tokenizer):
    task = Classification(labels=("a", "b"))
    with_label, without = task.features(labelled("b", None), tokenizer)
    assert with_label[0]["label"].dtype == np.int32
    assert with_label[0]["label"] == 1
    assert with_label[0]["weight"].dtype == np.float32
    assert set(without[0]) == {"input_ids", "token_type_ids", "attention_mask"}


def test_a_task_with_what_it_learnt_is_stored_and_read():
    task = learnt("a", "b", "b", class_weights="balanced", header=("text", "label"))
    stored = json.loads(json.dumps(task_to_json(task)))
    assert task_from_json(stored, "here") == task


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": "", "label": "a"}, r":2: column 'text' holds '': a text is expected"),
        ({"text": "x"}, r":2: no column 'label'; there are text"),
        ({"txt": "x", "label": "a"}, r":2: no column 'text'; there are txt, label"),
        ({"text": "x", "label": float("nan")}, r":2: column 'label' is empty: a label is expected"),
        ({"text": "x", "label": ["a"]}, r":2: column 'label' holds \['a'\]: a label is due"),
    ],
)
def test_a_bad_row_is_told_or_left_out(tmp_path, capsys, row, told):
    path = written(tmp_path, {"text": "x", "label": "a"}, row)
    with pytest.raises(UserError, match=r"train\.jsonl" + told):
        Classification().read(path)
    assert len(Classification(broken="skip").read(path)) == 1
    assert "1 of 2 rows left out; the first: " in capsys.readouterr().err


def test_where_no_row_can_be_read_the_first_is_told(tmp_path):
    path = written(tmp_path, {"txt": "x", "label": "a"})
    with pytest.raises(UserError, match="no column 'text'"):
        Classification(broken="skip").read(path)
    with pytest.raises(UserError, match=r"empty\.jsonl: has no rows"):
        Classification().read(written(tmp_path, name="empty.jsonl"))


def test_a_label_that_training_has_not_seen_is_told(tokenizer):
    task = learnt("a", "b")
    for used in (task.check, lambda examples: task.features(examples, tokenizer)):
        with pytest.raises(UserError, match="a:1: label 'c' is none of those of training: a, b"):
            used(labelled("a", "c"))


def test_what_cannot_be_learnt_is_told():
    with pytest.raises(UserError, match=r"t\.tsv: all examples have the label a"):
        learnt("a", "a", train="t.tsv")
    told = r"labels 'te\\u0301' and 't\\xe9' are the same letters as other Unicode characters"
    with pytest.raises(UserError, match=rf"t\.tsv: {told}"):
        learnt("t\u00e9", "te\u0301", "b", train="t.tsv")
    with pytest.raises(UserError, match=r"t\.tsv: labels 'b' and 'b ' differ by spaces alone"):
        learnt("a", "b", "b ", train="t.tsv")
    with pytest.raises(UserError, match=r"t\.tsv: labels '1' and '1\.0' are the same number"):
        learnt("0", "1", "1.0", train="t.tsv")
    assert learnt("01", "1", "v1", "v1.0").labels == ("01", "1", "v1", "v1.0")
    with pytest.raises(UserError, match=r"f1.*of two labels.*has 3: choose macro_f1"):
        learnt("a", "b", "c", score="f1")
    assert learnt("a", "b", score="f1").labels == ("a", "b")
    assert learnt("a", "b", "c", score="accuracy").labels == ("a", "b", "c")


def test_the_task_of_a_kind_is_the_class_that_modules_have():
    assert tasks()["classification"] is Classification
