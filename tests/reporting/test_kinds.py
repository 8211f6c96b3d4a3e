"""Findings of predictions: what is kept beside the scores, and what needs no model."""

import statistics
from typing import Any

import numpy as np
import pytest
from sample_predictions import ROWS, class_rows

from bert_jax.reporting.class_scores import calibration
from bert_jax.reporting.kinds import figures, findings
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.multilabel import MultiLabel
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.squad import Answer, Question
from bert_jax.tasks.squad import scores as squad_scores
from bert_jax.tasks.tagging import Tagged, Tagging
from bert_jax.tasks.texts import Labelled


def baseline(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = findings(rows, "dev")
    assert found is not None
    return found.baseline()


def examples(rows: list[dict[str, Any]]) -> list[Labelled]:
    return [Labelled(where="", text=row["text"], label=row["label"]) for row in rows]


@pytest.mark.parametrize("labels", [("bad", "good"), ("bad", "good", "mixed")])
def test_the_baseline_of_classes_has_the_scores_of_the_task(labels):
    rows = class_rows(labels, n=201)  # no two labels are as frequent
    true = [row["label"] for row in rows]
    said = [{"predicted": max(set(true), key=true.count)}] * len(rows)
    scores = Classification(labels=labels).scores(examples(rows), said)
    assert baseline(rows) == pytest.approx(scores)


def test_the_baseline_of_values_has_the_scores_of_the_task():
    rows = ROWS["regression"]
    said = [{"predicted": float(np.mean([row["label"] for row in rows]))}] * len(rows)
    assert baseline(rows) == pytest.approx(Regression().scores(examples(rows), said))


@pytest.mark.parametrize("kind", ["multilabel", "soft_multilabel"])
def test_the_baseline_of_several_labels_has_the_scores_of_the_task(kind):
    rows = ROWS[kind]
    names = list(rows[0]["probabilities"])
    hard = [[float(name in row["label"]) for name in names] for row in rows]
    true = np.array([row["label"] for row in rows] if kind[0] == "s" else hard)
    said = [{"probabilities": dict(zip(names, true.mean(axis=0).tolist(), strict=True))}]
    scores = MultiLabel(labels=tuple(names)).scores(examples(rows), said * len(rows))
    assert baseline(rows) == pytest.approx(scores)


def test_the_baseline_of_tags_has_the_scores_of_the_task():
    rows = ROWS["tagging"]
    tagged = [
        Tagged(
            where="",
            text=row["text"],
            units=tuple(row["tokens"]),
            starts=(0,) * len(row["tokens"]),
            tags=tuple(row["label"]),
        )
        for row in rows
    ]
    said = [{"predicted": ["O"] * len(row["label"])} for row in rows]
    task = Tagging(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    assert baseline(rows) == pytest.approx(task.scores(tagged, said))


def test_the_baseline_of_answers_has_the_official_scores():
    rows = ROWS["question_answering"]
    questions = [
        Question(where="", text="", context="", answers=tuple(Answer(a, 0) for a in row["label"]))
        for row in rows
    ]
    assert baseline(rows) == squad_scores(questions, [""] * len(rows))


def said_of_classes(row: dict[str, Any]) -> list[tuple[float, bool]]:
    return [(row["probability"], row["label"] == row["predicted"])]


def said_of_labels(row: dict[str, Any]) -> list[tuple[float, bool]]:
    """A share of half or more is a label."""
    return list(zip(row["probabilities"].values(), (s >= 0.5 for s in row["label"]), strict=True))


@pytest.mark.parametrize(
    ("kind", "said_of"),
    [("classification", said_of_classes), ("soft_multilabel", said_of_labels)],
)
def test_the_calibration_error_is_the_one_written_out(kind, said_of):
    said = [pair for row in ROWS[kind] for pair in said_of(row)]
    error, gaps = 0.0, []
    for low in np.arange(0, 1, 0.1):
        held = [(p, right) for p, right in said if low < p <= low + 0.1 + 1e-12 or p == low == 0]
        if held:
            sure, right = np.mean(held, axis=0)
            gaps.append(abs(right - sure))
            error += gaps[-1] * len(held) / len(said)
    assert len(gaps) > 4
    assert figures(ROWS[kind], "dev")["expected_calibration_error"] == pytest.approx(error)


def test_a_bin_of_probabilities_holds_its_upper_edge():
    """As in Guo et al. (2017), section 2; 0 is in the first."""
    counts = calibration(np.array([0.0, 0.1, 0.5, 0.51, 1.0]), np.ones(5)).counts
    assert counts.tolist() == [2, 0, 0, 0, 1, 1, 0, 0, 0, 1]


def test_predictions_without_labels_and_of_no_known_kind_have_no_findings():
    rows = ROWS["classification"]
    assert findings([], "test") is None
    assert findings([rows[0], {"text": "x", "predicted": "good"}], "test") is None
    assert figures([{"text": "x", "label": {}, "predicted": {}}], "test") == {}


def test_the_mean_and_the_deviation_of_errors_are_kept():
    rows = ROWS["regression"]
    gaps = [row["predicted"] - row["label"] for row in rows]
    expected = {"mean_error": statistics.fmean(gaps), "deviation": statistics.pstdev(gaps)}
    assert figures(rows, "dev") == pytest.approx(expected)
    assert figures([*rows, rows[0] | {"predicted": np.nan}], "dev") == pytest.approx(expected)


def test_a_number_of_a_choice_is_no_class():
    assert set(figures(ROWS["multiple_choice"], "dev")) == {"expected_calibration_error"}


def test_answers_are_kept_by_the_length_of_the_first_true_one():
    kept = figures(ROWS["question_answering"], "dev")["words_of_answer"]
    assert list(kept) == ["none", "1", "3 to 4", "9 and more"]
    expected = {"exact_match": 0, "f1": 2 / 3, "questions": 1}
    assert kept["3 to 4"] == pytest.approx(expected)


def test_entities_are_kept_by_their_type():
    tags = {"label": ["B-PER", "O", "B-LOC"], "predicted": ["B-PER", "B-PER", "O"]}
    row = {"text": "Anna in Bonn", "tokens": ["Anna", "in", "Bonn"], **tags}
    missed = dict.fromkeys(("precision", "recall", "f1", "predicted", "correct"), 0)
    half = {"precision": 1 / 2, "recall": 1, "f1": 2 / 3, "true": 1, "predicted": 2, "correct": 1}
    kept = figures([row], "dev")
    assert kept["expected_calibration_error"] is None, "no probability is known"
    assert kept["types"] == {"LOC": missed | {"true": 1}, "PER": pytest.approx(half)}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("classification", {"predicted": "another"}),
        ("classification", {"probabilities": {"bad": 1.5, "good": 0.0, "mixed": 0.0}}),
        ("regression", {"predicted": 1e101}),
        ("regression", {"label": True}),
        ("multilabel", {"label": [3]}),
        ("multilabel", {"probabilities": {}}),
        ("soft_multilabel", {"label": [0.5]}),
        ("tagging", {"label": ["O"]}),
        ("tagging", {"predicted": ["O"]}),
        ("tagging", {"predicted": [3] * len(ROWS["tagging"][0]["tokens"])}),
        ("tagging", {"probabilities": [2.0] * len(ROWS["tagging"][0]["tokens"])}),
        ("question_answering", {"label": [3]}),
        ("question_answering", {"probability": -0.5}),
    ],
)
def test_a_row_with_another_content_is_of_no_kind(kind, change):
    row = ROWS[kind][0]
    assert findings([row], "dev") is not None
    assert findings([row | change], "dev") is None
