"""What the kernels for TPUs and GPUs have in common."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bert_jax.models.dropout import part_of_mesh

# What lengths are padded to: the lanes of a TPU's registers, and two blocks of keys on a GPU.
LANES = 128


@dataclasses.dataclass(frozen=True)
class KernelSettings:
    """What a kernel of attention must know that the shapes on its device do not tell.

    Attributes:
      heads: of the model, on all devices.
      width: of a head.
      length: of a sequence before it is padded.
      rate: of dropout.
      interpret: run its steps as XLA operations, on any backend: for tests.
    """

    heads: int
    width: int
    length: int
    rate: float
    interpret: bool


def padded_ids(
    attention_mask: jax.Array | None, segment_ids: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The segments of queries and of keys, int32 [B, L] each, L padded: alike, they attend.

    Args:
      attention_mask: [B, L], 1 = attend to this key. A row without any such key attends to all of
        them.
      segment_ids: int32 [B, L], 0 = padding, in its place where rows are packed.
    """
    keys_BL = segment_ids
    if keys_BL is None:
        assert attention_mask is not None
        attended_BL = (attention_mask > 0) | ~jnp.any(attention_mask > 0, axis=1, keepdims=True)
        keys_BL = attended_BL.astype(jnp.int32)
    keys_BL = jnp.pad(keys_BL, ((0, 0), (0, -keys_BL.shape[1] % LANES)))
    # Unpacked, queries are all of segment 1, as are the keys to attend to: what padding asks for
    # is computed like the rest, as in plain attention, and nobody reads it.
    return jnp.ones_like(keys_BL) if segment_ids is None else keys_BL, keys_BL


def rate_and_seed(rate: float, seed: jax.Array | None) -> tuple[float, jax.Array]:
    """Of dropout, as a kernel takes them, which has a seed (uint32 [2]) whether or not it drops."""
    return (0.0, jnp.zeros(2, jnp.uint32)) if seed is None else (rate, seed)


def place_of(seed: jax.Array, *entries: tuple[Any, int]) -> jax.Array:
    """What a kernel on a device draws by, uint32 [4]: the seed [2], and where its part begins.

    Args:
      seed: of the whole array.
      entries: of two axes of the array: how it is divided (see `part_of_mesh`), and the size of
        this device's part.
    """
    return jnp.stack([*seed, *(part_of_mesh(entry) * size for entry, size in entries)])


def on_each_device(
    function: Callable[..., jax.Array], in_specs: tuple[Any, ...], out_specs: Any
) -> Callable[..., jax.Array]:
    """`function` of the parts that each device of the mesh has, if one is set.

    The compiler cannot divide a kernel among devices.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    # Over an axis that divides nothing here JAX would add up gradients of which all have the whole.
    specs = (*in_specs, out_specs)
    dividing = {name for spec in specs for name in jax.tree.leaves(tuple(spec))}
    # Kernels do not say over which axes their outputs vary.
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, axis_names=dividing, check_vma=False
    )


def summed(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """Sum over an axis of each, in float32."""
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)
