"""Findings of several labels at once: a share of each, as said and as is so."""

from typing import Any, ClassVar

import numpy as np

from bert_jax.reporting.class_scores import calibration
from bert_jax.reporting.findings import (
    MOST_ERRORS,
    Findings,
    Row,
    calibration_content,
    counted,
    example_html,
    is_share,
    length_chart,
    share,
    words,
)
from bert_jax.training.page import charts, shown, table

_PRESENT = 0.5
_MOST_LABELS = 100


class SeveralLabels(Findings):
    """Of predictions with "predicted", a list, and "probabilities", label to share.

    "label" is the list of the labels that are present, or a list of all labels' shares.
    """

    trivial: ClassVar[str] = "each label's mean"

    @staticmethod
    def fits(row: Row) -> bool:
        """See `Findings.fits`."""
        match row:
            case {"text": str(), "label": [*true], "predicted": [*_], "probabilities": dict(by)}:
                names = all(isinstance(item, str) for item in true)
                shares = len(true) == len(by) and all(map(is_share, true))
                return bool(by) and all(map(is_share, by.values())) and (names or shares)
        return False

    def figures(self) -> dict[str, Any]:
        """Scores of each label, and the expected calibration error of all labels' shares."""
        true, said = self._shares()
        error = calibration(said.ravel(), true.ravel() >= _PRESENT).error
        return {"expected_calibration_error": error, "labels": self._scores(true, said)}

    def baseline(self) -> dict[str, float]:
        """Of always saying the share that a label has in the mean."""
        from scipy.special import xlog1py, xlogy

        true, _ = self._shares()
        mean = np.broadcast_to(true.mean(axis=0), true.shape)
        scores = self._scores(true, mean).values()
        known = [of_label for of_label in scores if of_label["support"]]
        hard, present = true >= _PRESENT, mean >= _PRESENT
        both = float(hard.sum() + present.sum())
        loss = float(-(xlogy(true, mean) + xlog1py(1 - true, -mean)).mean())
        return {
            "micro_f1": 2 * float((hard & present).sum()) / both if both else 0.0,
            "macro_f1": float(np.mean([of_label["f1"] for of_label in scores])),
            "mean_average_precision": float(
                np.mean([of_label["average_precision"] for of_label in known]) if known else 0.0
            ),
            "mean_absolute_error": float(np.abs(mean - true).mean()),
            "loss": loss,
            "log_likelihood": -loss,
        }

    def sections(self, name: str) -> list[tuple[str, str]]:
        """See `Findings.sections`."""
        true, said = self._shares()
        present, shares = true.ravel() >= _PRESENT, said.ravel()
        everything = {"all": np.ones(len(self.rows), bool)}
        return [
            ("Labels", self._label_table(true, said)),
            (
                "Calibration",
                calibration_content(
                    name, calibration(shares, present), shares, present, ("present", "absent")
                ),
            ),
            (
                "Lengths",
                charts([length_chart("Words of an example", name, words(self.rows), everything)]),
            ),
            ("Largest errors", self._errors(true, said)),
        ]

    def _shares(self) -> tuple[np.ndarray, np.ndarray]:
        """The true and the predicted shares, float64 [n, labels]."""
        said = [
            [row["probabilities"].get(label, 0.0) for label in self._labels] for row in self.rows
        ]
        true = [_true_shares(row, self._labels) for row in self.rows]
        return np.nan_to_num(np.array(true, np.float64)), np.nan_to_num(np.array(said, np.float64))

    @property
    def _labels(self) -> list[str]:
        return list(self.rows[0]["probabilities"])

    def _scores(self, true: np.ndarray, said: np.ndarray) -> dict[str, dict[str, float]]:
        from sklearn.metrics import average_precision_score, precision_recall_fscore_support

        nothing: dict[str, Any] = {"zero_division": 0.0}
        hard = true >= _PRESENT
        scores = {}
        for index, label in enumerate(self._labels):
            columns = hard[:, index], said[:, index]
            precision, recall, f1, _ = precision_recall_fscore_support(
                columns[0], columns[1] >= _PRESENT, average="binary", **nothing
            )
            ordered = average_precision_score(*columns) if hard[:, index].any() else 0.0
            scores[label] = {
                "precision": float(precision),
                "recall": float(recall),
                "f1": float(f1),
                "average_precision": float(ordered),
                "support": int(hard[:, index].sum()),
            }
        return scores

    def _label_table(self, true: np.ndarray, said: np.ndarray) -> str:
        header = ["label", "precision", "recall", "F1", "average precision", "support"]
        header += ["mean share", "predicted"]
        rows = [
            [
                shown(label),
                *(share(value) for value in list(of_label.values())[:4]),
                f"{of_label['support']:,}",
                share(float(true[:, index].mean())),
                share(float(said[:, index].mean())),
            ]
            for index, (label, of_label) in enumerate(self._scores(true, said).items())
        ][:_MOST_LABELS]
        note = counted(len(rows), len(self._labels), "first labels")
        return table(header, rows) + note + "<p>A share of half or more is a label.</p>"

    def _errors(self, true: np.ndarray, said: np.ndarray) -> str:
        gaps = np.abs(said - true)
        order = np.argsort(-gaps.max(axis=1), kind="stable")[:MOST_ERRORS]
        rows = []
        for index in order:
            at = int(gaps[index].argmax())
            of_label = self._labels[at], true[index, at], said[index, at]
            present = [self._labels[i] for i in np.flatnonzero(true[index] >= _PRESENT)]
            found = [self._labels[i] for i in np.flatnonzero(said[index] >= _PRESENT)]
            worst = f"{shown(of_label[0])}: {share(of_label[2])}, is {share(of_label[1])}"
            texts = [shown(", ".join(names)) for names in (present, found)]
            rows.append([example_html(self.rows[index]), *texts, worst])
        header = ["example", "labels", "predicted", "most wrong"]
        return table(header, rows, "texts") + counted(len(rows), len(gaps), "largest errors")


def _true_shares(row: Row, labels: list[str]) -> list[float]:
    """A row's label as a share of each of `labels`."""
    true = row["label"]
    if all(isinstance(item, str) for item in true):
        return [float(label in set(true)) for label in labels]
    return [*true, *[0.0] * len(labels)][: len(labels)]
