"""A fingerprint of every array of a tree: of all its bits and where they stand, on any mesh."""

import math
from typing import Any

import jax
import jax.numpy as jnp

_GOLDEN = 0x9E3779B9  # 2**32 over the golden ratio: spreads neighbouring positions


@jax.jit
def fingerprint(array: jax.typing.ArrayLike) -> jax.Array:
    """A uint32 scalar of an array of any shape, of numbers or bools.

    An element's bits are mixed with its position by a function that has an inverse, and the results
    are added modulo 2**32. So one changed element always changes the sum, elements that change
    places or change together leave it as it was once in 2**32, and the order of the additions,
    which depends on the sharding, does not matter.
    """
    words = _words(jnp.asarray(array))
    strides = [math.prod(words.shape[axis + 1 :]) for axis in range(words.ndim)]
    position = sum(
        (
            jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride % 2**32)
            for axis, stride in enumerate(strides)
        ),
        # Behind a barrier, or XLA takes the positions for constants: half as fast on a CPU.
        start=jax.lax.optimization_barrier(jnp.uint32(1)),
    )
    return jnp.sum(_mix(words ^ _mix(position * jnp.uint32(_GOLDEN))), dtype=jnp.uint32)


def fingerprints(tree: Any) -> Any:
    """The `fingerprint` of each array of `tree`, computed where the array lies.

    Returns:
      The same tree of uint32 scalars; they are on their way when this returns.
    """
    if all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(tree)):
        # A program for each shape, of which a state has few, compiles in a fraction of the time.
        return jax.tree.map(fingerprint, tree)
    # Devices of a CPU that begin many programs at once can wait for one another without end.
    return _in_one_program(tree)


@jax.jit
def _in_one_program(tree: Any) -> Any:
    return jax.tree.map(fingerprint, tree)


def leaf_names(tree: Any) -> list[str]:
    """The path of each leaf, in their order: `params/encoder/kernel`."""
    paths, _ = jax.tree.flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def _words(array: jax.Array) -> jax.Array:
    """The bits of each element in a uint32, or in several along a new last axis."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 that lets every bit reach every other: `lowbias32` of Chris Wellons.

    https://nullprogram.com/blog/2018/07/31/
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
