"""The kernels for GPUs beside the plain forms: what their tests have in common.

Tests run on a CPU, where the kernels are interpreted. On a machine with a GPU

    python tests/gpu_kernel_cases.py

runs the kernels themselves, and tells how far they are from the plain forms.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
from attention_cases import SEED, deviation, masks, packed_segments

from bert_jax.models.attention import attention, mask_bias
from bert_jax.models.dropout import dropout
from bert_jax.models.gpu_attention import gpu_attention, paired_bits
from bert_jax.models.gpu_norm import residual_layer_norm
from bert_jax.models.layers import normalized

_INTERPRET = jax.default_backend() != "gpu"
attend: Any = functools.partial(gpu_attention, interpret=_INTERPRET)
norm: Any = functools.partial(residual_layer_norm, epsilon=1e-12, interpret=_INTERPRET)
NORM_NAMES = ("outputs", "projected", "bias", "residual", "scale", "shift")
# Of the largest value: bfloat16 rounds to a 256th, attention's probabilities too.
BFLOAT16 = 2e-2


def stacked(shape: tuple[int, ...], dtype: str) -> tuple[jax.Array, jax.Array]:
    """Queries, keys and values of [B, L, H, K], and the gradient of the context."""
    batch, length, heads, width = shape
    of_operands, of_gradient = jax.random.split(jax.random.key(0))
    return (
        jax.random.normal(of_operands, (batch, length, heads, 3 * width), dtype),
        jax.random.normal(of_gradient, (batch, length, heads * width), dtype),
    )


def plain_attention(operands: jax.Array, mask: Any, segments: Any, rate: float) -> jax.Array:
    batch, length, heads, features = operands.shape
    parts = operands.reshape(batch, length, heads, 3, -1)
    query, key, value = (parts[..., part, :].swapaxes(1, 2) for part in range(3))
    context = attention(
        query,
        key,
        value,
        mask_bias(mask, segments),
        dtype=str(operands.dtype),
        dropout_rate=rate,
        dropout_seed=jnp.array(SEED, jnp.uint32),
        draw=paired_bits,
    )
    flat = context.swapaxes(1, 2).reshape(batch, length, heads * features // 3)
    return flat.astype(operands.dtype)


def attention_deviations(
    operands: jax.Array,
    gradient: jax.Array,
    *,
    mask: Any = None,
    segments: Any = None,
    rate: float = 0.0,
) -> list[float]:
    """Deviations of the context and of the operands' gradient, at positions that are no padding."""
    real = jnp.ones(operands.shape[:2], bool) if segments is None else segments > 0
    gradient = jnp.where(real[..., None], gradient, 0)

    def of_kernel(operands: jax.Array) -> jax.Array:
        seed = jnp.array(SEED, jnp.uint32)
        return attend(operands, mask, segments, dropout_rate=rate, dropout_seed=seed)

    ours, pull_ours = jax.vjp(of_kernel, operands)
    expected, pull = jax.vjp(
        lambda operands: plain_attention(operands, mask, segments, rate), operands
    )
    assert ours.dtype == expected.dtype
    assert jnp.isfinite(ours).all()
    ours, expected = (jnp.where(real[..., None], context, 0) for context in (ours, expected))
    return [deviation(ours, expected), deviation(pull_ours(gradient)[0], pull(gradient)[0])]


def norm_arrays(shape: tuple[int, int, int], dtype: str) -> tuple[list[jax.Array], jax.Array]:
    """The operands, by the names of `residual_layer_norm`, and the gradient of its outputs."""
    keys = jax.random.split(jax.random.key(0), 6)
    rows = [jax.random.normal(key, shape, dtype) for key in keys[:3]]
    bias, scale, shift = (jax.random.normal(key, shape[-1:]) for key in keys[3:])
    return [rows[0], bias, rows[1], scale, shift], rows[2]


def plain_norm(
    projected: jax.Array, bias: jax.Array, residual: jax.Array, *weights: jax.Array, rate: float
) -> jax.Array:
    dropped = dropout(projected.astype(jnp.float32) + bias, rate, jnp.array(SEED, jnp.uint32))
    return normalized(1e-12, str(residual.dtype), residual.astype(jnp.float32) + dropped, *weights)


def normed(*operands: jax.Array, rate: float) -> jax.Array:
    return norm(*operands, jnp.array(SEED, jnp.uint32), rate=rate)


def pulled(function: Any, operands: list[jax.Array], gradient: jax.Array) -> list[jax.Array]:
    """The outputs, and each operand's gradient."""
    outputs, pull = jax.vjp(function, *operands)
    return [outputs, *pull(gradient)]


def norm_deviations(shape: tuple[int, int, int], dtype: str, rate: float) -> dict[str, float]:
    """By the names of what comes out: of the outputs and of each operand's gradient."""
    operands, gradient = norm_arrays(shape, dtype)
    found = pulled(functools.partial(normed, rate=rate), operands, gradient)
    expected = pulled(functools.partial(plain_norm, rate=rate), operands, gradient)
    assert [a.dtype for a in found] == [b.dtype for b in expected]
    both = zip(found, expected, strict=True)
    return {name: deviation(a, b) for name, (a, b) in zip(NORM_NAMES, both, strict=True)}


def main() -> None:
    """Compare them on this machine, in bfloat16; the code is 1 where they differ by too much."""
    print(f"on {jax.devices()[0].device_kind}, {'interpreted' if _INTERPRET else 'as they are'}")
    largest = 0.0
    for rate in (0.0, 0.1):
        for shape in ((4, 128, 12, 64), (4, 512, 16, 64), (3, 384, 2, 32)):
            mask = jnp.asarray(masks(*shape[:2]))
            found = attention_deviations(*stacked(shape, "bfloat16"), mask=mask, rate=rate)
            print(f"attention {shape}, rate {rate}: {max(found):.4f}", flush=True)
            largest = max(largest, *found)
        segments = jnp.asarray(packed_segments())
        for shape in ((3, 400, 4, 64), (3, 400, 2, 32)):
            found = attention_deviations(*stacked(shape, "bfloat16"), segments=segments, rate=rate)
            print(f"attention {shape}, rate {rate}, packed: {max(found):.4f}", flush=True)
            largest = max(largest, *found)
        for shape in ((16, 128, 768), (4, 512, 1024), (3, 7, 128)):
            found = norm_deviations(shape, "bfloat16", rate)
            print(f"residual and LayerNorm {shape}, rate {rate}: {max(found.values()):.4f}")
            largest = max(largest, *found.values())
    sys.exit(largest > BFLOAT16)


if __name__ == "__main__":
    main()
