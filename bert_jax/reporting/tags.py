"""Findings of token classification: a tag of each unit, and the entities that tags come to."""

from collections import Counter
from collections.abc import Sequence
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
    is_share,
    length_chart,
    share,
)
from bert_jax.tasks.entities import (
    OUTSIDE,
    Entity,
    Found,
    are_of_entities,
    compare,
    entities,
    total,
)
from bert_jax.training.page import charts, shown, table

_MOST_TYPES = 100
_MOST_UNITS = 80


class Tags(Findings):
    """Of predictions with "tokens", "label" and "predicted", lists of str of the same length."""

    trivial: ClassVar[str] = "the most frequent tag"

    @staticmethod
    def fits(row: Row) -> bool:
        """See `Findings.fits`."""
        match row:
            case {"text": str(), "tokens": [*units], "label": [*true], "predicted": [*said]}:
                texts = all(isinstance(item, str) for item in (*units, *true, *said))
                sure = row.get("probabilities", [None] * len(units))
                shares = isinstance(sure, list) and all(s is None or is_share(s) for s in sure)
                return texts and shares and len(units) == len(true) == len(said) == len(sure)
        return False

    def figures(self) -> dict[str, Any]:
        """Scores of each type of entity, or of each tag, and the expected calibration error."""
        error = {"expected_calibration_error": calibration(self._sure, self._right).error}
        if not self._of_entities:
            scores = class_scores(self._true, self._said, self._labels)
            return error | {"classes": as_json(scores)}
        return error | {"types": {kind: _as_json(found) for kind, found in self._found.items()}}

    def baseline(self) -> dict[str, float]:
        """Of always the most frequent tag."""
        if not self._true:
            return {}
        most, count = Counter(self._true).most_common(1)[0]
        accuracy = {"accuracy": count / len(self._true)}
        if not self._of_entities:
            return accuracy
        said = [[most] * len(row["label"]) for row in self.rows]
        found = total(compare([row["label"] for row in self.rows], said).values())
        return accuracy | {"f1": found.f1, "precision": found.precision, "recall": found.recall}

    def sections(self, name: str) -> list[tuple[str, str]]:
        """See `Findings.sections`."""
        if not self._true:
            return []
        lengths = np.array([len(row["tokens"]) for row in self.rows])
        whole = np.array([row["predicted"] == row["label"] for row in self.rows])
        groups = {"all tags right": whole, "some wrong": ~whole}
        calibrated = calibration(self._sure, self._right)
        if self._of_entities:
            by_type = [("Entities", _type_table(self._found))]
        else:
            scores = class_scores(self._true, self._said, self._labels)
            by_type = [("Tags", class_table(scores, "tag"))]
        return [
            *by_type,
            self._confusion(),
            ("Calibration", calibration_content(name, calibrated, self._sure, self._right)),
            ("Lengths", charts([length_chart("Units of an example", name, lengths, groups)])),
            ("Examples with the most errors", self._errors()),
        ]

    def _confusion(self) -> tuple[str, str]:
        matrix, content = confusion_content(self._true, self._said, self._labels)
        return "Confusion matrix of tags" if matrix else "Most confused tags", content

    def _errors(self) -> str:
        errors = [len(self._wrong(row)) for row in self.rows]
        wrong = [index for index, count in enumerate(errors) if count]
        order = sorted(wrong, key=lambda index: -errors[index])
        rows = []
        for index in order[:MOST_ERRORS]:
            row = self.rows[index]
            readings = [self._readings(row["label"]), self._readings(row["predicted"])]
            both = [_marked(row["tokens"], *pair) for pair in (readings, readings[::-1])]
            rows.append([f"{errors[index]}", f"{both[0]}<br>{both[1]}"])
        if not rows:
            return "<p>None: all are right.</p>"
        note = (
            "In each, what is true above what is predicted. A check mark is on what both have; "
            f"units after the first {_MOST_UNITS} are left out."
        )
        which = counted(len(rows), len(order), "examples with the most errors")
        return table(["errors", "example"], rows, "texts") + f"<p>{note}</p>{which}"

    def _readings(self, tags: Sequence[str]) -> list[Entity]:
        """The entities of tags; where tags are not of entities, each stands for itself."""
        if self._of_entities:
            return entities(tags)
        return [Entity(tag, index, index + 1) for index, tag in enumerate(tags)]

    def _wrong(self, row: Row) -> set[Entity]:
        """What is true and not predicted, and the other way around."""
        if row["label"] == row["predicted"]:
            return set()
        return set(self._readings(row["label"])) ^ set(self._readings(row["predicted"]))

    @cached_property
    def _true(self) -> list[str]:
        return [tag for row in self.rows for tag in row["label"]]

    @cached_property
    def _said(self) -> list[str]:
        return [tag for row in self.rows for tag in row["predicted"]]

    @cached_property
    def _labels(self) -> list[str]:
        return sorted({*self._true, *self._said}, key=lambda tag: (tag != OUTSIDE, tag[2:], tag))

    @cached_property
    def _of_entities(self) -> bool:
        return are_of_entities(self._labels)

    @cached_property
    def _found(self) -> dict[str, Found]:
        return compare(*([row[name] for row in self.rows] for name in ("label", "predicted")))

    @cached_property
    def _sure(self) -> np.ndarray:
        """The probability of each unit's tag, float64 [units]; NaN where it is not known."""
        known = (row.get("probabilities", [None] * len(row["tokens"])) for row in self.rows)
        return np.array([p for of_row in known for p in of_row], np.float64)

    @cached_property
    def _right(self) -> np.ndarray:
        return np.array([t == s for t, s in zip(self._true, self._said, strict=True)], bool)


def _as_json(found: Found) -> dict[str, float]:
    scores = {"precision": found.precision, "recall": found.recall, "f1": found.f1}
    return scores | found._asdict()


def _type_table(found: dict[str, Found]) -> str:
    most = sorted(found, key=lambda kind: -found[kind].true)[:_MOST_TYPES]
    kinds = [(kind, found[kind]) for kind in found if kind in set(most)]
    rows = [
        [
            shown(kind),
            *(share(value) for value in (of.precision, of.recall, of.f1)),
            *(f"{count:,}" for count in of),
        ]
        for kind, of in [*kinds, ("all", total(found.values()))]
    ]
    header = ["type", "precision", "recall", "F1", "true", "predicted", "correct"]
    note = "An entity is correct where its type and both its ends are."
    which = counted(len(kinds), len(found), "most frequent types")
    return table(header, rows) + f"<p>{note}</p>{which}"


def _marked(units: Sequence[str], own: Sequence[Entity], other: Sequence[Entity]) -> str:
    """The units with their own entities marked: right where the other reading has them too."""
    space = "" if all(len(unit) == 1 for unit in units) else " "
    others, parts, done = set(other), [], 0
    units = units[:_MOST_UNITS]
    for entity in own:
        if entity.start >= len(units):
            break
        parts.append(shown(space.join(units[done : entity.start])))
        text = shown(space.join(units[entity.start : entity.end]))
        name, sign = ("right", "&#10003;") if entity in others else ("wrong", "&#10007;")
        kind = f"<small>{shown(entity.type)}</small>&nbsp;{sign}"
        parts.append(f'<mark class="{name}">{text}&nbsp;{kind}</mark>')
        done = entity.end
    parts.append(shown(space.join(units[done:])))
    return " ".join(part for part in parts if part)
