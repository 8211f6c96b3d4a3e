"""LayerNorm and its gradient, against their definition in float64 and flax's module."""

import dataclasses
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.models import BertModel, layers

CONFIG = BertConfig(hidden_size=24, num_attention_heads=2)
SHAPE = (3, 5, 24)


@pytest.fixture(params=["cpu", "default"])
def platform(request, monkeypatch):
    """Both ways to sum: a CPU's, and every other's, which computes here all the same."""

    def chosen(*operands, **ways):
        return ways[request.param](*operands)

    monkeypatch.setattr(layers.lax, "platform_dependent", chosen)


def arrays(mean: float, dtype: str) -> tuple[jax.Array, dict[str, jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.key(0), 4)
    inputs = mean + 2 * jax.random.normal(keys[0], SHAPE)
    scale = 1 + 0.3 * jax.random.normal(keys[1], SHAPE[-1:])
    bias = 0.3 * jax.random.normal(keys[2], SHAPE[-1:])
    gradient = jax.random.normal(keys[3], SHAPE)
    return inputs.astype(dtype), {"scale": scale, "bias": bias}, gradient.astype(dtype)


def module_of(dtype: str) -> layers.LayerNorm:
    return layers.LayerNorm(dataclasses.replace(CONFIG, dtype=dtype))


def value_and_gradient(module: nn.Module, inputs, params, gradient) -> tuple[Any, ...]:
    outputs, pull = jax.vjp(lambda x, p: module.apply({"params": p}, x), inputs, params)
    return outputs, *pull(gradient)


def by_definition(inputs, params, gradient):
    """In float64, the gradient of the inputs by its textbook form."""
    x, g = (np.asarray(array, np.float64) for array in (inputs, gradient))
    scale, bias = (np.asarray(params[name], np.float64) for name in ("scale", "bias"))
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + CONFIG.layer_norm_eps)
    unit = (x - x.mean(axis=-1, keepdims=True)) / deviation
    h = g * scale
    along = unit * (h * unit).mean(axis=-1, keepdims=True)
    x_gradient = (h - h.mean(axis=-1, keepdims=True) - along) / deviation
    of_params = {"scale": (g * unit).sum((0, 1)), "bias": g.sum((0, 1))}
    return unit * scale + bias, x_gradient, of_params


def assert_close(found, expected, tolerance: float) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64), other, rtol=tolerance, atol=tolerance
        )


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("dtype", "mean", "tolerance"),
    [("float32", 0, 2e-6), ("float32", 1000, 5e-4), ("bfloat16", 0, 1e-2)],
)
def test_value_and_gradient_follow_the_definition(dtype, mean, tolerance):
    given = arrays(mean, dtype)
    found = value_and_gradient(module_of(dtype), *given)
    assert_close(found, by_definition(*given), tolerance)
    assert found[0].dtype == found[1].dtype == dtype
    assert {leaf.dtype for leaf in jax.tree.leaves(found[2])} == {jnp.dtype("float32")}


@pytest.mark.usefixtures("platform")
def test_it_is_flax_s_with_a_gradient_of_its_own():
    given = arrays(0.5, "float32")
    flax_s = nn.LayerNorm(epsilon=CONFIG.layer_norm_eps, use_fast_variance=False)
    found, expected = (
        value_and_gradient(module, *given) for module in (module_of("float32"), flax_s)
    )
    assert_close(found, expected, 2e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_the_shape_of_its_inputs_it_keeps_them_alone(dtype):
    inputs, params, _ = arrays(0, dtype)
    module = layers.LayerNorm(CONFIG)
    _, pull = jax.vjp(lambda x: module.apply({"params": params}, x), inputs)
    kept = [leaf.dtype for leaf in jax.tree.leaves(pull) if leaf.shape == SHAPE]
    assert kept == [dtype]


def largest_kernel(depth: int) -> int:
    """Lines of the largest kernel that computes a gradient on a CPU, of so many layers."""
    model = BertModel(
        BertConfig(
            vocab_size=128,
            hidden_size=128,
            num_hidden_layers=depth,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=128,
        )
    )
    ids, key = jnp.zeros((8, 128), jnp.int32), jax.random.key(0)
    inputs = (ids, ids, jnp.ones_like(ids))
    params = nn.unbox(model.init(key, *inputs))

    def loss(params: Any, key: jax.Array) -> jax.Array:
        outputs = model.apply(params, *inputs, deterministic=False, rngs={"dropout": key})
        return jnp.stack([jnp.square(x).sum() for x in jax.tree.leaves(outputs)]).sum()

    text = jax.jit(jax.grad(loss)).lower(params, key).compile().as_text() or ""
    kernels = re.findall(r"\n%?fused_computation.*?\n}", text, re.DOTALL)
    return max(kernel.count("\n") for kernel in kernels)


def test_a_gradient_is_not_computed_again_from_all_layers_above():
    assert largest_kernel(2) == largest_kernel(4)
