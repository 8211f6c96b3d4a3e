"""Classification of a text or a pair of texts: one label of several."""

import dataclasses
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models.task_heads import BertForSequenceClassification
from bert_jax.settings import setting
from bert_jax.tasks.losses import cross_entropy, softmax
from bert_jax.tasks.task import Feature, Metrics
from bert_jax.tasks.texts import FLOAT32_MAX, Labelled, TextTask

_WHOLE_NUMBER = re.compile(r"^(-?\d+)\.0+$")


@dataclasses.dataclass(slots=True, kw_only=True)
class Classification(TextTask):
    """One label of several."""

    labels: tuple[str, ...] = setting((), "labels; empty learns them from the training examples")
    class_weights: str = setting(
        "none",
        "what an example counts in the loss: none, all the same; balanced, the less the more "
        "frequent its label is in training",
        ("none", "balanced"),
    )
    weights: tuple[float, ...] = setting((), "of each label in the loss; learnt where balanced")
    score: str = setting(
        "accuracy",
        "score of dev that picks the best model",
        ("accuracy", "f1", "macro_f1", "matthews"),
    )

    kind: ClassVar[str] = "classification"
    architecture: ClassVar[str] = "BertForSequenceClassification"

    def parse_label(self, value: Any, where: str) -> str:
        """See `TextTask.parse_label`."""
        if not isinstance(value, str | int | float):
            raise UserError(
                f"{where}: column {self.label_column!r} holds {value!r}: a label is due"
            )
        return str(value)

    def learn(self, examples: Sequence[Labelled]) -> Self:
        """See `Task.learn`: labels in the order of their names, numbers in that of their values."""
        counts = Counter(example.label for example in examples)
        labels = self.labels or tuple(sorted(counts, key=by_value))
        check_distinct(labels)
        check_forms(labels, self.train)
        if len(labels) < 2:
            raise UserError(f"{self.train}: all examples have the label {', '.join(labels)}")
        if self.score == "f1" and len(labels) > 2:
            raise UserError(
                f"config.task.score='f1' is of two labels, and {self.train} has {len(labels)}: "
                "choose macro_f1"
            )
        task = dataclasses.replace(self, labels=labels)
        if self.class_weights == "balanced":
            seen = [counts[label] or 1 for label in labels]
            task.weights = tuple(len(examples) / (len(labels) * count) for count in seen)
        else:
            _check_weights(self.weights, labels)
        return task

    def check(self, examples: Sequence[Labelled]) -> None:
        """See `Task.check`."""
        for example in examples:
            if example.label not in self.labels:
                raise UserError(
                    f"{example.where}: label {example.label!r} is none of those of training: "
                    f"{', '.join(self.labels[:20])}"
                )

    def target(self, label: str) -> Feature:
        """See `TextTask.target`; the label is an int32 scalar."""
        number = self.labels.index(label)
        weight = self.weights[number] if self.weights else 1
        return {"label": np.array(number, np.int32), "weight": np.array(weight, np.float32)}

    def model(self, config: BertConfig) -> BertForSequenceClassification:
        """See `Task.model`."""
        return BertForSequenceClassification(config, len(self.labels))

    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """See `Task.metrics`."""
        return cross_entropy(outputs["logits"], batch["label"], batch["weight"])

    def prediction(self, logits: np.ndarray) -> dict[str, Any]:
        """See `TextTask.prediction`."""
        return most_likely(self.labels, logits)

    def scores(
        self, examples: Sequence[Labelled], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Accuracy, macro F1 and Matthews' correlation; of two labels also F1 of the second."""
        from sklearn import metrics

        number = {label: index for index, label in enumerate(self.labels)}
        true = [number[str(example.label)] for example in examples]
        said = [number[prediction["predicted"]] for prediction in predictions]
        nothing: dict[str, Any] = {"zero_division": 0.0}
        scores = {
            "accuracy": metrics.accuracy_score(true, said),
            "macro_f1": metrics.f1_score(
                true, said, labels=range(len(self.labels)), average="macro", **nothing
            ),
            "matthews": metrics.matthews_corrcoef(true, said),
        }
        if len(self.labels) == 2:
            scores["f1"] = metrics.f1_score(true, said, **nothing)
        return {name: float(value) for name, value in scores.items()}

    def head_fields(self) -> dict[str, Any]:
        """See `Task.head_fields`."""
        return {"problem_type": "single_label_classification", **label_fields(self.labels)}


def _check_weights(weights: Sequence[float], labels: Sequence[str]) -> None:
    """Refuse weights, where there are some, that are not one for each label, above 0 and finite."""
    if weights and len(weights) != len(labels):
        raise UserError(
            f"config.task.weights: {len(weights)} weights, and there are {len(labels)} labels: "
            f"{', '.join(labels[:20])}"
        )
    # No comparison holds of NaN.
    if not all(0 < weight <= FLOAT32_MAX for weight in weights):
        raise UserError(f"config.task.weights={tuple(weights)}: must be above 0 and finite")


def check_distinct(labels: Sequence[str]) -> None:
    """Refuse labels of which one is there twice: it would have two outputs, one of them idle."""
    if twice := repeated(labels):
        raise UserError(f"config.task.labels has {twice[0]!r} twice; give each label once")


def repeated(labels: Sequence[str]) -> list[str]:
    """Those that are there more than once."""
    return [label for label, times in Counter(labels).items() if times > 1]


def check_forms(labels: Sequence[str], train: str) -> None:
    """Refuse labels that look the same: one class would be trained as two.

    They differ by spaces around them, have a letter and its accent as one character and as two, or
    are a whole number with a point and without.
    """
    first: dict[str, str] = {}
    for label in labels:
        form = _form(label)
        other = first.setdefault(_WHOLE_NUMBER.sub(r"\1", form), label)
        if other == label:
            continue
        if other.strip() == label.strip():
            how = f"{other!r} and {label!r} differ by spaces alone; write them alike"
        elif _form(other) == form:
            how = (
                f"{other!a} and {label!a} are the same letters as other Unicode characters; write "
                "them alike, in the form NFC, say"
            )
        else:
            how = f"{other!r} and {label!r} are the same number; write them alike"
        raise UserError(f"{train}: labels {how}")


def _form(label: str) -> str:
    return unicodedata.normalize("NFC", label.strip())


def by_value(label: str) -> tuple[int, float, str]:
    """The key that sorts numbers by their values, and names after them."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    # A label "nan" is a name: among numbers, it would leave them in any order.
    return (1, 0.0, label) if math.isnan(number) else (0, number, label)


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The names of the outputs of a head, as config.json has them."""
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def most_likely(labels: Sequence[str], logits: np.ndarray) -> dict[str, Any]:
    """What logits, float32 [labels], say: "predicted", "probability" and "probabilities"."""
    shares = softmax(logits)
    best = int(shares.argmax())
    return {
        "predicted": labels[best],
        "probability": float(shares[best]),
        "probabilities": dict(zip(labels, map(float, shares), strict=True)),
    }
