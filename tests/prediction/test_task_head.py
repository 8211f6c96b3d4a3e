"""classify, tag and answer against the pipelines of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peer_models import peer, save_peer

from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.prediction.task_head import TaskHead
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.registry import load_task, task_from_json, task_to_json

TEXTS = ["The river walks.", "a", "under small stones, a green bird walks?", "light house"]
TAGS = {0: "O", 1: "B-PER", 2: "I-PER"}


def made(tmp_path: Path, architecture: str, **fields: Any) -> tuple[Path, TaskHead]:
    source = save_peer(peer(architecture, **fields), tmp_path / "model")
    weights = load_weights(source)
    return source, TaskHead(weights, load_task(source, weights), batch_size=3, top=3)


def asked(predictor: TaskHead, texts: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    return predictor.predict([predictor.item(f"text {i}", t) for i, t in enumerate(texts)])


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_classes_are_those_of_transformers(problem, tmp_path):
    source, predictor = made(
        tmp_path, "BertForSequenceClassification", id2label=TAGS, problem_type=problem
    )
    pipeline: Any = transformers.pipeline("text-classification", str(source), top_k=None)
    predictions = asked(predictor, [(text,) for text in TEXTS])
    for text, prediction in zip(TEXTS, predictions, strict=True):
        expected = {said["label"]: said["score"] for said in pipeline([text])[0]}
        assert prediction["text"] == text
        assert prediction["probabilities"] == pytest.approx(expected, abs=2e-6)
        [(label, shares, shown)] = predictor.rows(prediction)
        best = max(expected, key=lambda label: expected[label])
        assert shares.startswith(f"{best} {expected[best]:.4f}")
        assert shown == text
        if problem is None:
            assert label == prediction["predicted"] == best


@pytest.mark.parametrize("problem", [None, "regression"])
def test_values_are_those_of_transformers(problem, tmp_path):
    """One output is a value, also where nothing says so: cross-encoders are such models."""
    source, predictor = made(
        tmp_path, "BertForSequenceClassification", num_labels=1, problem_type=problem
    )
    pipeline: Any = transformers.pipeline("text-classification", str(source))
    predictions = asked(predictor, [(text,) for text in TEXTS])
    for text, prediction in zip(TEXTS, predictions, strict=True):
        expected = pipeline(text, function_to_apply="none")[0]["score"]
        assert prediction["predicted"] == pytest.approx(expected, abs=1e-5)
        assert predictor.rows(prediction)[0] == (f"{prediction['predicted']:.3f}", "", text)


def test_several_values_of_a_text_are_not_predicted(tmp_path):
    fields: dict[str, Any] = {"num_labels": 2, "problem_type": "regression"}
    with pytest.raises(UserError, match="predicts 2 values; one is supported"):
        made(tmp_path, "BertForSequenceClassification", **fields)


def test_tags_are_those_of_transformers(tmp_path):
    source, predictor = made(tmp_path, "BertForTokenClassification", id2label=TAGS)
    pipeline: Any = transformers.pipeline("token-classification", str(source), ignore_labels=[])
    predictions = asked(predictor, [(text,) for text in TEXTS])
    for text, prediction in zip(TEXTS, predictions, strict=True):
        first = {said["start"]: said for said in pipeline(text)}
        place = 0
        for word, tag, probability in zip(
            *(prediction[name] for name in ("tokens", "predicted", "probabilities")), strict=True
        ):
            place = text.index(word, place)
            assert tag == first[place]["entity"]
            assert probability == pytest.approx(float(first[place]["score"]), abs=2e-6)
        [(tags, shown)] = predictor.rows(prediction)
        assert shown == text
        assert all(entity["text"] in tags for entity in prediction["entities"])


def test_marks_without_a_piece_are_not_cut(tmp_path):
    _, predictor = made(tmp_path, "BertForTokenClassification", id2label=TAGS)
    short, long = asked(predictor, [("a bird \ufe0f",), ("bird " * 60,)])
    assert "cut" not in short
    assert long["cut"] > 0


def test_sentences_in_columns_are_tagged(tmp_path):
    _, predictor = made(tmp_path, "BertForTokenClassification", id2label=TAGS)
    (tmp_path / "a.conll").write_text("small\nbird\n.\n\na\nhouse\n")
    items = predictor.read(tmp_path / "a.conll")
    assert items is not None
    assert [p["tokens"] for p in predictor.predict(items)] == [
        ["small", "bird", "."],
        ["a", "house"],
    ]
    assert predictor.read(tmp_path / "a.txt") is None


def best_answer(source: Path, question: str, context: str) -> tuple[int, int]:
    """The likeliest stretch of the context by the logits of transformers, all pairs tried."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.BertForQuestionAnswering.from_pretrained(source)
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        outputs = model(**inputs)
    starts, ends = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
    pieces = [i for i, number in enumerate(inputs.sequence_ids()) if number == 1]
    pairs = [(a, b) for a in pieces for b in pieces if a <= b < a + 30]
    first, last = max(pairs, key=lambda pair: starts[pair[0]] + ends[pair[1]])
    return offsets[first][0], offsets[last][1]


