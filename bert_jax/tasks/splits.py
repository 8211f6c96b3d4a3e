"""The names of sets of examples, and a dev set held out of training where there is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from bert_jax.data.heldout import is_heldout
from bert_jax.errors import UserError
from bert_jax.tasks.task import Example

E = TypeVar("E", bound=Example)


def set_name(path: str | Path) -> str:
    """What a set is called by its file in predictions and scores: train-dev.tsv gives train-dev."""
    return Path(path).name.split(".")[0]


def held_out(examples: Sequence[E], fraction: float) -> tuple[list[E], list[E]]:
    """The examples to train on, and those held out, each in the order given.

    A hash of its group, which is its text as a rule, says where an example goes, so neither the
    order nor the other examples matter, and examples of the same group (but for case and spaces)
    are on one side.

    Args:
      examples: whose `group` is hashed.
      fraction: expected share of the distinct groups that is held out.

    Raises:
      UserError: one side is left empty.
    """
    sides: tuple[list[E], list[E]] = [], []
    for example in examples:
        sides[is_heldout([example.group], fraction)].append(example)
    if not all(sides):
        raise UserError(
            f"config.task.dev_fraction={fraction} leaves {len(sides[0])} of {len(examples)} "
            f"examples to train on and {len(sides[1])} to score: give config.task.dev, or another "
            "fraction"
        )
    return sides
