"""A model in memory as far as its files are: config, vocabulary, and tensors that wait unread."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.names import CLASSIFIER, PARTS, POOLER, Row, Stored, axis_sizes, table_rows

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(jnp.bfloat16),
}
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array that is read when it is asked for: each `read` reads it again."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model from files.

    Attributes:
      source: where it was read, for messages.
      form: of the source, in words.
      config: of the model, computed as this package does by default.
      architecture: a key of `names.PARTS`, the one whose heads are here.
      tensors: by their names in `names`' table, in the shapes that they have here (unrolled,
        unpadded), in the dtype that they are stored in; and those of `own`.
      tokenizer: None where the source has none.
      vocab: where `load_tokenizer` finds it.
      head_fields: what a config.json says of labels.
      facts: what is known of the training: fields of a run's files, for a model card.
      missing: names of the source's architecture that it does not hold.
      left_over: names in the source that this package does not know; they are not converted.
      dropped: what is known and not needed, with the reason.
      notes: what else a person should know of the conversion.
    """

    source: str
    form: str
    config: BertConfig
    architecture: str
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer | None = None
    vocab: Path = Path()
    head_fields: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def next_sentence(self) -> bool:
        """Whether it has a pooler, which comes with next-sentence prediction here."""
        return f"{POOLER}/dense/kernel" in self.tensors

    def needed_tokenizer(self) -> Tokenizer:
        """The vocabulary.

        Raises:
          UserError: there is none.
        """
        if self.tokenizer is None:
            raise UserError(
                f"{self.source}: has no vocabulary, which says what the rows of its embedding are; "
                "put its vocab.txt or tokenizer.json there"
            )
        return self.tokenizer

    def check_pairs(self) -> None:
        """Check that it tells the second text of a pair from the first.

        Raises:
          UserError: it has one token type.
        """
        if self.config.type_vocab_size < 2:
            raise UserError(
                f"{self.source}: type_vocab_size is {self.config.type_vocab_size}, and pairs of "
                "texts have two token types; give another model"
            )

    def fingerprint(self) -> str:
        """Of all that a run begins with: what the head is of, too."""
        return f"{self.digest()} {json.dumps([self.architecture, dict(self.head_fields)])}"

    def digest(self) -> str:
        """A hex hash of the sizes, the vocabulary and the tensors, which are read one by one."""
        vocabulary = self.tokenizer.digest if self.tokenizer else None
        digest = hashlib.blake2b(json.dumps([asdict(self.config), vocabulary]).encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(name.encode() + tensor.read().tobytes())
        return digest.hexdigest()

    @property
    def labels(self) -> int:
        """Number of labels of its classifier; 2 where it has none, as in transformers."""
        bias = self.tensors.get(f"{CLASSIFIER}/bias")
        return bias.shape[0] if bias else 2

    @property
    def own(self) -> dict[str, Tensor]:
        """The tensors of a head that the table does not have, by the names of its parameters."""
        known = {row.ours for row in self.rows()}
        return {name: tensor for name, tensor in self.tensors.items() if name not in known}

    def rows(self) -> list[Row]:
        """The rows of the table that it holds."""
        return [
            row for row in table_rows(self.config.num_hidden_layers) if row.ours in self.tensors
        ]


@dataclass(frozen=True, slots=True)
class Matched:
    """The tensors of a file under our names, and what did not match."""

    architecture: str
    tensors: dict[str, Tensor]
    missing: tuple[str, ...]
    left_over: tuple[str, ...]


def match_names(
    stored: Mapping[str, Tensor],
    config: BertConfig,
    stored_name: Callable[[Row], Stored],
    architecture: str | None,
    where: str,
) -> Matched:
    """Tensors of a file under the names and in the shapes that they have here.

    Args:
      stored: the tensors of the file, by name.
      config: of the file.
      stored_name: which column of the table the file goes by.
      architecture: the one that the file's config names, if it does.
      where: what errors call the file.

    Raises:
      UserError: a tensor of the encoder is missing, or a part of a head; tensors whose shape is not
        the config's or that hold no floats; more layers than the config has.
    """
    if config.num_hidden_layers > len(stored):
        raise UserError(
            f"{where}: config says num_hidden_layers={config.num_hidden_layers}, and the file has "
            f"{len(stored)} tensors"
        )
    rows = {stored_name(row).name: row for row in table_rows(config.num_hidden_layers)}
    found = {name: row for name, row in rows.items() if name in stored}
    scopes = {row.scope for row in found.values()}
    kept = _kept_scopes(scopes, architecture)
    absent = [name for name, row in rows.items() if row.scope in kept and name not in stored]
    if absent:
        raise UserError(f"{where}: tensors are missing: {_listed(absent)}")
    found = {name: row for name, row in found.items() if row.scope in kept}
    left_over = sorted(stored.keys() - found.keys())
    layers = [name for name in left_over if _layer(name) >= config.num_hidden_layers]
    if layers:
        raise UserError(
            f"{where}: config says num_hidden_layers={config.num_hidden_layers}, and the file has "
            f"tensors of other layers: {_listed(layers)}"
        )
    sizes = axis_sizes(config, _labels(stored, rows))
    _check(stored, found, stored_name, sizes, where)
    expected = PARTS[architecture] if architecture else set()
    return Matched(
        architecture=architecture_of(kept, architecture),
        tensors={
            row.ours: _ours(stored[name], stored_name(row), row.shape(sizes))
            for name, row in found.items()
        },
        missing=tuple(name for name, row in rows.items() if row.scope in expected - kept),
        left_over=tuple(left_over),
    )


def _layer(name: str) -> int:
    """The number of the encoder layer that a tensor of a file is of; -1 for none."""
    found = re.search(r"encoder[./]layer[._](\d+)[./]", name)
    return int(found[1]) if found else -1


def stored_tensors(
    weights: Weights, stored_name: Callable[[Row], Stored], dtype: np.dtype
) -> dict[str, Tensor]:
    """The tensors of a model under the names, in the shapes and in the dtype of a file to write.

    Reading one raises a UserError where a value is too large for `dtype`.
    """
    sizes = axis_sizes(weights.config, weights.labels)
    return {
        stored_name(row).name: _theirs(
            weights.tensors[row.ours], stored_name(row), row.matrix_shape(sizes), dtype
        )
        for row in weights.rows()
    }


def architecture_of(scopes: set[str], named: str | None = None) -> str:
    """The architecture whose heads are `scopes`: the one named, where it is one of several."""
    heads = {scope for scope in scopes if not scope.startswith("bert/")}
    same = [name for name, parts in PARTS.items() if parts - {POOLER} == heads]
    return named if named in same else same[0]


def parameter_count(weights: Weights) -> int:
    """Number of values in all tensors."""
    return sum(int(np.prod(tensor.shape)) for tensor in weights.tensors.values())


def _kept_scopes(scopes: set[str], named: str | None) -> set[str]:
    """The scopes to convert: all, unless no architecture has those heads together."""
    encoder = {row.scope for row in table_rows(1) if row.scope.startswith("bert/e")}
    heads = scopes - encoder - {POOLER}
    if not any(parts - {POOLER} == heads for parts in PARTS.values()):
        heads &= PARTS[named or "BertForPreTraining"]
    return encoder | (scopes & {POOLER}) | heads


def _labels(stored: Mapping[str, Tensor], rows: Mapping[str, Row]) -> int:
    bias = next(name for name, row in rows.items() if row.ours == f"{CLASSIFIER}/bias")
    return stored[bias].shape[0] if bias in stored and stored[bias].shape else 2


def _check(
    stored: Mapping[str, Tensor],
    found: Mapping[str, Row],
    stored_name: Callable[[Row], Stored],
    sizes: Mapping[str, int],
    where: str,
) -> None:
    wrong = []
    for name, row in found.items():
        step = -1 if stored_name(row).transposed else 1
        expected = row.matrix_shape(sizes)[::step]
        if stored[name].shape != expected:
            wrong.append(f"{name} is {list(stored[name].shape)} and not {list(expected)}")
        elif stored[name].dtype not in DTYPES.values():
            wrong.append(f"{name} is {stored[name].dtype}: one of {', '.join(DTYPES)} is supported")
    if wrong:
        raise UserError(f"{where}: tensors disagree with the config: {_listed(wrong)}")


def _ours(tensor: Tensor, stored: Stored, shape: tuple[int, ...]) -> Tensor:
    def read() -> np.ndarray:
        array = tensor.read()
        return (array.T if stored.transposed else array).reshape(shape)

    return Tensor(shape, tensor.dtype, read)


def _theirs(tensor: Tensor, stored: Stored, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    def read() -> np.ndarray:
        array = tensor.read().reshape(shape)
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        if not np.array_equal(np.isfinite(cast), np.isfinite(array)):
            raise UserError(
                f"{stored.name}: a value is too large for {dtype}; choose another --dtype"
            )
        return cast.T if stored.transposed else cast

    return Tensor(shape[::-1] if stored.transposed else shape, dtype, read)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
