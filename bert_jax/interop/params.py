"""`Weights` into the parameters of a model."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError
from bert_jax.interop.weights import Tensor, Weights

# Tables with a row a piece, which may be padded.
VOCABULARY = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")


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
      UserError: a shape that is not the model's, or a tensor that cannot be read, or that holds
        what is no finite number.
    """
    leaves: dict[str, Any] = dict(flatten_dict(like, sep="/"))
    missing = []
    for name in sorted(leaves, key=lambda name: -leaves[name].size):
        tensors = _tensors_of_leaf(weights, name)
        if tensors:
            leaves[name] = _placed(weights.source, name, tensors, leaves[name])
        else:
            missing.append(name)
    return unflatten_dict(leaves, sep="/"), sorted(missing)


def stacked_name(name: str) -> tuple[str, int | None]:
    """The leaf that holds a parameter where layers are stacked, and the layer's place in it."""
    found = re.fullmatch(r"(bert/encoder/layer)_(\d+)(/.+)", name)
    return (found[1] + found[3], int(found[2])) if found else (name, None)


def _tensors_of_leaf(weights: Weights, name: str) -> list[Tensor]:
    """What a leaf is made of: a tensor, or one a layer where layers are stacked."""
    if not name.startswith("bert/encoder/layer/"):
        return [weights.tensors[name]] if name in weights.tensors else []
    layers = range(weights.config.num_hidden_layers)
    return [weights.tensors[name.replace("/layer/", f"/layer_{i}/", 1)] for i in layers]


def _placed(source: str, name: str, tensors: list[Tensor], leaf: Any) -> jax.Array:
    host = np.zeros(leaf.shape, leaf.dtype)
    stacked = name.startswith("bert/encoder/layer/")
    _check_shape(name, tensors, leaf.shape, stacked)
    for index, tensor in enumerate(tensors):
        (host[index] if stacked else host)[: tensor.shape[0]] = tensor.read()
    if not np.isfinite(host).all():
        # One such number makes every answer NaN, and every step of training one to skip.
        raise UserError(
            f"{source}: {name} holds NaN or infinity: its training has failed, or the file is "
            "damaged; give another model"
        )
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.make_array_from_callback(leaf.shape, sharding, lambda index: host[index])
    return placed.block_until_ready()


def _check_shape(name: str, tensors: list[Tensor], shape: tuple[int, ...], stacked: bool) -> None:
    given = (len(tensors), *tensors[0].shape) if stacked else tensors[0].shape
    padded = name in VOCABULARY and given[0] <= shape[0] and given[1:] == shape[1:]
    if given != shape and not padded:
        raise UserError(f"{name} is {list(given)} in the weights and {list(shape)} in the model")
