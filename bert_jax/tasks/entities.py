"""Entities in sequences of tags, and how well predicted ones meet true ones.

A tag is O, outside, or a place and a type: B-PER begins an entity, I-PER goes on with it (IOB2).
In IOB1 (Tjong Kim Sang and Veenstra, 1999, "Representing Text Chunks") entities begin with I-PER,
and B-PER only parts one from a neighbour of its type. IOBES ends one with E-PER; S-PER is alone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"


class Entity(NamedTuple):
    """Units `start` up to `end`, exclusive, are something of this type."""

    type: str
    start: int
    end: int


class Found(NamedTuple):
    """How many entities are there, are predicted, and are both: of type and of both ends."""

    true: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of the predicted ones that are true; 0 where there are none."""
        return self.correct / max(self.predicted, 1)

    @property
    def recall(self) -> float:
        """The share of the true ones that are predicted; 0 where there are none."""
        return self.correct / max(self.true, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 where there are neither."""
        return 2 * self.correct / max(self.true + self.predicted, 1)


def are_of_entities(tags: Iterable[str]) -> bool:
    """Whether tags are those of entities: O or a place and a type, and not O alone."""
    kinds = set(tags) - {OUTSIDE}
    return bool(kinds) and all(re.fullmatch("[BIES]-.+", kind) for kind in kinds)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sequence of tags in IOB1, IOB2 or IOBES, by the rules of `conlleval`.

    These are `seqeval`'s by default, too: a tag that cannot go on with what is before it begins an
    entity, so that every sequence of tags has a reading.
    """
    found = []
    start, before, before_kind = 0, OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        place, _, kind = tag.partition("-")
        if place not in ("I", "E") or before not in ("B", "I") or kind != before_kind:
            if before != OUTSIDE:
                found.append(Entity(before_kind, start, index))
            start = index
        before, before_kind = place, kind
    return found


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """The same entities in IOB2. Tags that are not of entities stay as they are."""
    if not are_of_entities(tags):
        return tuple(tags)
    found = [OUTSIDE] * len(tags)
    for kind, start, end in entities(tags):
        found[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tuple(found)


def compare(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, Found]:
    """How well the entities of sequences are found, by type, in the types' order.

    Args:
      true: tags of each sequence.
      predicted: as many, of as many units.
    """
    counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for of_true, of_predicted in zip(true, predicted, strict=True):
        both = entities(of_true), entities(of_predicted)
        for counter, group in zip(counts, (*both, set(both[0]) & set(both[1])), strict=True):
            counter.update(entity.type for entity in group)
    kinds = sorted(counts[0].keys() | counts[1].keys())
    return {kind: Found(*(counter[kind] for counter in counts)) for kind in kinds}


def total(found: Iterable[Found]) -> Found:
    """All types together, each entity counting the same."""
    return Found(*map(sum, zip(*found, strict=True))) if (found := list(found)) else Found(0, 0, 0)
