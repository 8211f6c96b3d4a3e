"""Findings of question answering: an answer to each question, and the true ones."""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bert_jax.reporting.class_scores import calibration
from bert_jax.reporting.findings import (
    MOST_ERRORS,
    Findings,
    Row,
    calibration_content,
    counted,
    is_share,
    length_chart,
    share,
    texts_html,
)
from bert_jax.tasks.squad import Answer, Question, has_unanswerable, question_scores
from bert_jax.training.page import charts, shown, table

# The words of the first true answer: from, to.
_LENGTHS = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, None))


class Answers(Findings):
    """Of predictions whose "predicted" is an answer, str, and "label" the list of true ones."""

    trivial: ClassVar[str] = "no answer"

    @staticmethod
    def fits(row: Row) -> bool:
        """See `Findings.fits`."""
        match row:
            case {"text": str(), "label": [*true], "predicted": str()}:
                sure = row.get("probability")
                known = sure is None or is_share(sure)
                return known and all(isinstance(answer, str) for answer in true)
        return False

    def figures(self) -> dict[str, Any]:
        """Exact match and F1 by the length of the answer, and the expected calibration error."""
        by_length = {
            name: {"exact_match": exact, "f1": f1, "questions": count}
            for name, exact, f1, count in self._by_length()
        }
        error = calibration(self._sure, self._scores[:, 0] == 1).error
        return {"expected_calibration_error": error, "words_of_answer": by_length}

    def baseline(self) -> dict[str, float]:
        """Of never giving an answer."""
        rows = question_scores(self._questions, [""] * len(self.rows))
        baseline = {"exact_match": float(rows[:, 0].mean()), "f1": float(rows[:, 1].mean())}
        if not has_unanswerable(self._questions):
            return baseline
        return baseline | {
            f"{part}_{name}": value
            for part, value in (("has_answer", 0.0), ("no_answer", 1.0))
            for name in baseline
        }

    def sections(self, name: str) -> list[tuple[str, str]]:
        """See `Findings.sections`."""
        right = self._scores[:, 0] == 1
        groups = {"exact match": right, "other": ~right}
        lengths = np.array([len(row["text"].split()) for row in self.rows])
        calibrated = calibration_content(name, calibration(self._sure, right), self._sure, right)
        return [
            ("Scores by the length of the answer", self._length_table()),
            ("Calibration", calibrated),
            ("Lengths", charts([length_chart("Words of a question", name, lengths, groups)])),
            ("Wrong answers", self._errors()),
        ]

    def _by_length(self) -> list[tuple[str, float, float, int]]:
        """Name of the bin, exact match, F1, number of questions."""
        lengths = np.array(
            [len(row["label"][0].split()) if row["label"] else 0 for row in self.rows]
        )
        found = []
        for low, high in _LENGTHS:
            chosen = (lengths >= low) & (lengths <= (np.inf if high is None else high))
            if chosen.any():
                exact, f1 = self._scores[chosen].mean(axis=0)
                found.append((_range(low, high), float(exact), float(f1), int(chosen.sum())))
        return found

    def _length_table(self) -> str:
        rows = [
            [name, share(exact), share(f1), f"{count:,}"]
            for name, exact, f1, count in self._by_length()
        ]
        return table(["words of the answer", "exact match", "F1", "questions"], rows)

    def _errors(self) -> str:
        """Answers without a word of the true ones, the surest first, then those nearly right."""
        f1, sure = self._scores[:, 1], np.nan_to_num(self._sure)
        wrong = np.flatnonzero(self._scores[:, 0] < 1)
        order = wrong[np.lexsort((-sure[wrong], f1[wrong]))][:MOST_ERRORS]
        rows = [
            [
                shown(self.rows[index]["text"]),
                texts_html(self.rows[index]["label"][:3]) or "<i>none</i>",
                _said(self.rows[index]),
                share(float(f1[index])),
                share(float(self._sure[index])),
            ]
            for index in order
        ]
        if not rows:
            return "<p>None: all match exactly.</p>"
        header = ["question", "true answers", "predicted, in its context", "F1", "probability"]
        note = counted(len(rows), len(wrong), "wrong answers, the least right and surest ones,")
        return table(header, rows, "texts") + note

    @cached_property
    def _questions(self) -> list[Question]:
        return [
            Question(
                where="",
                text=row["text"],
                context="",
                answers=tuple(Answer(text, 0) for text in row["label"]),
            )
            for row in self.rows
        ]

    @cached_property
    def _scores(self) -> np.ndarray:
        """Exact match and F1 of each question, float64 [n, 2]."""
        return question_scores(self._questions, [row["predicted"] for row in self.rows])

    @cached_property
    def _sure(self) -> np.ndarray:
        """The probability of each answer, float64 [n]; NaN where it is not known."""
        return np.array([row.get("probability") for row in self.rows], np.float64)


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} and more"
    return "none" if not high else f"{low}" if low == high else f"{low} to {high}"


def _said(row: Row) -> str:
    """The answer, marked in the text around it where that is known."""
    said = f'<mark class="wrong">{shown(row["predicted"]) or "<i>none</i>"}&nbsp;&#10007;</mark>'
    around = row.get("around")
    match around:
        case [str(before), str(after)]:
            return f"{shown(before)}{said}{shown(after)}"
    return said
