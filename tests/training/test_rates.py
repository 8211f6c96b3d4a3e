"""Rates of layers, head and embeddings, and parameters that stay as they are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.training.rates import layer_rate, stop_gradients, with_rates

# Of an encoder of three layers, from the bottom up.
NAMES = (
    "bert/embeddings/word_embeddings/embedding",
    "bert/encoder/layer_0/output/dense/kernel",
    "bert/encoder/layer_1/output/dense/kernel",
    "bert/encoder/layer_2/output/dense/kernel",
    "bert/pooler/dense/kernel",
    "classifier/kernel",
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"decay": 0.5}, [0.125, 0.25, 0.5, 1, 1, 1]),
        ({"head": 10.0}, [1, 1, 1, 1, 1, 10]),
        ({"decay": 0.5, "head": 3.0}, [0.125, 0.25, 0.5, 1, 1, 3]),
        ({"frozen_embeddings": True}, [0, 1, 1, 1, 1, 1]),
        ({"frozen_layers": 2}, [0, 0, 0, 1, 1, 1]),
        ({"frozen_layers": 1, "decay": 0.5}, [0, 0, 0.5, 1, 1, 1]),
        ({"frozen_layers": -1, "head": 2.0}, [0, 0, 0, 0, 1, 2]),
    ],
)
def test_rates_from_the_embeddings_to_the_head(settings, expected):
    assert [layer_rate(name, layers=3, **settings) for name in NAMES] == expected


@pytest.mark.parametrize("part", ["position_embeddings", "token_type_embeddings", "LayerNorm/bias"])
def test_all_parts_of_the_embeddings_have_one_rate(part):
    name = f"bert/embeddings/{part}"
    assert layer_rate(name, layers=3, decay=0.5) == 0.125
    assert layer_rate(name, layers=3, frozen_embeddings=True) == 0


def test_of_twelve_layers_the_tenth_is_no_first():
    rates = [layer_rate(f"bert/encoder/layer_{i}/x", layers=12, decay=0.5) for i in (1, 10, 11)]
    assert rates == [2**-10, 0.5, 1]


def rate(name: str) -> float:
    return {"bert/a": 0.0, "bert/b": 0.5, "head/c": 3.0}[name]


def test_updates_are_scaled_and_frozen_parameters_have_no_state():
    params = {"bert": {"a": jnp.ones(4), "b": jnp.ones(4)}, "head": {"c": jnp.ones(4)}}
    gradients = jax.tree.map(lambda leaf: 2 * leaf, params)
    plain: Any = optax.adam(0.1)  # to which the scale of gradients is nothing
    scaled: Any = with_rates(plain, rate)
    states = plain.init(params), scaled.init(params)
    assert sum(leaf.size for leaf in jax.tree.leaves(states[1])) == 2 * 8 + 1  # moments, a count
    for _ in range(2):
        expected, of_plain = plain.update(gradients, states[0], params)
        updates, of_scaled = scaled.update(gradients, states[1], params)
        states = of_plain, of_scaled
        assert not updates["bert"]["a"].any()
        np.testing.assert_allclose(updates["bert"]["b"], 0.5 * expected["bert"]["b"])
        np.testing.assert_allclose(updates["head"]["c"], 3.0 * expected["head"]["c"])


def test_nothing_flows_to_what_is_frozen():
    params = {"bert": {"a": jnp.array(2.0), "b": jnp.array(3.0)}, "head": {"c": jnp.array(5.0)}}

    def product(params):
        stopped = stop_gradients(params, rate)
        return stopped["bert"]["a"] * stopped["bert"]["b"] * stopped["head"]["c"]

    value, gradients = jax.value_and_grad(product)(params)
    assert value == 30
    assert gradients == {"bert": {"a": 0, "b": 10}, "head": {"c": 6}}
