"""The kernels of bias, dropout, residual and LayerNorm for a GPU against the plain form."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from attention_cases import SEED, deviation
from jax.sharding import AxisType

from bert_jax.models.dropout import dropout
from bert_jax.models.gpu_norm import residual_layer_norm
from bert_jax.models.layers import normalized
from bert_jax.training.steps import with_rules

by_kernel: Any = functools.partial(
    residual_layer_norm, epsilon=1e-12, interpret=jax.default_backend() != "gpu"
)
# Of the largest value. In bfloat16 either form rounds the same float32 values once.
TOLERANCES = {"float32": 1e-6, "bfloat16": 8e-3}
NAMES = ("outputs", "projected", "bias", "residual", "scale", "shift")


def arrays(shape: tuple[int, int, int], dtype: str) -> tuple[list[jax.Array], jax.Array]:
    """The operands, by the names of `residual_layer_norm`, and the gradient of its outputs."""
    keys = jax.random.split(jax.random.key(0), 6)
    rows = [jax.random.normal(key, shape, dtype) for key in keys[:3]]
    bias, scale, shift = (jax.random.normal(key, shape[-1:]) for key in keys[3:])
    return [rows[0], bias, rows[1], scale, shift], rows[2]


def plainly(
    projected: jax.Array, bias: jax.Array, residual: jax.Array, *weights: jax.Array, rate: float
) -> jax.Array:
    dropped = dropout(projected.astype(jnp.float32) + bias, rate, jnp.array(SEED, jnp.uint32))
    return normalized(1e-12, str(residual.dtype), residual.astype(jnp.float32) + dropped, *weights)


def kernel(*operands: jax.Array, rate: float) -> jax.Array:
    return by_kernel(*operands, jnp.array(SEED, jnp.uint32), rate=rate)


def pulled(function: Any, operands: list[jax.Array], gradient: jax.Array) -> list[jax.Array]:
    """The outputs, and each operand's gradient."""
    outputs, pull = jax.vjp(function, *operands)
    return [outputs, *pull(gradient)]


@pytest.mark.parametrize("rate", [0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 32, 768),  # three parts of 256
        (3, 7, 128),  # rows that no power of two divides
        (1, 8, 2048),  # two parts of 1,024
    ],
)
def test_the_kernels_are_the_plain_form(shape, dtype, rate):
    operands, gradient = arrays(shape, dtype)
    found = pulled(functools.partial(kernel, rate=rate), operands, gradient)
    expected = pulled(functools.partial(plainly, rate=rate), operands, gradient)
    for name, a, b in zip(NAMES, found, expected, strict=True):
        assert a.dtype == b.dtype, name
        assert deviation(a, b) < TOLERANCES[dtype], name


def test_without_a_seed_nothing_is_dropped():
    operands, _ = arrays((2, 8, 128), "float32")
    expected = plainly(*operands, rate=0.0)
    assert deviation(by_kernel(*operands, None, rate=0.1), expected) < TOLERANCES["float32"]


def test_a_large_mean_costs_no_digits():
    operands, _ = arrays((1, 4, 128), "float32")
    operands[2] += 1000
    expected = plainly(*operands, rate=0.1)
    assert deviation(kernel(*operands, rate=0.1), expected) < 1e-4


@pytest.mark.slow
def test_eight_devices_work_on_their_own_rows():
    operands, gradient = arrays((8, 16, 128), "float32")
    of_kernel = functools.partial(pulled, functools.partial(kernel, rate=0.1))
    expected = jax.jit(of_kernel)(operands, gradient)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        found = jax.jit(with_rules(of_kernel))(operands, gradient)
    for name, a, b in zip(NAMES, found, expected, strict=True):
        assert deviation(a, b) < TOLERANCES["float32"], name