def test_answers_are_those_of_transformers(tmp_path):
    source, predictor = made(tmp_path, "BertForQuestionAnswering")
    contexts = ["The river walks under a small green light.", "a bird, a stone, a house!"]
    asked_for = [(question, context) for question in ("who walks?", "a") for context in contexts]
    predictions = asked(predictor, asked_for)
    for (question, context), prediction in zip(asked_for, predictions, strict=True):
        start, end = best_answer(source, question, context)
        assert (prediction["start"], prediction["end"]) == (start, end)
        rows = predictor.rows(prediction)
        assert len(rows) == len(prediction["n_best"]) == 3
        assert rows[0] == (context[start:end], f"{prediction['probability']:.4f}", question)


def test_a_question_wants_two_token_types_and_a_text_one(tmp_path):
    with pytest.raises(UserError, match="type_vocab_size is 1"):
        made(tmp_path / "pairs", "BertForQuestionAnswering", type_vocab_size=1)
    _, predictor = made(tmp_path / "texts", "BertForSequenceClassification", type_vocab_size=1)
    [prediction] = asked(predictor, [("river",)])
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)


def test_questions_of_a_squad_file_are_answered_over_windows(tmp_path):
    _, predictor = made(tmp_path, "BertForQuestionAnswering")
    context = "the river walks under a small green light " * 20
    paragraph = {"context": context, "qas": [{"id": "7", "question": "who?"}]}
    content = {"data": [{"title": "", "paragraphs": [paragraph]}]}
    (tmp_path / "asked.json").write_text(json.dumps(content))
    items = predictor.read(tmp_path / "asked.json")
    assert items is not None
    [prediction] = predictor.predict(items)
    assert prediction["id"] == "7"
    assert "cut" not in prediction
    assert context[prediction["start"] : prediction["end"]] == prediction["predicted"]


def test_a_choice_is_that_of_transformers(tmp_path):
    source = save_peer(peer("BertForMultipleChoice"), tmp_path / "model")
    weights = load_weights(source)
    task = MultipleChoice(choices=3, max_length=40)
    predictor = TaskHead(weights, task, batch_size=2, top=1)
    assert predictor.columns == ("context", "choice 0", "choice 1", "choice 2")
    [prediction] = asked(predictor, [("the river", "walks", "a bird", "small stones light")])
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.BertForMultipleChoice.from_pretrained(source)
    pairs = [("the river", choice) for choice in prediction["choices"]]
    inputs = tokenizer(pairs, padding=True, return_tensors="pt")
    logits = model(**{name: value[None] for name, value in inputs.items()}).logits
    expected = logits.softmax(-1).detach().numpy()[0]
    np.testing.assert_allclose(list(prediction["probabilities"].values()), expected, atol=2e-6)


def test_cut_texts_are_marked(tmp_path):
    _, predictor = made(tmp_path, "BertForSequenceClassification", id2label=TAGS)
    predictions = asked(predictor, [("bird " * 38,), ("bird " * 39,)])
    assert [p.get("cut", False) for p in predictions] == [False, True]


def test_questions_that_are_cut_are_marked(tmp_path):
    weights = load_weights(save_peer(peer("BertForQuestionAnswering"), tmp_path / "model"))
    predictor = TaskHead(weights, QuestionAnswering(max_length=40, query=5), batch_size=2, top=1)
    context = "the river walks " * 30
    predictions = asked(predictor, [("bird " * 5, context), ("bird " * 6, context)])
    assert [p.get("cut", False) for p in predictions] == [False, True]
    assert (predictor.max_length, predictor.cuttable) == (5, "questions")


def test_labels_of_one_name_are_refused(tmp_path):
    names = {0: "bad", 1: "good", 2: "bad"}
    path = save_peer(peer("BertForSequenceClassification", id2label=names), tmp_path / "model")
    with pytest.raises(UserError, match="id2label gives two labels the name 'bad'"):
        load_task(path, load_weights(path))


@pytest.mark.parametrize(
    "labels", [("fair", "bad", "good"), ("bad", "fair", "fine"), ("bad", "bad", "good"), (0, 1, 2)]
)
def test_labels_that_config_json_calls_otherwise_are_refused(labels, tmp_path):
    """Of the same shape as the model's: no other check would see them."""
    names = {0: "bad", 1: "fair", 2: "good"}
    path = save_peer(peer("BertForSequenceClassification", id2label=names), tmp_path / "model")
    (path / "task.json").write_text(json.dumps(task_to_json(Classification(labels=labels))))
    told = r"label \d is .* in task.json and '(bad|fair|good)' in config.json; restore"
    with pytest.raises(UserError, match=told):
        load_task(path, load_weights(path))


@pytest.mark.parametrize("kind", [None, ["tagging"], {}, 1])
def test_a_kind_that_is_no_name_is_refused(kind):
    with pytest.raises(UserError, match=r"task .* is not known; there are classification"):
        task_from_json({"kind": kind, "settings": {}}, "task.json")


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("classification", {"max_length": 3}, "max_length=3: must be at least 8"),
        ("question_answering", {"n_best": 0}, "n_best=0: must be positive"),
        ("question_answering", {"null_threshold": 10**400}, "null_threshold is 1000"),
        ("question_answering", {"score": "accuracy"}, "choose one of f1, exact_match"),
    ],
)
def test_a_value_that_a_setting_may_not_have_is_refused(kind, settings, told):
    with pytest.raises(UserError, match=rf"^task.json: not the settings of a {kind} .*{told}"):
        task_from_json({"kind": kind, "settings": settings}, "task.json")
