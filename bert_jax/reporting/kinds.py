"""The kinds of predictions that a report knows, told by their shape: a new task needs none."""

from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.reporting.answers import Answers
from bert_jax.reporting.classes import Classes
from bert_jax.reporting.findings import Findings, Row
from bert_jax.reporting.several_labels import SeveralLabels
from bert_jax.reporting.tags import Tags
from bert_jax.reporting.values import Values

_KINDS: tuple[type[Findings], ...] = (Tags, SeveralLabels, Answers, Classes, Values)


def findings(rows: Sequence[Row], where: str) -> Findings | None:
    """What predictions show; None where one has no label, or they are of a kind of their own.

    Args:
      rows: of a set, as `Task.predictions`.
      where: their file, for messages.

    Raises:
      UserError: one is not of the same kind as the first.
    """
    if not rows or not all("label" in row for row in rows):
        return None
    kind = next((kind for kind in _KINDS if kind.fits(rows[0])), None)
    if kind is None:
        return None
    for number, row in enumerate(rows, 1):
        if not kind.fits(row):
            raise UserError(
                f"{where}:{number}: not a prediction like that of the first line; "
                "restore the file or remove it"
            )
    return kind(rows)


def figures(rows: Sequence[Row], where: str) -> dict[str, Any]:
    """`Findings.figures` of predictions, nothing where there are no findings."""
    found = findings(rows, where)
    return found.figures() if found else {}
