"""The end of both halves of a layer on an NVIDIA GPU: bias, dropout, residual, LayerNorm.

One kernel of Triton's forward and one backward. Each reads what the product gave and the residual,
computes the rest again in registers, and writes what others read: XLA's own fusions go over the
rows once for each sum along them, and keep the float32 sum of both for the backward pass.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.spmd import logical_to_mesh_axes
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

from bert_jax.config import BertConfig
from bert_jax.models.dropout import kept, row_bits, row_states
from bert_jax.models.kernels import on_each_device, place_of, rate_and_seed
from bert_jax.models.triton import compiler_params, has_triton_kernels

# Rows at a time, of a program in all, and the threads of it in units of 32: of fifteen ways the
# fastest on an H100 for a width of 768, and within a fifth of the fastest for 1,024.
_ROWS, _ROWS_OF_PROGRAM, _WARPS = 1, 32, 4


def fuses_layer_norm(config: BertConfig, drops: bool) -> bool:
    """Whether `residual_layer_norm` is for this model and these devices."""
    hashed = config.dropout_bits == "hash" or not drops
    fits = config.dtype == "bfloat16" and config.hidden_size % 128 == 0
    return hashed and fits and has_triton_kernels()


@dataclasses.dataclass(frozen=True)
class _Settings:
    rate: float
    epsilon: float
    interpret: bool


def residual_layer_norm(
    projected: jax.Array,
    bias: jax.Array,
    residual: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    seed: jax.Array | None,
    *,
    rate: float,
    epsilon: float,
    interpret: bool = False,
) -> jax.Array:
    """LayerNorm(residual + dropout(projected + bias)) * scale + shift, float32 until it is written.

    As `pallas_attention`, each device of the mesh that is set works on its own rows.

    Args:
      projected, residual: [B, L, D] of one dtype, D a multiple of 128.
      bias, scale, shift: float32 [D].
      seed: uint32 [2], of dropout, with the bits of `bert_jax.models.dropout.random_bits`; None
        drops nothing.
      rate: share that is dropped.
      epsilon: added to the variance.
      interpret: run the kernel's steps as XLA operations, on any backend: for tests.

    Returns:
      [B, L, D] of the dtype of `residual`.
    """
    rate, seed = rate_and_seed(rate, seed)
    settings = _Settings(rate, epsilon, interpret)
    axes = logical_to_mesh_axes(("batch", None, None)) or PartitionSpec(None, None, None)

    def of_a_device(seed: jax.Array, projected: jax.Array, residual: jax.Array, *weights: Any):
        batch, length, width = projected.shape
        rows = projected.reshape(-1, width), residual.reshape(-1, width)
        place = place_of(seed, (axes[0], batch * length), (None, 0))
        normalized: Any = _normalize(settings, *rows, *weights, place)
        return normalized.reshape(projected.shape)

    whole = PartitionSpec()
    normalize = on_each_device(of_a_device, (whole, axes, axes, whole, whole, whole), axes)
    return normalize(seed, projected, residual, bias, scale, shift)


def _parts(width: int, index: int = 0) -> list[Any]:
    """Where the row `index` of several in one array is read: at once a power of two of it."""
    part, begin = math.gcd(width, 1024), index * width
    return [pl.ds(first, part) for first in range(begin, begin + width, part)]


def _weights(weights_ref: Any, index: int) -> list[jax.Array]:
    """Of bias, scale and shift, one after the other in [3 D], one by its index: [1, part] each."""
    width = weights_ref.shape[0] // 3
    return [weights_ref[part][None, :] for part in _parts(width, index)]


def _row_sum(parts: list[jax.Array]) -> jax.Array:
    """[R, 1]. Over the parts first: a sum over a program's threads takes longer."""
    return functools.reduce(jnp.add, parts).sum(axis=1, keepdims=True)


def _dropout(
    settings: _Settings, place_ref: Any, first: Any, rows: int
) -> Callable[[Any, jax.Array], jax.Array]:
    """What drops elements of a part of `rows` rows from `first` on, and scales the others."""
    if not settings.rate:
        return lambda _, values: values
    row = place_ref[2] + first.astype(jnp.uint32) + jnp.arange(rows, dtype=jnp.uint32)
    states = row_states((place_ref[0], place_ref[1]), row)[:, None]

    def drop(part: Any, values: jax.Array) -> jax.Array:
        column = (part.start + jnp.arange(part.size)).astype(jnp.uint32)[None, :]
        keep = kept(row_bits(states, column), settings.rate)
        return jnp.where(keep, values * (1 / (1 - settings.rate)), 0.0)

    return drop


def _units(
    settings: _Settings,
    drop: Any,
    projected_ref: Any,
    residual_ref: Any,
    weights_ref: Any,
    here: Any,
) -> tuple[list[jax.Array], jax.Array]:
    """The normalized rows `here`, float32 [R, part] each, and one over their deviations, [R, 1]."""
    width = residual_ref.shape[1]
    sums = []
    for part, bias in zip(_parts(width), _weights(weights_ref, 0), strict=True):
        projected = projected_ref[here, part].astype(jnp.float32) + bias
        sums.append(residual_ref[here, part].astype(jnp.float32) + drop(part, projected))
    mean = _row_sum(sums) / width
    deviations = [part - mean for part in sums]
    inverse = lax.rsqrt(_row_sum([d * d for d in deviations]) / width + settings.epsilon)
    return [deviation * inverse for deviation in deviations], inverse


