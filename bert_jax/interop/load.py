"""Any source of weights to `Weights`, and `Weights` into the parameters of a model."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError
from bert_jax.interop.google import read_google
from bert_jax.interop.huggingface import download, read_huggingface
from bert_jax.interop.weights import Tensor, Weights

_VOCABULARY = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")
_POSITIONS = "bert/embeddings/position_embeddings"


def load_weights(source: str | Path) -> Weights:
    """The model at `source`, its tensors unread.

    Args:
      source: a Hugging Face directory, or the name of a model of its hub; a directory of Google's,
        or the prefix of a checkpoint there; a run directory of this package.

    Raises:
      UserError: none of these, or one that is damaged or contradicts itself.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        weights = _reader(path)(path)
    elif path.with_name(path.name.removesuffix(".index") + ".index").is_file():
        weights = read_google(path)
    elif not path.exists() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)):
        weights = read_huggingface(download(str(source)))
    else:
        raise UserError(f"{source}: no such directory, checkpoint or name of a model")
    return _with_checked_vocabulary(weights)


def resized(weights: Weights, max_position_embeddings: int) -> Weights:
    """The model for sequences of at most `max_position_embeddings` pieces.

    Rows beyond are cut. Rows that are wanted beyond repeat the table from its start, so that
    position 512 begins as position 0 did: neighbours stay what they were, and training on long
    text finds the rest (Beltagy et al., 2020, "Longformer", section 5).
    """
    table = weights.tensors[_POSITIONS]

    def read() -> np.ndarray:
        return np.resize(table.read(), shape)

    shape = (max_position_embeddings, table.shape[1])
    return replace(
        weights,
        config=replace(weights.config, max_position_embeddings=max_position_embeddings),
        tensors={**weights.tensors, _POSITIONS: Tensor(shape, table.dtype, read)},
    )


def load_params(weights: Weights, like: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The parameters of a model, each read straight into its sharding, the largest first.

    The host holds one leaf at a time beside what the devices hold.

    Args:
      weights: from `load_weights`.
      like: the tree of the model's parameters, from the scopes `bert` and `cls` down: arrays, or
        `jax.ShapeDtypeStruct` with shardings. Layers may be stacked or not, and the vocabulary
        padded; rows that pad it are 0.

    Returns:
      The tree, and the names of the leaves that `weights` has nothing for: they are as in `like`.

    Raises:
      UserError: a shape that is not the model's, or a tensor that cannot be read.
    """
    leaves: dict[str, Any] = dict(flatten_dict(like, sep="/"))
    missing = []
    for name in sorted(leaves, key=lambda name: -leaves[name].size):
        tensors = _tensors_of_leaf(weights, name)
        if tensors:
            leaves[name] = _placed(name, tensors, leaves[name])
        else:
            missing.append(name)
    return unflatten_dict(leaves, sep="/"), sorted(missing)


def _reader(directory: Path) -> Any:
    """What reads a directory: it is known by its files."""
    if any(directory.glob("*.safetensors*")) or not any(directory.glob("*.index")):
        return read_huggingface
    return read_google


def _with_checked_vocabulary(weights: Weights) -> Weights:
    rows = weights.config.vocab_size
    if weights.tokenizer is None:
        return replace(weights, notes=(*weights.notes, "the source has no vocabulary"))
    pieces = weights.tokenizer.vocab_size
    if pieces > rows:
        raise UserError(
            f"{weights.source}: its vocabulary has {pieces} pieces and its embedding {rows} rows: "
            "they are not of one model"
        )
    if pieces < rows:
        note = f"{rows - pieces} rows of the embedding have no piece in the vocabulary"
        weights = replace(weights, notes=(*weights.notes, note))
    return weights


def _tensors_of_leaf(weights: Weights, name: str) -> list[Tensor]:
    """What a leaf is made of: a tensor, or one a layer where layers are stacked."""
    if not name.startswith("bert/encoder/layer/"):
        return [weights.tensors[name]] if name in weights.tensors else []
    layers = range(weights.config.num_hidden_layers)
    return [weights.tensors[name.replace("/layer/", f"/layer_{i}/", 1)] for i in layers]


def _placed(name: str, tensors: list[Tensor], leaf: Any) -> jax.Array:
    host = np.zeros(leaf.shape, leaf.dtype)
    stacked = name.startswith("bert/encoder/layer/")
    _check_shape(name, tensors, leaf.shape, stacked)
    for index, tensor in enumerate(tensors):
        (host[index] if stacked else host)[: tensor.shape[0]] = tensor.read()
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.make_array_from_callback(leaf.shape, sharding, lambda index: host[index])
    return placed.block_until_ready()


def _check_shape(name: str, tensors: list[Tensor], shape: tuple[int, ...], stacked: bool) -> None:
    given = (len(tensors), *tensors[0].shape) if stacked else tensors[0].shape
    padded = name in _VOCABULARY and given[0] <= shape[0] and given[1:] == shape[1:]
    if given != shape and not padded:
        raise UserError(f"{name} is {list(given)} in the weights and {list(shape)} in the model")
