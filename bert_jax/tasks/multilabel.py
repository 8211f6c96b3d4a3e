"""Several labels of a text or a pair of texts, each with a share: soft targets, or hard ones."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models.task_heads import BertForSequenceClassification
from bert_jax.settings import setting
from bert_jax.tasks.classification import by_value, check_distinct, check_forms, label_fields
from bert_jax.tasks.task import Feature, Metrics
from bert_jax.tasks.texts import Labelled, TextTask

# From this share on a label is counted as present, in targets and in predictions.
_PRESENT = 0.5


@dataclasses.dataclass(slots=True, kw_only=True)
class MultiLabel(TextTask):
    """A share in [0, 1] of each label; the loss is the sigmoid cross-entropy, mean over labels.

    A row of a .jsonl has a list of a share for each label (soft targets), or of the names of the
    labels that apply (hard targets).
    """

    label_column: str = setting("label", "column of the list of shares, or of names")
    labels: tuple[str, ...] = setting(
        (), "labels, in the order of the shares; empty numbers shares, and learns names"
    )
    score: str = setting(
        "micro_f1",
        "score of dev that picks the best model; log_likelihood, minus the loss, is of the shares",
        ("micro_f1", "macro_f1", "mean_average_precision", "log_likelihood"),
    )

    kind: ClassVar[str] = "multilabel"
    architecture: ClassVar[str] = "BertForSequenceClassification"

    def parse_label(self, value: Any, where: str) -> list[float] | list[str]:
        """See `TextTask.parse_label`."""
        if isinstance(value, list):
            if all(isinstance(item, str) for item in value):
                return value
            if all(type(item) in (int, float) for item in value):
                if all(0 <= item <= 1 for item in value):
                    return [float(item) for item in value]
                raise UserError(f"{where}: column {self.label_column!r}: shares go from 0 to 1")
        raise UserError(
            f"{where}: column {self.label_column!r} holds {str(value)[:80]!r}: a list of shares in "
            "[0, 1], or of the names of labels, is expected, as a .jsonl has it"
        )

    def learn(self, examples: Sequence[Labelled]) -> Self:
        """See `Task.learn`: the number of shares, or the names in their order."""
        names = {item for example in examples for item in example.label if isinstance(item, str)}
        width = max(len(example.label) for example in examples)
        learnt = sorted(names, key=by_value) or [str(index) for index in range(width)]
        labels = self.labels or tuple(learnt)
        if not labels:
            raise UserError(f"{self.train}: no example has a label")
        check_distinct(labels)
        check_forms(labels, self.train)
        return dataclasses.replace(self, labels=labels)

    def check(self, examples: Sequence[Labelled]) -> None:
        """See `Task.check`."""
        for example in examples:
            shares = [item for item in example.label if isinstance(item, float)]
            if shares and len(shares) != len(self.labels):
                raise UserError(
                    f"{example.where}: {len(shares)} shares, and there are {len(self.labels)} "
                    f"labels: {', '.join(self.labels[:20])}"
                )
            unknown = set(example.label) - set(shares) - set(self.labels)
            if unknown:
                raise UserError(
                    f"{example.where}: label {min(unknown)!r} is none of those of training: "
                    f"{', '.join(self.labels[:20])}"
                )

    def target(self, label: Sequence[float] | Sequence[str]) -> Feature:
        """See `TextTask.target`; the label is float32 [labels], shares in [0, 1]."""
        return {"label": self._shares(label), "weight": np.array(1, np.float32)}

    def model(self, config: BertConfig) -> BertForSequenceClassification:
        """See `Task.model`."""
        return BertForSequenceClassification(config, len(self.labels))

    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """See `Task.metrics`; the loss is in nats a label."""
        losses = optax.losses.sigmoid_binary_cross_entropy(outputs["logits"], batch["label"])
        weight = batch["weight"]
        return {"loss": (jnp.sum(jnp.mean(losses, axis=-1) * weight), jnp.sum(weight))}

    def prediction(self, logits: np.ndarray) -> dict[str, Any]:
        """See `TextTask.prediction`; "predicted" is the list of labels that are present."""
        from scipy.special import expit

        shares = expit(logits.astype(np.float64)).tolist()
        by_label = dict(zip(self.labels, shares, strict=True))
        return {
            "predicted": [label for label, share in by_label.items() if share >= _PRESENT],
            "probabilities": by_label,
        }

    def scores(
        self, examples: Sequence[Labelled], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """F1 of what is present, the loss, the mean absolute error and average precision.

        The mean average precision is over the labels that some example has, 0 where there are none.
        """
        from scipy.special import xlog1py, xlogy
        from sklearn import metrics

        true = np.array([self._shares(example.label) for example in examples], np.float64)
        said = np.array([list(prediction["probabilities"].values()) for prediction in predictions])
        hard, present = true >= _PRESENT, said >= _PRESENT
        precisions = [
            metrics.average_precision_score(hard[:, index], said[:, index])
            for index in np.flatnonzero(hard.any(axis=0))
        ]
        sure = np.clip(
            said, 1e-15, 1 - 1e-15
        )  # a share of 1 said of what has 0 is no infinite loss
        losses = -xlogy(true, sure) - xlog1py(1 - true, -sure)
        nothing: dict[str, Any] = {"zero_division": 0.0}
        scores = {
            # Of presence alone: scikit-learn's averages take one label's absence for a class too.
            "micro_f1": metrics.f1_score(hard.ravel(), present.ravel(), **nothing),
            "macro_f1": np.mean(
                [
                    metrics.f1_score(of_label, said_of_label, **nothing)
                    for of_label, said_of_label in zip(hard.T, present.T, strict=True)
                ]
            ),
            "mean_average_precision": np.mean(precisions) if precisions else 0.0,
            "mean_absolute_error": np.abs(said - true).mean(),
            "loss": losses.mean(),
            "log_likelihood": -losses.mean(),
        }
        return {name: float(value) for name, value in scores.items()}

    def head_fields(self) -> dict[str, Any]:
        """See `Task.head_fields`."""
        return {"problem_type": "multi_label_classification", **label_fields(self.labels)}

    def _shares(self, label: Sequence[float] | Sequence[str]) -> np.ndarray:
        """A label as float32 [labels]."""
        if label and not isinstance(label[0], str):
            return np.array(label, np.float32)
        return np.array([name in label for name in self.labels], np.float32)
