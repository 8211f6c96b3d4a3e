"""Kernels of bias, dropout, residual and LayerNorm for a GPU, interpreted, and the plain form."""

import functools

import jax
import pytest
from attention_cases import deviation
from gpu_kernel_cases import (
    NORM_NAMES,
    norm,
    norm_arrays,
    norm_deviations,
    normed,
    plain_norm,
    pulled,
)
from jax.sharding import AxisType

from bert_jax.planning.hlo import collectives
from bert_jax.training.steps import with_rules

# Of the largest value. In bfloat16 either form rounds the same float32 values once.
TOLERANCES = {"float32": 1e-6, "bfloat16": 8e-3}


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
    for name, found in norm_deviations(shape, dtype, rate).items():
        assert found < TOLERANCES[dtype], name


def test_without_a_seed_nothing_is_dropped():
    operands, _ = norm_arrays((2, 8, 128), "float32")
    expected = plain_norm(*operands, rate=0.0)
    assert deviation(norm(*operands, None, rate=0.1), expected) < TOLERANCES["float32"]


def test_a_large_mean_costs_no_digits():
    operands, _ = norm_arrays((1, 4, 128), "float32")
    operands[2] += 1000
    expected = plain_norm(*operands, rate=0.1)
    assert deviation(normed(*operands, rate=0.1), expected) < 1e-4


@pytest.mark.slow
def test_eight_devices_work_on_their_own_rows():
    operands, gradient = norm_arrays((8, 16, 128), "float32")
    of_kernel = functools.partial(pulled, functools.partial(normed, rate=0.1))
    expected = jax.jit(of_kernel)(operands, gradient)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        compiled = jax.jit(with_rules(of_kernel)).lower(operands, gradient).compile()
        found = compiled(operands, gradient)
    # Weights' gradients are added up over rows; over `tensor`, where all have all, nothing is.
    assert {each.group for each in collectives(compiled.as_text() or "")} == {(0, 2, 4, 6)}
    for name, a, b in zip(NORM_NAMES, found, expected, strict=True):
        assert deviation(a, b) < TOLERANCES["float32"], name
