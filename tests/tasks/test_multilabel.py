"""Several labels with shares: the loss of torch, scores of scikit-learn, soft and hard targets."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sklearn import metrics

from bert_jax.errors import UserError
from bert_jax.tasks.multilabel import MultiLabel
from bert_jax.tasks.registry import task_from_json, task_to_json
from bert_jax.tasks.texts import Labelled

NAMES = ("anger", "joy", "fear")


def labelled(*labels):
    return [Labelled(where=f"a:{n}", text="river", label=label) for n, label in enumerate(labels)]


def read(tmp_path, *labels):
    rows = [{"text": "river", "label": label} for label in labels]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MultiLabel().read(tmp_path / "a.jsonl")


def test_soft_and_hard_targets_are_read(tmp_path):
    soft = read(tmp_path, [0.6, 0.2, 1], [0, 0, 0])
    assert [example.label for example in soft] == [[0.6, 0.2, 1.0], [0.0, 0.0, 0.0]]
    task = MultiLabel().learn(soft)
    assert task.labels == ("0", "1", "2")
    target = task.target(soft[0].label)
    assert target["label"].dtype == np.float32
    assert target["label"].tolist() == pytest.approx([0.6, 0.2, 1.0])
    assert target["weight"] == 1

    hard = read(tmp_path, ["joy"], [], ["fear", "anger"])
    task = MultiLabel().learn(hard)
    assert task.labels == ("anger", "fear", "joy")
    targets = [task.target(example.label)["label"].tolist() for example in hard]
    assert targets == [[0, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert task_from_json(json.loads(json.dumps(task_to_json(task))), "here") == task
    assert MultiLabel().learn(labelled(["10"], ["9", "x"])).labels == ("9", "10", "x")


def test_given_labels_keep_their_order():
    task = MultiLabel(labels=NAMES).learn(labelled([0.1, 0.2, 0.3]))
    assert task.labels == NAMES
    assert task.head_fields()["id2label"] == {"0": "anger", "1": "joy", "2": "fear"}
    assert task.head_fields()["problem_type"] == "multi_label_classification"


def test_the_loss_is_that_of_torch_and_padding_counts_nothing():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 20, (6, 3)).astype(np.float32)
    shares = rng.uniform(0, 1, (6, 3)).astype(np.float32)
    batch = {"label": jnp.array(shares), "weight": jnp.array([1.0] * 4 + [0.0] * 2)}
    task = MultiLabel(labels=NAMES)
    total, weight = task.metrics({"logits": jnp.array(logits)}, batch)["loss"]
    loss = torch.nn.BCEWithLogitsLoss()
    expected = loss(torch.tensor(logits[:4]), torch.tensor(shares[:4]))
    assert float(total / weight) == pytest.approx(float(expected), rel=1e-5)


def outcome(true, logits):
    task = MultiLabel(labels=NAMES[: true.shape[1]])
    examples = labelled(*(row.tolist() for row in true))
    outputs = [[{"logits": row}] for row in logits]
    return task, examples, task.predictions(examples, [[{}]] * len(true), outputs)


def test_predictions_are_shares_and_the_labels_from_one_half_on():
    true = np.array([[0.6, 0.2, 1.0]])
    _, _, (prediction,) = outcome(true, np.array([[0.0, -1.0, 3.0]], np.float32))
    assert prediction["label"] == [0.6, 0.2, 1.0]
    assert prediction["predicted"] == ["anger", "fear"]
    expected = torch.sigmoid(torch.tensor([0.0, -1.0, 3.0]).double()).tolist()
    assert prediction["probabilities"] == pytest.approx(dict(zip(NAMES, expected, strict=True)))


def test_scores_are_those_of_scikit_learn_and_torch():
    rng = np.random.default_rng(1)
    true = rng.uniform(0, 1, (50, 3))
    true[:9] = 0.5  # as much present as not: it is
    logits = rng.normal(0, 2, (50, 3)).astype(np.float32)
    task, examples, predictions = outcome(true, logits)
    hard, shares = true >= 0.5, 1 / (1 + np.exp(-logits.astype(np.float64)))
    loss = torch.nn.BCEWithLogitsLoss()(torch.tensor(logits).double(), torch.tensor(true))
    assert task.scores(examples, predictions) == pytest.approx(
        {
            "micro_f1": metrics.f1_score(hard, shares >= 0.5, average="micro"),
            "macro_f1": metrics.f1_score(hard, shares >= 0.5, average="macro"),
            "mean_average_precision": metrics.average_precision_score(hard, shares),
            "mean_absolute_error": np.abs(true - shares).mean(),
            "loss": float(loss),
            "log_likelihood": -float(loss),
        },
        rel=1e-6,
    )


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_f1_of_several_labels_is_the_averages_of_scikit_learn(width, rate):
    rng = np.random.default_rng(2)
    true = (rng.uniform(size=(40, width)) < rate).astype(float)
    logits = rng.normal(0, 2, (40, width)).astype(np.float32)
    scores = MultiLabel.scores(*outcome(true, logits))
    nothing: dict[str, Any] = {"zero_division": 0.0}
    for average in ("micro", "macro"):
        expected = metrics.f1_score(true > 0, logits >= 0, average=average, **nothing)
        assert scores[f"{average}_f1"] == pytest.approx(expected, abs=1e-12), average


@pytest.mark.parametrize(("said", "f1"), [([], 0.0), ([0, 1, 5], 0.8), ([0, 1], 1.0)])
def test_f1_of_one_label_is_of_its_presence_alone(said, f1):
    """Presence is 2 of 40: what never says so is right 38 times, and finds nothing."""
    true = np.zeros((40, 1))
    logits = np.full((40, 1), -2, np.float32)
    true[:2] = 1
    logits[said] = 2
    scores = MultiLabel.scores(*outcome(true, logits))
    assert scores["micro_f1"] == scores["macro_f1"] == pytest.approx(f1)


@pytest.mark.filterwarnings("error")
def test_scores_where_a_label_never_occurs_and_shares_are_saturated():
    true = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    logits = np.array([[500, -500, 500], [-500, -500, -500]], np.float32)
    task, examples, predictions = outcome(true, logits)
    scores = task.scores(examples, predictions)
    assert scores["mean_average_precision"] == 1.0  # of "anger" alone
    assert np.isfinite(scores["loss"])
    nothing = task.scores(*outcome(0 * true, logits)[1:])
    assert nothing["mean_average_precision"] == nothing["micro_f1"] == 0.0
    silent = task.scores(*outcome(0 * true, logits - 600)[1:])
    assert silent["micro_f1"] == silent["macro_f1"] == 0.0


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ([0.5, 1.2], "shares go from 0 to 1"),
        ([-0.1], "shares go from 0 to 1"),
        ([float("nan")], "shares go from 0 to 1"),
        ("joy", "a list of shares in"),
        (0.5, "a list of shares in"),
        ([0.5, "joy"], "a list of shares in"),
        ([True], "a list of shares in"),
        ([None], "a list of shares in"),
        (None, "column 'label' is empty"),
    ],
)
def test_a_bad_label_is_told_with_its_line(tmp_path, label, told):
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{told}"):
        read(tmp_path, [0.5], label)


def test_names_that_look_the_same_are_told():
    with pytest.raises(UserError, match="labels 'joy' and 'joy ' differ by spaces alone"):
        MultiLabel().learn(labelled(["joy"], ["joy "]))


def test_shares_of_another_width_and_unknown_names_are_told():
    task = MultiLabel().learn(labelled([0.1, 0.2, 0.3]))
    with pytest.raises(UserError, match=r"a:1: 2 shares, and there are 3 labels: 0, 1, 2"):
        task.check(labelled([0.1, 0.2, 0.3], [0.1, 0.2]))
    task = MultiLabel().learn(labelled(["joy"], ["fear"]))
    with pytest.raises(UserError, match=r"a:1: label 'hope' is none of those of .*: fear, joy"):
        task.check(labelled(["joy"], ["hope"]))
    with pytest.raises(UserError, match="no example has a label"):
        MultiLabel().learn(labelled([], []))
