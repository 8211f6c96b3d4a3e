"""Findings of classification and of multiple choice: one label, and the probability of each."""

from collections import Counter
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bert_jax.reporting.class_scores import as_json, calibration, class_scores
from bert_jax.reporting.findings import (
    MOST_ERRORS,
    Findings,
    Row,
    calibration_content,
    class_table,
    confusion_content,
    counted,
    example_html,
    is_share,
    length_chart,
    share,
    words,
)
from bert_jax.training.page import charts, shown, table


class Classes(Findings):
    """Of predictions with "label" and "predicted", str, and "probabilities", label to share."""

    trivial: ClassVar[str] = "the most frequent label"

    @staticmethod
    def fits(row: Row) -> bool:
        """See `Findings.fits`."""
        match row:
            case {"text": str(), "label": str(), "predicted": str(said), "probabilities": dict(by)}:
                return said in by and all(map(is_share, by.values()))
        return False

    def figures(self) -> dict[str, Any]:
        """Scores of each class, and the expected calibration error."""
        error = {"expected_calibration_error": calibration(self._sure, self._right).error}
        if self._choice:
            return error
        return error | {"classes": as_json(class_scores(self._true, self._said, self._labels))}

    def baseline(self) -> dict[str, float]:
        """Of always the most frequent label."""
        most = Counter(self._true).most_common(1)[0][0]
        scores = class_scores(self._true, [most] * len(self.rows), self._labels)
        baseline = {
            "accuracy": scores[most].recall * scores[most].support / len(self.rows),
            "macro_f1": float(np.mean([of_label.f1 for of_label in scores.values()])),
            "matthews": 0.0,
        }
        if len(self._labels) == 2:
            baseline["f1"] = scores[self._labels[1]].f1
        return baseline

    def sections(self, name: str) -> list[tuple[str, str]]:
        """See `Findings.sections`."""
        right, sure = self._right, self._sure
        by_class = []
        if not self._choice:
            scores = class_scores(self._true, self._said, self._labels)
            by_class = [self._confusion(), ("Classes", class_table(scores))]
        lengths = length_chart("Words of an example", name, words(self.rows), groups_of(right))
        calibrated = calibration_content(name, calibration(sure, right), sure, right)
        return [
            *by_class,
            ("Calibration", calibrated),
            ("Lengths", charts([lengths])),
            ("Most confident errors", self._errors()),
        ]

    def _confusion(self) -> tuple[str, str]:
        matrix, content = confusion_content(self._true, self._said, self._labels)
        return "Confusion matrix" if matrix else "Most confused labels", content

    def _errors(self) -> str:
        wrong = np.flatnonzero(~self._right)
        order = wrong[np.argsort(-np.nan_to_num(self._sure[wrong]), kind="stable")][:MOST_ERRORS]
        rows = [_error(self.rows[index], float(self._sure[index])) for index in order]
        if not rows:
            return "<p>None: all are right.</p>"
        note = counted(len(rows), len(wrong), "most confident errors")
        return table(["example", "true", "predicted", "probability"], rows, "texts") + note

    @property
    def _choice(self) -> bool:
        """Whether labels are numbers of choices, which mean something else in each example."""
        return "choices" in self.rows[0]

    @cached_property
    def _true(self) -> list[str]:
        return [row["label"] for row in self.rows]

    @cached_property
    def _said(self) -> list[str]:
        return [row["predicted"] for row in self.rows]

    @cached_property
    def _labels(self) -> list[str]:
        """In the model's order; those that it does not have after them."""
        return list(dict.fromkeys([*self.rows[0]["probabilities"], *self._said, *self._true]))

    @cached_property
    def _sure(self) -> np.ndarray:
        """The probability of what is predicted, float64 [n]."""
        return np.array([row["probabilities"][row["predicted"]] for row in self.rows], np.float64)

    @cached_property
    def _right(self) -> np.ndarray:
        return np.array([row["predicted"] == row["label"] for row in self.rows])


def groups_of(right: np.ndarray) -> dict[str, np.ndarray]:
    """The two groups of a histogram, bool [n] each."""
    return {"right": right, "wrong": ~right}


def _error(row: Row, sure: float) -> list[str]:
    labels = [shown(_meaning(row, row[name])) for name in ("label", "predicted")]
    return [example_html(row), *labels, share(sure)]


def _meaning(row: Row, label: str) -> str:
    """A label, or the choice that it is the number of."""
    match row.get("choices"):
        case [*choices] if label in map(str, range(len(choices))):
            return str(choices[int(label)])
    return label
