"""What all kinds of predictions have in a report: how they are checked, and parts of sections."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bert_jax.reporting.class_scores import Calibration, ClassScores, confusion
from bert_jax.training.charts import bar_chart, reliability_chart
from bert_jax.training.console import figure
from bert_jax.training.page import chart, charts, shown, table

MOST_ERRORS = 20
_MOST_CLASSES = 100
_MOST_LABELS_SHOWN = 20
_BARS = 30

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Findings(ABC):
    """What the predictions of one set show, of which `fits` is true of each.

    Class attributes:
      trivial: what `baseline` says of every example.
    """

    rows: Sequence[Row]

    trivial: ClassVar[str]

    @staticmethod
    @abstractmethod
    def fits(row: Row) -> bool:
        """Whether a prediction, with a label, has the shape and the types that this reads."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """What is worth keeping beside the task's scores, as a JSON object."""

    @abstractmethod
    def baseline(self) -> dict[str, float]:
        """Scores of what needs no model, by the names that the task's scores have."""

    @abstractmethod
    def sections(self, name: str) -> list[tuple[str, str]]:
        """Titles, text, and contents, HTML, of the set that is called `name`."""


def is_share(value: Any) -> bool:
    """Whether it is a probability; NaN, as which a diverged model has one, is let through."""
    return type(value) in (int, float) and not (value < 0 or value > 1)


def is_value(value: Any) -> bool:
    """Whether it is a number that can be drawn, or not finite: of a diverged model."""
    return type(value) in (int, float) and not 1e100 < abs(value) < float("inf")


def example_html(row: Row) -> str:
    """The texts of an example."""
    texts = [row["text"], row.get("pair")]
    return texts_html([text for text in texts if isinstance(text, str) and text])


def texts_html(texts: Sequence[str]) -> str:
    """Texts one below the other; marks where each begins, if there are several."""
    mark = "&bull;&nbsp;" if len(texts) > 1 else ""
    return "<br>".join(mark + shown(text) for text in texts)


def words(rows: Iterable[Row]) -> np.ndarray:
    """The words, by white space, of each example's texts: int64 [n]."""
    texts = ([row["text"], row.get("pair")] for row in rows)
    return np.array([sum(len(t.split()) for t in ts if isinstance(t, str)) for ts in texts])


def share(value: float) -> str:
    """A fraction as all tables have it."""
    return figure(None if np.isnan(value) else value, ".1%")


def class_table(scores: Mapping[str, ClassScores], name: str = "class") -> str:
    """Precision, recall and F1 of each class, the most frequent ones where there are many."""
    most = sorted(scores, key=lambda label: -scores[label].support)[:_MOST_CLASSES]
    rows = [
        [shown(label), *(share(value) for value in of_label[:3]), f"{of_label.support:,}"]
        for label, of_label in scores.items()
        if label in set(most)
    ]
    note = counted(len(most), len(scores), "most frequent")
    return table([name, "precision", "recall", "F1", "support"], rows) + note


def counted(shown_rows: int, all_rows: int, which: str) -> str:
    """A note where a table leaves rows out."""
    if shown_rows == all_rows:
        return ""
    return f"<p>The {shown_rows:,} {which} of {all_rows:,}.</p>"


def _confusion_table(matrix: np.ndarray, labels: Sequence[str]) -> str:
    """A matrix, int [labels, labels], true by predicted, coloured by the share of its row."""
    totals = np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    rows = [
        [
            shown(label),
            *map(_matrix_cell, matrix[i], matrix[i] / totals[i], np.arange(len(labels)) == i),
        ]
        for i, label in enumerate(labels)
    ]
    header = ["true \\ predicted", *(shown(label) for label in labels)]
    note = "Counts; the colour is the share of the row: of the examples that have the label."
    return table(header, rows, "matrix") + f"<p>{note}</p>"


def _matrix_cell(count: int, of_row: float, diagonal: bool) -> str:
    color = "47 111 190" if diagonal else "194 87 12"
    style = f"background: rgb({color} / {80 * of_row:.0f}%)"
    return f'<div style="{style}">{count:,} <small>{of_row:.0%}</small></div>'


def confusion_content(
    true: Sequence[str], said: Sequence[str], labels: Sequence[str]
) -> tuple[bool, str]:
    """What is taken for what: whether `labels` are few enough for a matrix, and it or the pairs."""
    if len(labels) <= _MOST_LABELS_SHOWN:
        return True, _confusion_table(confusion(true, said, labels), labels)
    return False, _confused_pairs(Counter(zip(true, said, strict=True)))


def _confused_pairs(pairs: Mapping[tuple[str, str], int]) -> str:
    """The (true, predicted) pairs that occur most, for more labels than a matrix can show."""
    wrong = {pair: count for pair, count in pairs.items() if pair[0] != pair[1]}
    most = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))[:MOST_ERRORS]
    rows = [[shown(true), shown(said), f"{count:,}"] for (true, said), count in most]
    note = counted(len(most), len(wrong), "most frequent pairs")
    return table(["true", "predicted", "examples"], rows, "texts") + note


def calibration_content(
    name: str,
    said: Calibration,
    probabilities: np.ndarray,
    outcomes: np.ndarray,
    named: tuple[str, str] = ("right", "wrong"),
) -> str:
    """Reliability, and how the probabilities spread over what is so and what is not.

    Args:
      name: of the set, text.
      said: `calibration(probabilities, outcomes)`.
      probabilities: float [n]; NaN is left out.
      outcomes: bool [n].
      named: what is so, and what is not.
    """
    if said.error is None:
        return ""
    known = np.isfinite(probabilities)
    histograms = {
        label: np.histogram(probabilities[known & chosen], said.edges)[0]
        for label, chosen in zip(named, (outcomes, ~outcomes), strict=True)
    }
    drawings = [
        chart(
            f"Share that is {named[0]}, by probability",
            reliability_chart(f"Reliability, {name}", said.edges, said.shares, said.confidences),
        ),
        chart(
            "Predictions by probability",
            bar_chart(f"Probabilities, {name}", said.edges, histograms, percentages=True),
        ),
    ]
    sure, right = probabilities[known].mean(), outcomes[known].mean()
    note = (
        f"Expected calibration error {said.error:.3f}, in {len(said.counts)} bins: the mean "
        f"distance from the diagonal. The mean probability is {sure:.1%}, and {right:.1%} are "
        f"{named[0]}: the model is {'over' if sure > right else 'under'}confident in the mean."
    )
    return f"<p>{note}</p>{charts(drawings)}"


def length_chart(
    title: str, name: str, lengths: np.ndarray, groups: Mapping[str, np.ndarray]
) -> str:
    """A histogram of the lengths, int [n], of the set `name`, in groups: label -> bool [n]."""
    width = -(-(int(lengths.max()) + 1) // _BARS)
    edges = np.arange(0, int(lengths.max()) + width + 1, width)
    counts = {label: np.histogram(lengths[of], edges)[0] for label, of in groups.items()}
    return chart(title, bar_chart(f"{title}, {name}", edges, counts))


def value_chart(title: str, name: str, values: np.ndarray) -> str:
    """A histogram of the finite values, float [n], of the set `name`."""
    low, high = values.min(), values.max()
    least = 1e-6 * max(1.0, abs(low), abs(high))
    middle, half = (low + high) / 2, max((high - low) / 2, least)
    edges = np.linspace(middle - half, middle + half, _BARS + 1)
    counts = {"all": np.histogram(values, edges)[0]}
    return chart(title, bar_chart(f"{title}, {name}", edges, counts))
