"""Regression: a number for a text or a pair of texts, as in STS-B."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models.task_heads import BertForSequenceClassification
from bert_jax.settings import setting
from bert_jax.tasks.classification import label_fields
from bert_jax.tasks.tables import Row
from bert_jax.tasks.task import Feature, Metrics
from bert_jax.tasks.texts import FLOAT32_MAX, Labelled, TextTask


@dataclasses.dataclass(slots=True, kw_only=True)
class Regression(TextTask):
    """A number, in the units of the training examples; the loss is the mean squared error."""

    label_column: str = setting("score", "column of the number")
    score: str = setting(
        "pearson_spearman",
        "score of dev that picks the best model: a correlation, or the mean of both",
        ("pearson_spearman", "pearson", "spearman"),
    )

    kind: ClassVar[str] = "regression"
    architecture: ClassVar[str] = "BertForSequenceClassification"

    def parse_label(self, value: Any, where: str) -> float:
        """See `TextTask.parse_label`."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= FLOAT32_MAX:
            raise UserError(
                f"{where}: column {self.label_column!r} holds {value!r}: a number is expected"
            )
        return number

    def _label(self, row: Row, where: str, labelled: bool) -> float | None:
        label = TextTask._label(self, row, where, labelled)
        # So TFDS has the scores of STS-B that GLUE keeps to itself, which are 0 to 5.
        hidden = self.glue == "stsb" and not labelled and label == -1
        return None if hidden else label

    def learn(self, examples: Sequence[Labelled]) -> Self:
        """See `Task.learn`: there is nothing to learn of numbers."""
        del examples
        return self

    def check(self, examples: Sequence[Labelled]) -> None:
        """See `Task.check`: any number will do."""

    def target(self, label: float) -> Feature:
        """See `TextTask.target`; the label is a float32 scalar."""
        return {"label": np.array(label, np.float32), "weight": np.array(1, np.float32)}

    def model(self, config: BertConfig) -> BertForSequenceClassification:
        """See `Task.model`."""
        return BertForSequenceClassification(config, 1)

    def metrics(self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Metrics:
        """See `Task.metrics`; the loss is in squares of the label's unit."""
        weight = batch["weight"]
        errors = jnp.square(outputs["logits"][:, 0] - batch["label"])
        return {"loss": (jnp.sum(errors * weight), jnp.sum(weight))}

    def prediction(self, logits: np.ndarray) -> dict[str, Any]:
        """See `TextTask.prediction`."""
        return {"predicted": float(logits[0])}

    def scores(
        self, examples: Sequence[Labelled], predictions: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Correlations, their mean as GLUE reports it, and errors in the label's unit.

        A correlation is 0 where all predictions or all labels are the same.
        """
        from scipy import stats

        true = np.array([example.label for example in examples])
        said = np.array([prediction["predicted"] for prediction in predictions])
        pearson, spearman = 0.0, 0.0
        if np.ptp(true) > 0 and np.ptp(said) > 0:
            by_value: Any = stats.pearsonr(true, said)
            by_rank: Any = stats.spearmanr(true, said)
            pearson, spearman = float(by_value.statistic), float(by_rank.statistic)
        return {
            "pearson": pearson,
            "spearman": spearman,
            "pearson_spearman": (pearson + spearman) / 2,
            "mean_squared_error": float(np.mean((said - true) ** 2)),
            "mean_absolute_error": float(np.mean(np.abs(said - true))),
        }

    def head_fields(self) -> dict[str, Any]:
        """See `Task.head_fields`."""
        return {"problem_type": "regression", **label_fields([self.label_column])}
