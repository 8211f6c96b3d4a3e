"""Attention on a TPU as one kernel, dropout included: what grows with L x L never leaves the chip.

Plain attention writes the probabilities of a layer, [B, H, L, L], to the main memory and reads them
again for dropout, for the product with the values and for the gradients. Here a step of the grid
holds those of a sequence's heads in vector memory, 1 MiB a head in float32 at length 512, and the
backward pass computes them again. As all keys are there at once, softmax is a plain one, without
the running maximum of flash attention (Dao et al., 2022), and the bits of dropout are those of
`random_bits` for the whole array: a run may change between this and plain attention.

Operands are [B, L, H * K], as the product of a projection is laid out: an array whose last axis is
a head, 64 wide, is padded to the TPU's 128 lanes, and takes twice its bytes. A step takes the heads
that fill the lanes, two of 64, and works on one with the other's lanes set to zero: a product over
128 lanes takes a matrix unit of 128 x 128 as long as one over 64.

Scores are of keys times queries, [M, Q]. So softmax reduces over registers and not over the lanes
of one, and two of the three sums over queries in the backward pass need no transposed operand.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.spmd import logical_to_mesh_axes
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from bert_jax.models.dropout import kept, row_bits, row_states
from bert_jax.models.kernels import (
    LANES,
    KernelSettings,
    on_each_device,
    padded_ids,
    place_of,
    rate_and_seed,
    summed,
)

# Positions of a step. A step costs about a third of a microsecond whatever it does; one sequence
# of 128 and two heads are no more than that on a v5e. In all 512 x 512 scores of a head, 1 MiB in
# float32, of which the backward pass has some six: a kernel may have 16 MiB there.
_POSITIONS = 512
# Of those 16 MiB, what a block's keys and values, their gradients and the sums of these may take.
# Programs of 7.9 MB compiled for a v4, v5e, v5p and v6e, those of 9.4 MB not for a v4, and of 12 MB
# neither for a v5p nor for a v5e (libtpu 0.0.42).
_MOST_BYTES = 8_000_000


def fits_vector_memory(length: int, heads: int, width: int, dtype: str) -> bool:
    """Whether a TPU's vector memory holds what the kernels of a step have there at once.

    Args:
      length: of the sequences.
      heads: of the model; a device has its part of them, under the mesh that is set.
      width: of a head.
      dtype: of keys and values.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = jax.tree.leaves(tuple(logical_to_mesh_axes(("heads",)) or ()))
    parts = math.prod(mesh.shape.get(axis, 1) for axis in axes)
    lanes = _lanes(heads // parts * width, width)
    # Twice, for the next block is read and the last one written meanwhile; the sums are float32.
    bytes_each = 2 * 4 * jnp.dtype(dtype).itemsize + 2 * 4
    return max(length, _POSITIONS) * lanes * bytes_each <= _MOST_BYTES


def pallas_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None = None,
    *,
    heads: int,
    dropout_rate: float = 0.0,
    dropout_seed: jax.Array | None = None,
    interpret: bool = False,
) -> jax.Array:
    """softmax(query key^T / sqrt(K)) over the keys that the mask leaves, dropout, times value.

    The compiler cannot divide a kernel among devices, so each works on its own rows and heads:
    under the mesh that is set, by the logical axes "batch" and "heads".

    Args:
      query, key, value: [B, L, H * K] of one dtype; scores, softmax and sums are float32. L is
        padded to a multiple of 128.
      attention_mask: [B, L], 1 = attend to this key. A row without any such key attends to all of
        them.
      segment_ids: int32 [B, L], 0 = padding, in its place where rows are packed: each position
        attends to those of its own id.
      heads: H.
      dropout_rate, dropout_seed: as for `bert_jax.models.attention.attention`, with the same bits.
      interpret: run the kernel's steps as XLA operations, on any backend: for tests.

    Returns:
      [B, L, H * K] of the dtype of `query`.
    """
    length, features = query.shape[1:]
    padding = -length % LANES
    operands = (jnp.pad(array, ((0, 0), (0, padding), (0, 0))) for array in (query, key, value))
    queries_BL, keys_BL = padded_ids(attention_mask, segment_ids)
    rate, seed = rate_and_seed(dropout_rate, dropout_seed)
    settings = KernelSettings(
        heads=heads,
        width=features // heads,
        length=length,
        rate=rate,
        interpret=interpret,
    )
    spec = logical_to_mesh_axes(("batch", None, "heads")) or PartitionSpec(None, None, None)

    def of_a_device(
        seed: jax.Array, queries: jax.Array, keys: jax.Array, *operands: jax.Array
    ) -> jax.Array:
        batch, _, features = operands[0].shape
        place = place_of(seed, (spec[0], batch), (spec[2], features // settings.width))
        return _attend(settings, *operands, queries, keys, place)

    ids = PartitionSpec(spec[0])
    attend = on_each_device(of_a_device, (PartitionSpec(), ids, ids, spec, spec, spec), spec)
    return attend(seed, queries_BL, keys_BL, *operands)[:, :length]


def _forward_kernel(
    settings: KernelSettings,
    place_ref: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    queries_ref: Any,
    keys_ref: Any,
    context_ref: Any,
) -> None:
    """Context of [S, Q, W] queries with [S, M, W] keys and values."""
    for row in range(query_ref.shape[0]):
        query, key, value = query_ref[row] * settings.width**-0.5, key_ref[row], value_ref[row]
        allowed_MQ = keys_ref[row] == queries_ref[row]
        context = jnp.zeros(query.shape, jnp.float32)
        for head in range(query.shape[1] // settings.width):
            only = functools.partial(_only, settings, head)
            probs_MQ = _probabilities(summed(key, only(query), 1, 1), allowed_MQ)
            kept_MQ = _dropout(settings, row, head, place_ref, query_ref)(probs_MQ)
            context += summed(kept_MQ.astype(value.dtype), only(value), 0, 0)
        context_ref[row] = (context / (1 - settings.rate)).astype(context_ref.dtype)


def _backward_kernel(
    settings: KernelSettings,
    place_ref: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    queries_ref: Any,
    keys_ref: Any,
    gradient_ref: Any,
    query_gradient_ref: Any,
    key_gradient_ref: Any,
    value_gradient_ref: Any,
    key_sum_ref: Any,
    value_sum_ref: Any,
) -> None:
    """Gradients of [S, Q, W] queries, and of [S, M, W] keys and values, summed over steps."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        key_sum_ref[...] = jnp.zeros_like(key_sum_ref)
        value_sum_ref[...] = jnp.zeros_like(value_sum_ref)

    scale = settings.width**-0.5
    for row in range(query_ref.shape[0]):
        query, key, value = query_ref[row] * scale, key_ref[row], value_ref[row]
        gradient = gradient_ref[row] * (1 / (1 - settings.rate))
        allowed_MQ = keys_ref[row] == queries_ref[row]
        query_sum = jnp.zeros(query.shape, jnp.float32)
        for head in range(query.shape[1] // settings.width):
            only = functools.partial(_only, settings, head)
            probs_MQ = _probabilities(summed(key, only(query), 1, 1), allowed_MQ)
            drop = _dropout(settings, row, head, place_ref, query_ref)
            weighted_MQ = probs_MQ * drop(summed(value, only(gradient), 1, 1))
            scores_gradient_MQ = weighted_MQ - probs_MQ * weighted_MQ.sum(axis=0, keepdims=True)
            scores_gradient_MQ = scores_gradient_MQ.astype(query.dtype)
            value_sum_ref[row] += summed(drop(probs_MQ).astype(query.dtype), only(gradient), 1, 0)
            key_sum_ref[row] += summed(scores_gradient_MQ, only(query), 1, 0)
            query_sum += summed(scores_gradient_MQ, only(key), 0, 0)
        query_gradient_ref[row] = (query_sum * scale).astype(query_gradient_ref.dtype)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _() -> None:
        key_gradient_ref[...] = key_sum_ref[...].astype(key_gradient_ref.dtype)
        value_gradient_ref[...] = value_sum_ref[...].astype(value_gradient_ref.dtype)


def _only(settings: KernelSettings, head: int, block: jax.Array) -> jax.Array:
    """[positions, W] with zeros in the lanes of other heads."""
    lane = lax.broadcasted_iota(jnp.int32, (1, block.shape[1]), 1)
    return jnp.where(lane // settings.width == head, block, 0)


def _probabilities(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
    weights = jnp.exp(scores - scores.max(axis=0, keepdims=True))
    return weights * (1 / weights.sum(axis=0, keepdims=True))


def _dropout(
    settings: KernelSettings, row: int, head: int, place_ref: Any, query_ref: Any
) -> Callable[[jax.Array], jax.Array]:
    """What sets dropped elements of [M, Q] to zero, for a row and a head of a step."""
    if not settings.rate:
        return lambda values: values
    rows, queries, lanes = query_ref.shape
    first_row, first_head, first_query = (
        pl.program_id(axis).astype(jnp.uint32) * size
        for axis, size in enumerate((rows, lanes // settings.width, queries))
    )
    # As `random_bits` counts the rows of [B, H, L, L].
    of_head = (place_ref[2] + first_row + row) * settings.heads + place_ref[3] + first_head + head
    of_query = of_head * settings.length + first_query + _along(1, queries)
    states = row_states((place_ref[0], place_ref[1]), of_query)

    def drop(values: jax.Array) -> jax.Array:
        bits = row_bits(states, _along(0, values.shape[0]))
        return jnp.where(kept(bits, settings.rate), values, 0)

    return drop


def _along(axis: int, size: int) -> jax.Array:
    """0, 1, ... along one axis of two, uint32."""
    shape = (size, 1) if axis == 0 else (1, size)
    return lax.broadcasted_iota(jnp.int32, shape, axis).astype(jnp.uint32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    settings: KernelSettings,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    queries: jax.Array,
    keys: jax.Array,
    place: jax.Array,
) -> jax.Array:
    """`pallas_attention` of one device.

    Args:
      query, key, value: [B, L, H * K].
      queries, keys: int32 [B, L], the segments of both.
      place: uint32 [4], the seed, and the first row and head of this device in the whole array.
    """
    return _attend_forward(settings, query, key, value, queries, keys, place)[0]


def _attend_forward(settings: KernelSettings, *operands: jax.Array):
    (context,) = _run(_forward_kernel, settings, operands)
    return context, operands


def _attend_backward(
    settings: KernelSettings, operands: tuple[jax.Array, ...], gradient: jax.Array
):
    return *_run(_backward_kernel, settings, operands, gradient), None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _run(
    kernel: Any, settings: KernelSettings, operands: tuple[jax.Array, ...], *gradient: jax.Array
) -> list[jax.Array]:
    """One of the kernels, over rows, heads and blocks of queries.

    Args:
      operands: of `_attend`.
      gradient: of the context, for the backward pass.
    """
    query, key, value, queries, keys, place = operands
    batch, length, features = query.shape
    lanes = _lanes(features, settings.width)
    rows = _divisor(batch, _POSITIONS // length, 1)
    size = _divisor(length, _POSITIONS**2 // length, LANES)
    some = pl.BlockSpec((rows, size, lanes), lambda b, h, q, _: (b, q, h))
    whole = (rows, length, lanes)
    every = pl.BlockSpec(whole, lambda b, h, q, _: (b, 0, h))
    some_ids = pl.BlockSpec((rows, 1, size), lambda b, h, q, _: (b, 0, q))
    every_id = pl.BlockSpec((rows, length, 1), lambda b, h, q, _: (b, 0, 0))
    arrays = [query, key, value, queries[:, None], keys[:, :, None], *gradient]
    outputs, scratch, products = [some], [], 2
    if gradient:
        outputs, scratch, products = [some, every, every], [whole] * 2, 5
    scores = batch * length**2
    return pl.pallas_call(
        functools.partial(kernel, settings),
        out_shape=[jax.ShapeDtypeStruct(query.shape, query.dtype)] * len(outputs),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch // rows, features // lanes, length // size),
            in_specs=[some, every, every, some_ids, every_id, *[some] * len(gradient)],
            out_specs=outputs,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            # What a loop over layers kept is read where it is, not copied first.
            allow_input_fusion=[False, True, True, True, False, False, *[True] * len(gradient)],
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * features,
            transcendentals=scores * (features // settings.width),
            bytes_accessed=sum(array.nbytes for array in arrays) + query.nbytes * len(outputs),
        ),
        interpret=settings.interpret,
        name=kernel.__name__.strip("_"),
    )(place, *arrays)


def _lanes(features: int, width: int) -> int:
    """Features that a step takes: those of as many heads as fill the lanes, or of all."""
    lanes = math.lcm(LANES, width)
    return features if features % lanes else lanes


def _divisor(number: int, most: int, unit: int) -> int:
    """The largest multiple of `unit` up to `most` that divides `number`, itself a multiple."""
    return next((n for n in range(most, unit, -1) if number % n == 0 == n % unit), unit)
