"""Products in a compute dtype are einsum's, and so are their gradients."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.models import layers, products
from bert_jax.models.attention import attention
from bert_jax.models.layers import projected
from bert_jax.models.products import product, product_apart, product_in_training

SIZES = {"B": 2, "L": 3, "M": 5, "D": 4, "H": 2, "K": 3}


def operands_of(spec: str, sizes: dict[str, int]) -> list[jax.Array]:
    return [
        jax.random.normal(jax.random.key(index), [sizes[letter] for letter in letters])
        for index, letters in enumerate(spec.split("->")[0].split(","))
    ]


def assert_close(ours: jax.Array, expected: jax.Array, tolerance: float) -> None:
    assert ours.dtype == jnp.float32
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(
    "spec", ["BLD,DHK->BHLK", "BHLK,HKD->BLD", "BHLK,BHMK->BHLM", "BHLM,BHMK->BHLK"]
)
def test_gradient_of_a_product_is_that_of_einsum(spec, dtype, tolerance):
    operands = operands_of(spec, SIZES)
    expected, pull = jax.vjp(functools.partial(jnp.einsum, spec), *operands)
    ours, pull_ours = jax.vjp(functools.partial(product, spec, dtype), *operands)
    assert_close(ours, expected, tolerance)
    for gradient, expected_gradient in zip(
        pull_ours(jnp.cos(expected)), pull(jnp.cos(expected)), strict=True
    ):
        assert_close(gradient, expected_gradient, tolerance)


@pytest.mark.parametrize("spec", ["BHLM,BHMK->BHLK", "BHLM,BHLK->BHMK", "BHLK,BHLM->BHMK"])
@pytest.mark.parametrize("ones", ["", "B", "H", "BH", "L", "K", "M", "LM", "BHLMK"])
def test_batches_of_matrices_in_bfloat16_are_multiplied_whatever_their_sizes(spec, ones):
    """On a CPU XLA refuses only when it runs a product that it cannot compute."""
    sizes = dict.fromkeys("BHLMK", 24) | {"B": 3, "H": 2, "K": 8} | dict.fromkeys(ones, 1)
    operands = operands_of(spec, sizes)

    @jax.jit
    def of_transpositions(*operands: jax.Array) -> jax.Array:
        """As in the model, where queries, keys and values are [B, L, H, K] first."""
        transposed = (operand.swapaxes(1, 2) for operand in operands)
        return product_in_training(spec, "bfloat16", *transposed)

    ours = of_transpositions(*(operand.swapaxes(1, 2) for operand in operands))
    rounded = [operand.astype(jnp.bfloat16).astype(jnp.float32) for operand in operands]
    assert_close(ours, jnp.einsum(spec, *rounded), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("spec", "ones"),
    [
        *(("BLD,BLF->FD", ones) for ones in ("", "B", "L", "BL", "D", "F", "BLDF")),
        *(("RND,RNV->RVD", ones) for ones in ("", "R", "N", "RN", "D", "V", "RNDV")),
        *(("BC,BD->CD", ones) for ones in ("", "B", "C", "D", "BCD")),
    ],
)
def test_weights_gradients_are_multiplied_whatever_their_sizes(spec, ones, dtype):
    sizes = dict.fromkeys("BLFNV", 24) | dict.fromkeys("RDC", 3) | dict.fromkeys(ones, 1)
    operands = operands_of(spec, sizes)
    ours = jax.jit(functools.partial(product_apart, spec, dtype))(*operands)
    rounded = [np.asarray(operand.astype(dtype), np.float64) for operand in operands]
    assert_close(ours, np.einsum(spec, *rounded), 1e-5)


@pytest.mark.parametrize(
    ("platform", "parts", "kept_apart"), [("cpu", 1, 1), ("cpu", 2, 0), ("tpu", 1, 0)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_kernel_with_wide_inputs_is_a_product_apart_on_a_cpu(
    monkeypatch, dtype, platform, parts, kept_apart
):
    """But not of a batch in parts: their sum would be in the function, in no order with others."""
    monkeypatch.setattr(layers, "device_platform", lambda: platform)
    monkeypatch.setattr(layers, "part_count", lambda: parts)
    config = BertConfig(vocab_size=96, dtype=dtype)
    wide, narrow, kernels = jnp.ones((2, 3, 8)), jnp.ones((2, 3, 4)), jnp.ones((2, 4, 8))

    def loss(spec, axes, inputs, kernel):
        return projected(spec, config, axes, inputs, (kernel,))[0].sum()

    def apart(*arguments):
        return jax.jit(jax.grad(loss, 3), static_argnums=(0, 1)).lower(*arguments).as_text()

    of_wide = apart("BLF,FD->BLD", ("mlp", "embed"), wide, kernels[0].T)
    of_narrow = apart("BLD,DF->BLF", ("embed", "mlp"), narrow, kernels[1])
    assert of_wide.count('inlineable = "false"') == kept_apart
    assert "inlineable" not in of_narrow


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("spec", "shapes", "axes", "transposed"),
    [
        ("BLD,DHK->BHLK", [(2, 3, 24), (24, 5, 8)], ("embed", "heads", "head"), "[40,24]"),
        ("BHLK,HKD->BLD", [(2, 5, 3, 8), (5, 8, 24)], ("heads", "head", "embed"), "[24,40]"),
        ("BLD,DF->BLF", [(2, 3, 24), (24, 40)], ("embed", "mlp"), "[40,24]"),
    ],
)
def test_the_gradient_of_inputs_is_einsums_and_copies_no_kernel_on_a_cpu(
    spec, shapes, axes, transposed, dtype
):
    config = BertConfig(vocab_size=96, dtype=dtype)
    random = np.random.default_rng(0)
    inputs, kernel = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    along = random.standard_normal(np.einsum(spec, inputs, kernel).shape).astype(np.float32)

    def gradient(inputs, kernel, along):
        return jax.vjp(lambda x: projected(spec, config, axes, x, (kernel,))[0], inputs)[1](along)

    program = jax.jit(gradient).lower(inputs, kernel, along).compile()
    rounded = (np.asarray(jnp.asarray(array, dtype), np.float64) for array in (along, kernel))
    left, right = spec.split("->")[0].split(",")
    expected = np.einsum(f"{spec.split('->')[1]},{right}->{left}", *rounded)
    assert_close(program(inputs, kernel, along)[0], expected, 1e-5)
    assert transposed not in (program.as_text() or transposed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_kernel_with_wide_inputs_is_transposed_once(dtype):
    config = BertConfig(vocab_size=96, dtype=dtype)

    def loss(kernel, inputs):
        return projected("BLF,FD->BLD", config, ("mlp", "embed"), inputs, (kernel,))[0].sum()

    def updated(kernel, inputs):
        gradient = jax.grad(loss)(kernel, inputs)
        norm = jnp.linalg.norm(gradient)
        return jax.lax.cond(norm < 1e9, lambda: kernel - gradient / norm, lambda: kernel)

    step = jax.jit(updated, donate_argnums=0)
    program = step.lower(jnp.ones((48, 24)), jnp.ones((2, 16, 48))).compile().as_text()
    transposed = re.findall(r"= f32\[48,24\]\{1,0\} (?:copy|transpose)\(", program or "")
    assert len(transposed) == 1


@pytest.mark.parametrize(
    ("dtype", "platform", "kept_apart"),
    [("bfloat16", "cpu", 5), ("float32", "cpu", 0), ("bfloat16", "tpu", 0)],
)
def test_in_training_attention_on_a_cpu_keeps_its_bfloat16_products_apart(
    monkeypatch, dtype, platform, kept_apart
):
    """The context, and four gradients; the scores and what has no gradient are XLA's to fuse."""
    monkeypatch.setattr(products, "device_platform", lambda: platform)
    inputs = jnp.ones((3, 2, 2, 16, 8), dtype)

    def context(query, key, value):
        nothing = {"dropout_rate": 0.0, "dropout_seed": None}
        return attention(query, key, value, jnp.zeros(()), dtype=dtype, **nothing)

    def loss(*inputs):
        return context(*inputs).sum()

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*inputs).as_text()
    assert gradient.count('inlineable = "false"') == kept_apart
    assert "inlineable" not in jax.jit(context).lower(*inputs).as_text()