def _forward_kernel(
    settings: _Settings,
    place_ref: Any,
    projected_ref: Any,
    residual_ref: Any,
    weights_ref: Any,
    output_ref: Any,
) -> None:
    """A block of rows."""
    rows, width = output_ref.shape
    drop = _dropout(settings, place_ref, pl.program_id(0) * rows, rows)
    here = pl.ds(0, rows)
    units, _ = _units(settings, drop, projected_ref, residual_ref, weights_ref, here)
    scales, shifts = _weights(weights_ref, 1), _weights(weights_ref, 2)
    for part, unit, scale, shift in zip(_parts(width), units, scales, shifts, strict=True):
        output_ref[here, part] = (unit * scale + shift).astype(output_ref.dtype)


def _backward_kernel(
    settings: _Settings,
    rows: int,
    place_ref: Any,
    projected_ref: Any,
    residual_ref: Any,
    weights_ref: Any,
    gradient_ref: Any,
    projected_gradient_ref: Any,
    residual_gradient_ref: Any,
    sums_ref: Any,
) -> None:
    """A block of rows, `rows` at a time, and the sums over it that the weights' gradients are.

    Those of bias, scale and shift are one row, [3 D].
    """
    all_rows, width = residual_ref.shape
    begin = pl.program_id(0) * all_rows
    parts = _parts(width)

    def add(block: Any, totals: Any) -> Any:
        here = pl.ds(block * rows, rows)
        drop = _dropout(settings, place_ref, begin + block * rows, rows)
        units, inverse = _units(settings, drop, projected_ref, residual_ref, weights_ref, here)
        gradients = [gradient_ref[here, part].astype(jnp.float32) for part in parts]
        scales = _weights(weights_ref, 1)
        scaled = [gradient * scale for gradient, scale in zip(gradients, scales, strict=True)]
        mean = _row_sum(scaled) / width
        along = _row_sum([s * unit for s, unit in zip(scaled, units, strict=True)]) / width
        bias_sums, scale_sums, shift_sums = [], [], []
        for part, unit, gradient, s in zip(parts, units, gradients, scaled, strict=True):
            of_sum = inverse * (s - mean - unit * along)
            of_projected = drop(part, of_sum)
            residual_gradient_ref[here, part] = of_sum.astype(residual_ref.dtype)
            projected_gradient_ref[here, part] = of_projected.astype(projected_ref.dtype)
            bias_sums.append(of_projected)
            scale_sums.append(gradient * unit)
            shift_sums.append(gradient)
        return jax.tree.map(jnp.add, totals, (bias_sums, scale_sums, shift_sums))

    zeros = [jnp.zeros((rows, part.size), jnp.float32) for part in parts]
    totals = lax.fori_loop(0, all_rows // rows, add, (zeros, zeros, zeros))
    for index, sums in enumerate(totals):
        for part, total in zip(_parts(width, index), sums, strict=True):
            sums_ref[part] = total.sum(axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalize(
    settings: _Settings,
    projected: jax.Array,
    residual: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    place: jax.Array,
) -> jax.Array:
    """`residual_layer_norm` of one device, of rows [N, D].

    Args:
      place: uint32 [4], the seed, and the first row of this device in the whole array.
    """
    return _forward(settings, projected, residual, bias, scale, shift, place)[0]


def _specs(count: int, width: int, most: int) -> tuple[Any, Any, Any]:
    """Of rows [N, D], up to `most` of a program; of weights [3 D]; of `place`."""
    rows = math.gcd(count, most)
    return (
        pl.BlockSpec((rows, width), lambda i: (i, 0)),
        pl.BlockSpec((3 * width,), lambda i: (0,)),
        pl.BlockSpec((4,), lambda i: (0,)),
    )


def _forward(settings: _Settings, *operands: jax.Array):
    projected, residual, *weights, place = operands
    # One array: alone, each would be cut out of its stack of all layers, in a kernel that takes
    # longer to begin than to run.
    joined = jnp.concatenate(weights)
    count, width = residual.shape
    rows, whole, numbers = _specs(count, width, _ROWS)
    output = pl.pallas_call(
        functools.partial(_forward_kernel, settings),
        grid=(count // rows.block_shape[0],),
        in_specs=[numbers, rows, rows, whole],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(residual.shape, residual.dtype),
        compiler_params=compiler_params(_WARPS),
        interpret=settings.interpret,
        name="residual_layer_norm",
    )(place, projected, residual, joined)
    return output, (projected, residual, joined, place)


def _backward(settings: _Settings, residuals: tuple[jax.Array, ...], gradient: jax.Array):
    projected, residual, weights, place = residuals
    count, width = residual.shape
    rows, whole, numbers = _specs(count, width, _ROWS_OF_PROGRAM)
    programs = count // rows.block_shape[0]
    of_rows = jax.ShapeDtypeStruct(residual.shape, residual.dtype)
    sums = jax.ShapeDtypeStruct((programs, 3 * width), jnp.float32)
    projected_gradient, residual_gradient, totals = pl.pallas_call(
        functools.partial(_backward_kernel, settings, math.gcd(rows.block_shape[0], _ROWS)),
        grid=(programs,),
        in_specs=[numbers, rows, rows, whole, rows],
        out_specs=[rows, rows, pl.BlockSpec((None, 3 * width), lambda i: (i, 0))],
        out_shape=[of_rows, of_rows, sums],
        compiler_params=compiler_params(_WARPS),
        interpret=settings.interpret,
        name="residual_layer_norm_backward",
    )(place, projected, residual, weights, gradient)
    return projected_gradient, residual_gradient, *totals.sum(axis=0).reshape(3, -1), None


_normalize.defvjp(_forward, _backward)
