"""What each command of `predict` is to its command line, and what it reads of a model."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.interop.params import load_params
from bert_jax.interop.weights import Weights
from bert_jax.tasks.task import Feature

_HEADS = {
    "bert/pooler": "pooler",
    "cls/predictions": "masked-LM head",
    "cls/seq_relationship": "next-sentence head",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """What is asked: texts, one for each of a predictor's columns, and the place they are from."""

    where: str
    texts: tuple[str, ...]


class Predictor(ABC):
    """Answers items.

    Attributes:
      columns: what the texts of an item are called: columns of a file, words to ask a person with.
      file_header: names of the columns of tables that do not name them.
      header: of the table that `rows` are of.
      chunk: items that are predicted together; what they come to is in memory at once.
      max_length: of a sequence, in pieces; of what is called `cuttable`.
      cuttable: what may be longer, in words.
      cut_text: what is done with it, in words.
    """

    columns: tuple[str, ...]
    file_header: tuple[str, ...] = ()
    header: tuple[str, ...]
    chunk: int = 1024
    max_length: int
    cuttable: str = "texts"
    cut_text: str = "were cut"

    def item(self, where: str, texts: tuple[str, ...]) -> Any:
        """What `predict` takes, of texts.

        Raises:
          UserError: texts that cannot be answered; `where` is named.
        """
        return Item(where, texts)

    def read(self, path: Path) -> list[Any] | None:
        """The items of a file in a form of the predictor's own; None of lines and of tables."""
        del path

    @abstractmethod
    def predict(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """What the model says of each item: JSON, but for NumPy arrays.

        "cut" is true where the model could not read all of a text.
        """

    @abstractmethod
    def rows(self, prediction: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """A prediction as rows of a table for people."""


def unrolled(config: BertConfig) -> BertConfig:
    """The config with each layer's parameters apart, which is fastest to run."""
    return dataclasses.replace(config, scan_layers=False)


def kernels_as(dtype: str, params: Any) -> Any:
    """Parameters, the encoder's kernels in the dtype that its products take them in.

    Answers stay as they are, bit for bit, and no batch casts them again.
    """

    def one(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        names = [entry.key for entry in path]
        return leaf.astype(dtype) if "encoder" in names and names[-1] == "kernel" else leaf

    return jax.tree_util.tree_map_with_path(one, params)


def needed_params(
    weights: Weights,
    model: Any,
    *more: Any,
    scope: str = "",
    shape: tuple[int, ...] = (1, 8),
) -> Any:
    """The parameters of `model`, on the first device, as `kernels_as` of its dtype.

    Args:
      weights: where they are from.
      model: whose parameters are wanted; its layers are unrolled.
      more: what it is called with after input_ids, token_type_ids and attention_mask.
      scope: where `model` stands in `weights`, if not at the top.
      shape: of input_ids, as small as any.

    Raises:
      UserError: `weights` lack some.
    """
    ids = np.zeros(shape, np.int32)

    def init(key: jax.Array) -> Any:
        params = nn.unbox(model.init(key, ids, ids, ids, *more))["params"]
        return kernels_as(model.config.dtype, params)

    tree = jax.eval_shape(init, jax.random.key(0))
    params, missing = load_params(weights, {scope: tree} if scope else tree)
    if missing:
        names = sorted({"/".join(name.split("/")[:2]) for name in missing})
        lacking = " and ".join(f"no {_HEADS.get(name, name)}" for name in names)
        raise UserError(
            f"{weights.source}: is a {weights.architecture} and has {lacking}; give a model that "
            "was trained with one"
        )
    return params[scope] if scope else params


def encoder_inputs(batch: Mapping[str, jax.Array]) -> list[jax.Array]:
    """What every model takes first, int32 [B, L] each."""
    return [batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")]


def share(probability: float) -> str:
    """A probability for people."""
    return f"{probability:.4f}"


def encode_noting_cuts(
    count: int, encode: Callable[[Sequence[int], int], list[list[Feature]]], max_length: int
) -> tuple[list[list[Feature]], list[dict[str, bool]]]:
    """The features of texts, and {"cut": True} for those that were cut, {} for others.

    Args:
      count: of the texts.
      encode: the features of each of the texts with these numbers, none longer than that.
      max_length: of a feature.
    """
    features = encode(range(count), max_length)
    full = [row for row in range(count) if _length(features[row]) == max_length]
    # Whether there is one more piece shows where there is room for it.
    longer = zip(full, encode(full, max_length + 1) if full else [], strict=True)
    cut = {row for row, of_text in longer if _length(of_text) > max_length}
    return features, [{"cut": True} if row in cut else {} for row in range(count)]


def _length(features: list[Feature]) -> int:
    """Pieces of a text's feature; 0 where it has several, windows that lose nothing."""
    # Not of the array: choices are padded to a length that programs share.
    return int(features[0]["attention_mask"].sum(axis=-1).max()) if len(features) == 1 else 0
