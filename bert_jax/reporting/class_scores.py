"""Figures of predicted classes and of their probabilities, of arrays."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

BINS = 10


class ClassScores(NamedTuple):
    """How well one class is told from the others, as fractions, and how many examples have it."""

    precision: float
    recall: float
    f1: float
    support: int


class Calibration(NamedTuple):
    """How often what is said with a probability is so, in bins of equal width.

    edges: of the bins, float64 [bins + 1], from 0 to 1; a bin holds its upper edge.
    counts: int64 [bins].
    confidences: mean probability in each bin, float64 [bins], NaN where it is empty.
    shares: of what is so, float64 [bins], NaN where it is empty.
    error: the expected calibration error (Guo et al., 2017, "On Calibration of Modern Neural
      Networks"): the mean of |share - confidence|, each bin by its count; None without values.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidences: np.ndarray
    shares: np.ndarray
    error: float | None


def class_scores(
    true: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> dict[str, ClassScores]:
    """Scores of each of `labels`, in their order; what has no value is 0."""
    from sklearn.metrics import precision_recall_fscore_support

    nothing: dict[str, Any] = {"zero_division": 0.0}
    true_numbers, said_numbers = numbered(true, labels), numbered(predicted, labels)
    columns: Any = precision_recall_fscore_support(
        true_numbers, said_numbers, labels=range(len(labels)), **nothing
    )
    rows = zip(*columns, strict=True)
    return {
        label: ClassScores(float(precision), float(recall), float(f1), int(support))
        for label, (precision, recall, f1, support) in zip(labels, rows, strict=True)
    }


def confusion(true: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """How many examples of each label (row) are said to have each (column): int64 [L, L]."""
    cells = numbered(true, labels) * len(labels) + numbered(predicted, labels)
    return np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def numbered(values: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """The place of each value among `labels`, which holds them all: int64 [n]."""
    places = {label: index for index, label in enumerate(labels)}
    return np.array([places[value] for value in values], np.int64)


def calibration(probabilities: np.ndarray, outcomes: np.ndarray) -> Calibration:
    """Compare what is said with what is so.

    Args:
      probabilities: float [n], in [0, 1]; what is not finite counts nothing.
      outcomes: bool or float [n], whether, or to what share, it is so.
    """
    known = np.isfinite(probabilities)
    said, so = probabilities[known], np.asarray(outcomes, np.float64)[known]
    places = np.clip(np.ceil(said * BINS).astype(np.int64) - 1, 0, BINS - 1)
    counts = np.bincount(places, minlength=BINS)
    filled = np.where(counts, counts, np.nan)
    confidences = np.bincount(places, said, BINS) / filled
    shares = np.bincount(places, so, BINS) / filled
    gaps = np.nan_to_num(np.abs(shares - confidences))
    return Calibration(
        edges=np.linspace(0, 1, BINS + 1),
        counts=counts,
        confidences=confidences,
        shares=shares,
        error=float(gaps @ counts / counts.sum()) if len(said) else None,
    )


def as_json(scores: Mapping[str, ClassScores]) -> dict[str, dict[str, float]]:
    """The scores of classes as a JSON object."""
    return {label: of_label._asdict() for label, of_label in scores.items()}
