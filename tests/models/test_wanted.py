"""A last layer that is computed at some positions alone says there what a whole one does."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig, MeshConfig
from bert_jax.models import BertModel
from bert_jax.models.encoder import nothing_but_cls
from bert_jax.models.layers import at_positions
from bert_jax.training.sharding import LOGICAL_RULES, make_mesh, shard_batch

CONFIG = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    # Far enough from uniform attention for a key too many to be seen.
    initializer_range=0.3,
)
B, L, W = 8, 16, 5


def inputs_of(packed: bool) -> dict[str, np.ndarray]:
    """Padded rows, or rows of two sequences and padding; some positions are wanted twice."""
    draw = np.random.default_rng(0)
    inputs = {
        "input_ids": draw.integers(0, CONFIG.vocab_size, (B, L)),
        "token_type_ids": draw.integers(0, 2, (B, L)),
        "wanted": draw.integers(0, L, (B, W)),
    }
    if not packed:
        return inputs | {"attention_mask": (np.arange(L) < draw.integers(3, L, (B, 1))).astype(int)}
    second, end = draw.integers(2, 8, (B, 1)), draw.integers(9, L, (B, 1))
    segments = 1 + (np.arange(L) >= second) - 2 * (np.arange(L) >= end)
    return inputs | {
        "segment_ids": np.maximum(segments, 0),
        "position_ids": draw.integers(0, L, (B, L)),
        "cls_positions": np.concatenate([np.zeros_like(second), second], axis=1),
    }


def params_of(config: BertConfig, pooling: bool) -> Any:
    ids = jnp.zeros((1, 8), jnp.int32)
    return nn.unbox(BertModel(config, pooling).init(jax.random.key(0), ids, ids, ids))["params"]


def encode(config: BertConfig, params: Any, inputs: dict, whole: bool, **more: Any) -> Any:
    """The output at the wanted positions and the pooled one; `whole` computes all positions."""
    inputs = {"attention_mask": None} | inputs
    wanted = inputs.pop("wanted") if whole else None
    model = BertModel(config, pooling="pooler" in params)
    outputs: Any = model.apply({"params": params}, **inputs, **more)
    hidden, pooled = outputs
    return (hidden if wanted is None else at_positions(hidden, wanted)), pooled


def value_and_gradient(config: BertConfig, params: Any, inputs: dict, whole: bool) -> Any:
    """The outputs, and the gradient of a sum of them in which no two weigh the same."""

    def total(params: Any) -> tuple[jax.Array, Any]:
        outputs = encode(config, params, inputs, whole)
        leaves = [leaf.astype(jnp.float32).ravel() for leaf in jax.tree.leaves(outputs)]
        flat = jnp.concatenate(leaves)
        return jnp.sin(jnp.arange(flat.size)) @ flat, outputs

    return jax.jit(jax.grad(total, has_aux=True))(params)[::-1]


def assert_same(ours: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), ours, expected
    )


LAYERS = (
    {},
    {"remat": "dots"},
    {"remat": "full"},
    {"scan_layers": True, "num_hidden_layers": 1},
    {"scan_layers": True, "num_hidden_layers": 3},
    {"scan_layers": True, "num_hidden_layers": 3, "remat": "dots"},
)
# Layers packed and not, with pooling and without, and every second time packed with pooling.
CASES = [
    (layers, packed, packed == bool(index % 2))
    for index, layers in enumerate(LAYERS)
    for packed in (False, True)
]


@pytest.mark.parametrize(("layers", "packed", "pooling"), CASES)
def test_values_and_gradients_are_those_of_a_whole_layer(layers, packed, pooling):
    config, inputs = dataclasses.replace(CONFIG, **layers), inputs_of(packed)
    params = params_of(config, pooling)
    ours, expected = (value_and_gradient(config, params, inputs, whole) for whole in (False, True))
    assert ours[0][0].shape == (B, W, 16)
    assert_same(ours, expected)


def test_the_pooled_output_alone_is_the_same():
    inputs = inputs_of(packed=False)
    params = params_of(CONFIG, pooling=True)
    _, expected = encode(CONFIG, params, inputs, whole=True)
    cls_alone = inputs | {"wanted": nothing_but_cls(jnp.asarray(inputs["input_ids"]))}
    nothing, pooled = encode(CONFIG, params, cls_alone, whole=False)
    assert nothing.shape == (B, 0, 16)
    assert_same(pooled, expected)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_dropout_at_wanted_positions_is_as_it_is_in_a_whole_layer(scan_layers):
    """Other bits of the same distribution: means and deviations over many draws agree."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=1, scan_layers=scan_layers)
    inputs = inputs_of(packed=False)
    params = params_of(config, pooling=False)

    def moments(whole: bool) -> tuple[jax.Array, jax.Array]:
        def one(key: jax.Array) -> jax.Array:
            rngs = {"dropout": key}
            return encode(config, params, inputs, whole, deterministic=False, rngs=rngs)[0]

        drawn = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 2000))
        return drawn.mean(axis=0), drawn.std(axis=0)

    (mean, deviation), (expected_mean, expected_deviation) = map(moments, (False, True))
    assert float(expected_deviation.min()) > 0.1
    # Six standard errors of a mean of 2,000, and of the difference of two.
    assert float((jnp.abs(mean - expected_mean) / expected_deviation).max()) < 6 * (2 / 2000) ** 0.5
    np.testing.assert_allclose(deviation, expected_deviation, rtol=0.15)


@pytest.mark.parametrize("scan_layers", [True, False])
def test_it_is_the_same_on_a_mesh(scan_layers):
    config, inputs = dataclasses.replace(CONFIG, scan_layers=scan_layers), inputs_of(packed=True)
    params = params_of(config, pooling=True)
    expected = value_and_gradient(config, params, inputs, whole=True)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_RULES):
        ours = value_and_gradient(config, params, shard_batch(mesh, inputs), whole=False)
    assert_same(ours, expected)
