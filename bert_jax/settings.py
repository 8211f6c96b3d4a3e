"""What a setting is: a dataclass field with a default, its help and the values it may have."""

import dataclasses
import sys
from collections.abc import Set
from typing import Any

from bert_jax.errors import UserError

_FRACTIONS_FROM_ZERO = {
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "short_seq_prob",
    "b1",
    "b2",
    "warmup_fraction",
}
_FRACTIONS = {*_FRACTIONS_FROM_ZERO, "heldout_fraction", "mask_prob", "dev_fraction"}
# Settings that may be zero; every other number must be positive.
_MAY_BE_ZERO = {
    *_FRACTIONS_FROM_ZERO,
    "seed",
    "pad_token_id",
    "warmup_steps",
    "weight_decay",
    "clip_norm",
    "spike_sigmas",
    "freeze_layers",
    "patience",
    "choices",
}
_MAY_BE_NEGATIVE = {"null_threshold"}  # and zero
# What stands for all: of the devices left, or of the layers.
_MAY_BE_MINUS_ONE = {"mesh.data", "mesh.fsdp", "mesh.tensor", "freeze_layers"}
SHORTEST = 8  # pieces of a sequence: room for special ones and for a text
_LENGTHS = {"seq_len", "max_length"}
# Of a seed all 32 bits count; other whole numbers are int32, as steps are.
_SEEDS, _INTEGERS = 2**32, 2**31


def setting(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with the sentence that `--help` prints and, for names, its choices."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


def group(schema: type, help: str) -> Any:
    """A dataclass field that holds a group of settings, one fresh instance a config."""
    return dataclasses.field(default_factory=schema, metadata={"help": help, "choices": ()})


def walk(node: Any, prefix: str = "") -> list[tuple[str, Any, dataclasses.Field]]:
    """Every setting under `node`: its dotted path, its value and its field."""
    found = []
    for spec in dataclasses.fields(node):
        value, path = getattr(node, spec.name), prefix + spec.name
        if dataclasses.is_dataclass(value):
            found += walk(value, path + ".")
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for index, item in enumerate(value):
                found += walk(item, f"{path}[{index}].")
        else:
            found.append((path, value, spec))
    return found


def holds_names(spec: dataclasses.Field) -> bool:
    """Whether a setting is any number of texts: names of columns, labels or files."""
    return spec.type == tuple[str, ...]


def is_of_type(value: Any, default: Any) -> bool:
    """Whether a setting may have the value: one of its default's type, or an int for a float."""
    if isinstance(value, bool) or isinstance(default, bool):
        return type(value) is type(default)
    if isinstance(default, float) and type(value) is int:
        return abs(value) <= sys.float_info.max
    return isinstance(value, type(default))


def check_values(node: Any, where: str, derived: Set[str] = frozenset()) -> None:
    """Check every setting under `node` by itself; its type is right already.

    Args:
      node: a dataclass of settings.
      where: what stands before their paths in an error: "config.".
      derived: paths of numbers that are not checked.

    Raises:
      UserError: naming the setting, its value and what it may be.
    """
    for path, value, spec in walk(node):
        choices = spec.metadata["choices"]
        if choices and value not in choices:
            raise UserError(f"{where}{path}={value!r}: choose one of {', '.join(choices)}")
        if isinstance(value, int | float) and not isinstance(value, bool) and path not in derived:
            _check_number(path, value, spec.name, where)


def _check_number(path: str, value: float, name: str, where: str) -> None:
    if value == -1 and path in _MAY_BE_MINUS_ONE:
        return
    if name in _MAY_BE_NEGATIVE and abs(value) < float("inf"):
        return
    if not 0 <= value < float("inf") or (value == 0 and name not in _MAY_BE_ZERO):
        raise UserError(f"{where}{path}={value}: must be positive")
    if name in _LENGTHS and value < SHORTEST:
        raise UserError(f"{where}{path}={value}: must be at least {SHORTEST}")
    if name in _FRACTIONS and value >= 1:
        raise UserError(f"{where}{path}={value}: must be a fraction below 1")
    end = _SEEDS if name == "seed" else _INTEGERS
    if isinstance(value, int) and value >= end:
        raise UserError(f"{where}{path}={value}: must be below {end:,}")
