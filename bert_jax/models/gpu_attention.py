"""Attention on an NVIDIA GPU as kernels of Triton's, dropout included.

Flash attention (Dao et al., 2022; the backward pass as in FlashAttention-2): a program takes a
block of queries of one head, goes over blocks of keys with a running maximum, and writes context
and, for the backward pass, the logarithm of the softmax's denominator. What grows with L x L stays
in registers, and the bits of dropout are drawn again in the backward pass.

Queries, keys and values come as one product leaves them, [B, L, H, 3 * K], and so do their
gradients go: to take them apart is to write them once more.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.spmd import logical_to_mesh_axes
from jax.experimental import pallas as pl
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import PartitionSpec

from bert_jax.models.dropout import random_bits
from bert_jax.models.gpu_attention_kernels import Blocks, backward_kernel, forward_kernel
from bert_jax.models.kernels import (
    LANES,
    KernelSettings,
    on_each_device,
    padded_ids,
    place_of,
    rate_and_seed,
)
from bert_jax.models.triton import compiler_params, multiplies_from_memory

# The fastest of several on an H100 (docs/gpu_path.md): forward, backward, and backward where a
# program has all keys of a head.
_FORWARD = Blocks(queries=64, keys=32, warps=4, stages=2)
_BACKWARD = Blocks(queries=64, keys=32, warps=4, stages=3)
_BACKWARD_ALONE = Blocks(queries=128, keys=64, warps=8, stages=2)
# Where what is multiplied is in registers, these are the largest for which they are enough.
_BACKWARD_BY_REGISTERS = Blocks(queries=32, keys=32, warps=4, stages=2)
_BACKWARD_ALONE_BY_REGISTERS = Blocks(queries=32, keys=64, warps=8, stages=2)


def gpu_attention(
    stacked: jax.Array,
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_seed: jax.Array | None = None,
    interpret: bool = False,
) -> jax.Array:
    """softmax(query key^T / sqrt(K)) over the keys that the mask leaves, dropout, times value.

    Under the mesh that is set each device works on its own rows and heads, by the logical axes
    "batch" and "heads".

    Args:
      stacked: [B, L, H, 3 * K], of each head queries, keys and values; scores, softmax and sums
        are float32. L is padded to a multiple of 128.
      attention_mask, segment_ids: as for `pallas_attention`.
      dropout_rate: share of the probabilities that are dropped, by `dropout_seed` (uint32 [2]) and
        the bits of `paired_bits`; none are where that is None.
      interpret: run the kernel's steps as XLA operations, on any backend: for tests.

    Returns:
      [B, L, H * K] of the dtype of `stacked`.
    """
    length, heads, features = stacked.shape[1:]
    queries_BL, keys_BL = padded_ids(attention_mask, segment_ids)
    padding = queries_BL.shape[1] - length
    padded = jnp.pad(stacked, ((0, 0), (0, padding), (0, 0), (0, 0)))
    rate, seed = rate_and_seed(dropout_rate, dropout_seed)
    settings = KernelSettings(
        heads=heads,
        width=features // 3,
        length=length,
        rate=rate,
        interpret=interpret,
    )
    rows, columns = logical_to_mesh_axes(("batch", "heads")) or (None, None)

    def of_a_device(seed: jax.Array, stacked: jax.Array, *operands: jax.Array) -> jax.Array:
        here = stacked.reshape(*stacked.shape[:3], 3, settings.width)
        place = place_of(seed, (rows, here.shape[0]), (columns, here.shape[2]))
        return _attend(settings, here, *operands, place)

    specs = PartitionSpec(), PartitionSpec(rows, None, columns, None), *[PartitionSpec(rows)] * 4
    attend = on_each_device(of_a_device, specs, PartitionSpec(rows, None, columns))
    spans = _spans(queries_BL, keys_BL), _spans(keys_BL, queries_BL)
    return attend(seed, padded, queries_BL, keys_BL, *spans)[:, :length]


def _spans(ids: jax.Array, others: jax.Array) -> jax.Array:
    """Of each block of 128 positions, the blocks from the first to the last that has any alike.

    Args:
      ids, others: int32 [B, L], the segments of both.

    Returns:
      int32 [B, L / 128, 2], the first, and the one after the last; 0 and 0 where there are none.
    """
    count = ids.shape[1] // LANES
    alike = (ids[:, :, None] == others[:, None, :]).reshape(-1, count, LANES, count, LANES)
    meets = alike.any(axis=(2, 4))
    first, last = jnp.argmax(meets, axis=2), count - jnp.argmax(meets[:, :, ::-1], axis=2)
    return jnp.where(meets.any(axis=2)[..., None], jnp.stack([first, last], axis=2), 0)


def paired_bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The bits that the kernels drop probabilities by, uint32 [B, H, L, L].

    Of each 128 keys, those of the first half and those of the second share what `random_bits`
    draws for the first: these have its lower 16 bits.
    """
    length = shape[-1]
    bits = random_bits(seed, (*shape[:-1], length + -length % LANES))
    by_half = bits.reshape(*shape[:-1], -1, 2, LANES // 2)[..., 0, :]
    return jnp.stack([by_half << 16, by_half], axis=-2).reshape(bits.shape)[..., :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    settings: KernelSettings,
    stacked: jax.Array,
    queries: jax.Array,
    keys: jax.Array,
    keys_span: jax.Array,
    queries_span: jax.Array,
    place: jax.Array,
) -> jax.Array:
    """`gpu_attention` of one device, [B, L, H * K].

    Args:
      stacked: [B, L, H, 3, K].
      queries, keys: int32 [B, L], the segments of both.
      keys_span, queries_span: of blocks of queries and of keys, see `_spans`.
      place: see `place_of`.
    """
    return _forward(settings, stacked, queries, keys, keys_span, queries_span, place)[0]


def _specs(shape: tuple[int, ...]) -> tuple[list[Any], Any, Any]:
    """Of `place` and `_attend`'s other arrays, of a head's context, and of its denominators."""
    length, width = shape[1], shape[4]
    ids = pl.BlockSpec((None, length), lambda t, h, b: (b, 0))
    span = pl.BlockSpec((None, length // LANES, 2), lambda t, h, b: (b, 0, 0))
    stacked = pl.BlockSpec((None, length, None, 3, width), lambda t, h, b: (b, 0, h, 0, 0))
    operands = [pl.BlockSpec((4,), lambda t, h, b: (0,)), stacked, ids, ids, span, span]
    context = pl.BlockSpec((None, length, width), lambda t, h, b: (b, 0, h))
    return operands, context, pl.BlockSpec((None, None, length), lambda t, h, b: (b, h, 0))


def _forward(settings: KernelSettings, *operands: jax.Array):
    *arrays, place = operands
    stacked = arrays[0]
    batch, length, heads, _, width = stacked.shape
    size = _FORWARD.queries
    context, denominators = pl.pallas_call(
        functools.partial(forward_kernel, settings, _FORWARD),
        grid=(length // size, heads, batch),
        in_specs=_specs(stacked.shape)[0],
        out_specs=[
            pl.BlockSpec((None, size, width), lambda q, h, b: (b, q, h)),
            pl.BlockSpec((None, None, size), lambda q, h, b: (b, h, q)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, heads * width), stacked.dtype),
            jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
        ],
        compiler_params=compiler_params(_FORWARD.warps, _FORWARD.stages),
        interpret=settings.interpret,
        name="attention_forward",
    )(place, *arrays)
    return _declared(context, 2, stacked), (*operands, context, denominators)


def _declared(result: jax.Array, products: int, stacked: jax.Array) -> jax.Array:
    """`result` of a kernel that says what it computes: so many products of all pairs, padding too.

    XLA has no other place for it in a program for a GPU; `planning.hlo` reads it.
    """
    batch, length, heads, _, width = stacked.shape
    flops = 2 * products * batch * heads * length**2 * width
    told: Any = set_xla_metadata(result, flops=str(flops))
    return told


def _backward_blocks(length: int) -> Blocks:
    """By the length of a row, and the GPU."""
    if multiplies_from_memory():
        return _BACKWARD_ALONE if length == LANES else _BACKWARD
    return _BACKWARD_ALONE_BY_REGISTERS if length == LANES else _BACKWARD_BY_REGISTERS


def _backward(settings: KernelSettings, residuals: tuple[jax.Array, ...], gradient: jax.Array):
    *arrays, place, context, denominators = residuals
    stacked = arrays[0]
    batch, length, heads, _, width = stacked.shape
    # What softmax takes from the gradient of a query's scores: of the context it is the same sum.
    products = context.astype(jnp.float32) * gradient.astype(jnp.float32)
    along_BHL = products.reshape(batch, length, heads, width).sum(axis=-1).swapaxes(1, 2)
    blocks = _backward_blocks(length)
    in_specs, of_context, of_head = _specs(stacked.shape)
    stacked_gradient = pl.pallas_call(
        functools.partial(backward_kernel, settings, blocks),
        grid=(length // (2 * blocks.keys), heads, batch),
        in_specs=[*in_specs, of_head, of_head, of_context],
        out_specs=in_specs[1],
        out_shape=jax.ShapeDtypeStruct(stacked.shape, stacked.dtype),
        compiler_params=compiler_params(blocks.warps, blocks.stages),
        interpret=settings.interpret,
        name="attention_backward",
    )(place, *arrays, denominators, along_BHL, gradient)
    return _declared(stacked_gradient, 5 if length == LANES else 7, stacked), *[None] * 5


_attend.defvjp(_forward, _backward)
