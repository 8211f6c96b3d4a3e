"""Findings of regression: a number of each example."""

from typing import Any, ClassVar

import numpy as np

from bert_jax.reporting.findings import (
    MOST_ERRORS,
    Findings,
    Row,
    counted,
    example_html,
    is_value,
    length_chart,
    value_chart,
    words,
)
from bert_jax.training.charts import scatter_chart
from bert_jax.training.page import chart, charts, table

_MOST_POINTS = 1000


class Values(Findings):
    """Of predictions whose "label" and "predicted" are numbers."""

    trivial: ClassVar[str] = "the mean"

    @staticmethod
    def fits(row: Row) -> bool:
        """See `Findings.fits`."""
        match row:
            case {"text": str(), "label": true, "predicted": said}:
                return is_value(true) and is_value(said)
        return False

    def figures(self) -> dict[str, Any]:
        """The mean of predicted less true values, and its standard deviation."""
        true, said = self._values()
        if not len(true):
            return {}
        return {"mean_error": float(np.mean(said - true)), "deviation": float(np.std(said - true))}

    def baseline(self) -> dict[str, float]:
        """Of always saying the mean, which nothing correlates with."""
        true = np.array([row["label"] for row in self.rows], np.float64)
        return {
            "pearson": 0.0,
            "spearman": 0.0,
            "pearson_spearman": 0.0,
            "mean_squared_error": float(true.var()),
            "mean_absolute_error": float(np.abs(true - true.mean()).mean()),
        }

    def sections(self, name: str) -> list[tuple[str, str]]:
        """See `Findings.sections`."""
        true, said = self._values()
        everything = {"all": np.ones(len(self.rows), bool)}
        lengths = length_chart("Words of an example", name, words(self.rows), everything)
        if not len(true):
            return [("Lengths", charts([lengths]))]
        chosen = np.linspace(0, len(true) - 1, min(len(true), _MOST_POINTS)).astype(np.int64)
        drawings = [
            chart(
                "Predicted values, over true ones",
                scatter_chart(f"Predicted values, {name}", true[chosen], said[chosen]),
            ),
            value_chart("Predicted less true values", name, said - true),
            lengths,
        ]
        note = counted(len(chosen), len(true), "points drawn, evenly chosen,")
        return [("Values", note + charts(drawings)), ("Largest errors", self._errors())]

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """True and predicted values, float64 [n], where both are finite."""
        pairs = [(row["label"], row["predicted"]) for row in self.rows]
        both = np.array(pairs, np.float64).reshape(-1, 2)
        true, said = both[np.isfinite(both).all(axis=1)].T
        return true, said

    def _errors(self) -> str:
        far = sorted(self.rows, key=lambda row: -abs(row["predicted"] - row["label"]))[:MOST_ERRORS]
        rows = [
            [
                example_html(row),
                f"{row['label']:.4g}",
                f"{row['predicted']:.4g}",
                f"{row['predicted'] - row['label']:+.4g}",
            ]
            for row in far
        ]
        note = counted(len(rows), len(self.rows), "largest errors")
        return table(["example", "true", "predicted", "error"], rows, "texts") + note
