"""The kernels of attention on an NVIDIA GPU, in Triton's dialect of Pallas.

A program works for one head of one row. Scores are in units of log 2, for the hardware's
exponential is of two.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from bert_jax.models.dropout import kept, row_bits, row_states
from bert_jax.models.kernels import LANES, KernelSettings, summed
from bert_jax.models.triton import elementwise

_LOG2_E = math.log2(math.e)
# Of a masked key. Finite, for a block of nothing else must not make NaN of a row; a power of two,
# for its product with the unit must be exact: `_exp2` rounds once, and what it takes from a sum was
# rounded before.
_MASKED = -(2.0**100)
_QUERY, _KEY, _VALUE = range(3)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel goes about its work.

    Attributes:
      queries, keys: positions of a block; the keys' at most half of what lengths are padded to.
      warps: threads of a program, in units of 32.
      stages: how many blocks are on their way from memory at once.
    """

    queries: int
    keys: int
    warps: int
    stages: int


def _pair(index: Any, tile: int) -> list[Any]:
    """Where a pair of blocks of `tile` keys is: one of the first half of 128, one of the second."""
    parts = LANES // 2 // tile
    first = index // parts * LANES + index % parts * tile
    return [first, first + LANES // 2]


def _draw(settings: KernelSettings, place_ref: Any) -> Callable[..., Any]:
    """What draws the bits of queries and keys, [Q, M], by the first of each and how many.

    It gives None where nothing is dropped.
    """
    seed = place_ref[0], place_ref[1]
    head = place_ref[3] + pl.program_id(1).astype(jnp.uint32)
    row = place_ref[2] + pl.program_id(2).astype(jnp.uint32)
    # As `random_bits` counts the rows of [B, H, L, L].
    of_head = (row * settings.heads + head) * settings.length

    def places(first: Any, count: int) -> jax.Array:
        return first.astype(jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)

    def draw(queries: tuple[Any, int], keys: tuple[Any, int]) -> Any:
        if not settings.rate:
            return None
        states_Q = row_states(seed, of_head + places(*queries))
        return row_bits(states_Q[:, None], places(*keys)[None, :])

    return draw


def _drops(settings: KernelSettings, bits: Any) -> list[Callable[[jax.Array], jax.Array]]:
    """What sets dropped values to 0, and scales no other: for keys of either half."""
    if bits is None:
        return [lambda values: values] * 2
    keeps = kept(bits << 16, settings.rate), kept(bits, settings.rate)
    return [lambda values, keep=keep: jnp.where(keep, values, 0.0) for keep in keeps]


def forward_kernel(
    settings: KernelSettings,
    blocks: Blocks,
    place_ref: Any,
    stacked_ref: Any,
    queries_ref: Any,
    keys_ref: Any,
    keys_span_ref: Any,
    _: Any,
    context_ref: Any,
    denominator_ref: Any,
) -> None:
    """Context [Q, K] of a block of queries, and log2 of their denominators [Q]."""
    size, tile = blocks.queries, blocks.keys
    draw = _draw(settings, place_ref)
    first = pl.program_id(0) * size
    those = pl.ds(first, size)
    query, ids_Q = stacked_ref[those, _QUERY, :], queries_ref[those]
    unit = _unit(settings)

    def add(pair: Any, carry: Any) -> Any:
        context, largest, total = carry
        starts = _pair(pair, tile)
        these = [pl.ds(start, tile) for start in starts]
        scores = []
        for here in these:
            scores_QM = summed(query, stacked_ref[here, _KEY, :], 1, 1)
            alike_QM = ids_Q[:, None] == keys_ref[here][None, :]
            scores.append(jnp.where(alike_QM, scores_QM, _MASKED))
        new_largest = jnp.maximum(largest, jnp.maximum(*scores).max(axis=1))
        before = jnp.exp2((largest - new_largest) * unit)
        minus_largest = (-new_largest * unit)[:, None]
        weights = [_exp2(settings, scores_QM, unit, minus_largest) for scores_QM in scores]
        total = total * before + jnp.add(*weights).sum(axis=1)
        context *= before[:, None]
        bits = draw((first, size), (starts[0], tile))
        for here, weights_QM, drop in zip(these, weights, _drops(settings, bits), strict=True):
            value = stacked_ref[here, _VALUE, :]
            context += summed(drop(weights_QM).astype(value.dtype), value, 1, 0)
        return context, new_largest, total

    nothing = jnp.zeros(query.shape, jnp.float32)
    start = nothing, jnp.full(size, -jnp.inf, jnp.float32), jnp.zeros(size, jnp.float32)
    span = _span(keys_span_ref, first, LANES // 2 // tile)
    context, largest, total = lax.fori_loop(*span, add, start)
    scale = 1 / (total * (1 - settings.rate))
    context_ref[...] = (context * scale[:, None]).astype(context_ref.dtype)
    denominator_ref[...] = largest * unit + jnp.log2(total)


def _span(span_ref: Any, first: Any, parts: int) -> tuple[Any, Any]:
    """The parts to go over for the block of 128 that `first` is in, `parts` to each 128."""
    block = first // LANES
    return span_ref[block, 0] * parts, span_ref[block, 1] * parts


def _unit(settings: KernelSettings) -> float:
    """What scores are multiplied by, to be in units of log 2."""
    return settings.width**-0.5 * _LOG2_E


def _exp2(settings: KernelSettings, factors: Any, factor: Any, summands: Any) -> jax.Array:
    """2 to the power of factors * factor + summands.

    By the instruction that gives 0 for what would be denormal: Triton puts three others around
    the one that does not.
    """
    return elementwise(
        lambda a, b, c: jnp.exp2(a * b + c),
        "{ .reg .f32 sum; fma.rn.f32 sum, $1, $2, $3; ex2.approx.ftz.f32 $0, sum; }",
        *(factors, factor, summands),
        interpret=settings.interpret,
    )


def _multiply_add(settings: KernelSettings, a: Any, b: Any, c: Any) -> jax.Array:
    """a * b + c, in one instruction."""
    return elementwise(
        lambda a, b, c: a * b + c,
        "fma.rn.f32 $0, $1, $2, $3;",
        *(a, b, c),
        interpret=settings.interpret,
    )


def backward_kernel(
    settings: KernelSettings,
    blocks: Blocks,
    place_ref: Any,
    stacked_ref: Any,
    queries_ref: Any,
    keys_ref: Any,
    keys_span_ref: Any,
    queries_span_ref: Any,
    denominator_ref: Any,
    along_ref: Any,
    gradient_ref: Any,
    stacked_gradient_ref: Any,
) -> None:
    """Gradients of a pair of blocks of keys and values; then of as many queries.

    Where these are all keys, the gradients of all queries come on the way.
    """
    length, _, width = stacked_ref.shape
    size, tile, mine = blocks.queries, blocks.keys, pl.program_id(0)
    draw = _draw(settings, place_ref)
    alone, dtype = length == 2 * tile, stacked_ref.dtype
    kept_scale, unit = 1 / (1 - settings.rate), _unit(settings)
    scale = settings.width**-0.5 * kept_scale

    def of_queries(here: Any) -> tuple[jax.Array, ...]:
        """Queries, the gradient of their context, denominators, what softmax takes from each."""
        query, gradient = stacked_ref[here, _QUERY, :], gradient_ref[here, :]
        along = along_ref[here][:, None] * (1 - settings.rate)
        return query, gradient, denominator_ref[here][:, None], along

    def store(which: int, here: Any, gradient: jax.Array) -> None:
        stacked_gradient_ref[here, which, :] = gradient.astype(dtype)

    starts = _pair(mine, tile)
    these = [pl.ds(start, tile) for start in starts]
    keys, values = ([stacked_ref[here, which, :] for here in these] for which in (_KEY, _VALUE))
    ids = [keys_ref[here] for here in these]

    def part(queries: tuple[Any, ...], those: Any, key: Any, value: Any, ids_M: Any, drop: Any):
        """Of some queries and keys [Q, M]: probabilities, dropped, and the scores' gradient.

        Both without the scale of what is kept, which their sums are multiplied by.
        """
        query, gradient, denominator, along = queries
        exponentials_QM = _exp2(settings, summed(query, key, 1, 1), unit, -denominator)
        alike_QM = queries_ref[those][:, None] == ids_M[None, :]
        probs_QM = jnp.where(alike_QM, exponentials_QM, 0.0)
        kept_QM = drop(probs_QM)
        scores_gradient_QM = _multiply_add(
            settings, kept_QM, summed(gradient, value, 1, 1), probs_QM * -along
        )
        return kept_QM.astype(dtype), scores_gradient_QM.astype(dtype)

    def as_keys(block: Any, sums: Any) -> Any:
        those = pl.ds(block * size, size)
        queries = query, gradient, *_ = of_queries(those)
        bits = draw((block * size, size), (starts[0], tile))
        totals, of_query = [], jnp.zeros((size, width), jnp.float32)
        for side, drop in enumerate(_drops(settings, bits)):
            of_side = keys[side], values[side], ids[side]
            kept_QM, scores_gradient_QM = part(queries, those, *of_side, drop)
            key_sum, value_sum = sums[side]
            key_sum += summed(scores_gradient_QM, query, 0, 0)
            value_sum += summed(kept_QM, gradient, 0, 0)
            totals.append((key_sum, value_sum))
            if alone:
                of_query += summed(scores_gradient_QM, keys[side], 1, 0)
        if alone:
            store(_QUERY, those, of_query * scale)
        return totals

    nothing = jnp.zeros((tile, width), jnp.float32)
    span = (0, length // size) if alone else _span(queries_span_ref, starts[0], LANES // size)
    sums = lax.fori_loop(*span, as_keys, [(nothing, nothing)] * 2)
    for here, (key_sum, value_sum) in zip(these, sums, strict=True):
        store(_KEY, here, key_sum * scale)
        store(_VALUE, here, value_sum * kept_scale)
    if alone:
        return

    first, count = mine * (2 * tile), 2 * tile
    those = pl.ds(first, count)
    queries = of_queries(those)

    def as_queries(pair: Any, of_query: Any) -> Any:
        others = _pair(pair, tile)
        bits = draw((first, count), (others[0], tile))
        for start, drop in zip(others, _drops(settings, bits), strict=True):
            here = pl.ds(start, tile)
            key, value = stacked_ref[here, _KEY, :], stacked_ref[here, _VALUE, :]
            _, scores_gradient_QM = part(queries, those, key, value, keys_ref[here], drop)
            of_query += summed(scores_gradient_QM, key, 1, 0)
        return of_query

    span = _span(keys_span_ref, first, LANES // 2 // tile)
    of_query = lax.fori_loop(*span, as_queries, jnp.zeros((count, width), jnp.float32))
    store(_QUERY, those, of_query * scale)
