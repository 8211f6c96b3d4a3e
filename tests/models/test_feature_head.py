"""The LSTM head over frozen features, against PyTorch's LSTM."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from bert_jax.config import BertConfig
from bert_jax.models.encoder import BertModel
from bert_jax.models.feature_head import FEATURES, FeatureHead, FeatureTagger

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=5,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
    vocab_multiple=1,
)
LABELS, WIDTH = 3, 6


def batch_of(lengths: list[int], length: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    ids = rng.integers(1, CONFIG.vocab_size, mask.shape) * mask
    return {
        "input_ids": jnp.asarray(ids),
        "token_type_ids": jnp.zeros_like(ids),
        "attention_mask": jnp.asarray(mask),
    }


def tagger(features: str = "concat_last_four") -> FeatureTagger:
    return FeatureTagger(CONFIG, LABELS, features, WIDTH)


@functools.cache
def init(features: str = "concat_last_four") -> dict[str, Any]:
    initialise = jax.jit(tagger(features).init)
    variables: Any = nn.unbox(initialise(jax.random.key(1), **batch_of([8], 8)))
    return variables["params"]


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model: FeatureTagger, params: Any, batch: dict[str, Any]) -> jax.Array:
    outputs: Any = model.apply({"params": params}, **batch)
    return outputs["token_logits"]


def torch_lstm(params: dict[str, Any], inputs: int) -> torch.nn.LSTM:
    """PyTorch's two layers with our weights; its gates are in the order i, f, g, o, too."""
    lstm = torch.nn.LSTM(inputs, WIDTH, num_layers=2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for index in range(2):
            for direction, suffix in (("forward", ""), ("backward", "_reverse")):
                cell = params[f"{direction}_{index}"]["cell"]
                for side, theirs in (("i", "weight_ih"), ("h", "weight_hh")):
                    gates = [np.asarray(cell[side + gate]["kernel"]).T for gate in "ifgo"]
                    weight = torch.from_numpy(np.concatenate(gates))
                    getattr(lstm, f"{theirs}_l{index}{suffix}").copy_(weight)
                biases = np.concatenate([cell["h" + gate]["bias"] for gate in "ifgo"])
                getattr(lstm, f"bias_hh_l{index}{suffix}").copy_(torch.from_numpy(biases))
                getattr(lstm, f"bias_ih_l{index}{suffix}").zero_()
    return lstm


def test_the_head_computes_what_pytorchs_packed_lstm_does():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2, 3, 7, 16)).astype(np.float32)
    lengths = [7, 4, 1]
    mask = jnp.asarray(np.arange(7) < np.array(lengths)[:, None], jnp.int32)
    head = FeatureHead(CONFIG, LABELS, False, WIDTH)
    abstract: Any = nn.unbox(jax.eval_shape(head.init, jax.random.key(0), states, mask))
    params = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(p.dtype) / 3, abstract)
    ours = np.asarray(jax.jit(head.apply)(params, states, mask))

    inner = params["params"]
    beside = torch.from_numpy(np.concatenate(list(states), axis=-1))
    pack = torch.nn.utils.rnn.pack_padded_sequence
    packed, _ = torch_lstm(inner, 32)(pack(beside, torch.tensor(lengths), batch_first=True))
    hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    expected = hidden.detach().numpy() @ inner["classifier"]["kernel"] + inner["classifier"]["bias"]
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(ours[row, :length], expected[row, :length], atol=2e-6)


def test_features_are_the_rows_of_table_7():
    states = ["embeddings", 1, 2, 3, 4, 5]
    assert {name: states[chosen] for name, chosen in FEATURES.items()} == {
        "concat_last_four": [2, 3, 4, 5],
        "weighted_last_four": [2, 3, 4, 5],
        "weighted_all": [1, 2, 3, 4, 5],
        "second_to_last": [4],
        "last": [5],
        "embeddings": ["embeddings"],
    }


def test_weighted_layers_count_the_same_at_first_and_then_as_their_weights_say():
    model, batch = tagger("weighted_last_four"), batch_of([8, 5], 8)
    params = init("weighted_last_four")
    head, encoder = dict(params["tagger"]), BertModel(CONFIG, pooling=False)
    states: Any = jax.jit(functools.partial(encoder.apply, hidden_states=True))(
        {"params": params["bert"]}, **batch
    )
    chosen = states[0][2:]
    assert head.pop("scale") == 1
    assert not head.pop("layer_weights").any()
    plain = jax.jit(FeatureHead(CONFIG, LABELS, False, WIDTH).apply)
    for scale, shares in [(1.0, [0.25] * 4), (2.0, [0.1, 0.2, 0.3, 0.4])]:
        given = scale * jnp.tensordot(jnp.array(shares), chosen, 1)[None]
        expected = plain({"params": head}, given, batch["attention_mask"])
        mixed = {**head, "scale": jnp.array([scale]), "layer_weights": jnp.log(jnp.array(shares))}
        found = logits_of(model, {**params, "tagger": mixed}, batch)
        np.testing.assert_allclose(found, np.asarray(expected), atol=1e-5)


def test_padding_changes_nothing():
    model = tagger()
    params = init()
    short = batch_of([6, 4], 6)
    padded = {name: jnp.pad(array, ((0, 1), (0, 5))) for name, array in short.items()}
    padded["input_ids"] = padded["input_ids"].at[:, 6:].set(7)
    expected, found = logits_of(model, params, short), logits_of(model, params, padded)
    np.testing.assert_allclose(found[0, :6], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1, :4], expected[1, :4], atol=1e-5)
    assert jnp.isfinite(found).all()  # a row of padding too: 0 times NaN would be NaN


def test_no_gradient_reaches_the_encoder():
    model, batch = tagger("weighted_last_four"), batch_of([8, 5], 8)
    params = init("weighted_last_four")

    def scalar(params: Any) -> jax.Array:
        return (logits_of(model, params, batch) ** 2).mean()

    gradients = jax.jit(jax.grad(scalar))(params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradients["bert"]))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradients["tagger"]))


def test_dropout_is_of_the_head_alone():
    model, batch = tagger(), batch_of([8, 5], 8)

    @functools.partial(jax.jit, static_argnames="deterministic")
    def outputs(params: Any, key: jax.Array, deterministic: bool) -> tuple[jax.Array, Any]:
        said, kept = model.apply(
            {"params": params},
            **batch,
            deterministic=deterministic,
            rngs={"dropout": key},
            capture_intermediates=lambda module, _: module.name == "bert",
        )
        return said["token_logits"], kept["intermediates"]["bert"]["__call__"][0][0]

    logits, states = outputs(init(), jax.random.key(0), False)
    expected_logits, expected_states = outputs(init(), jax.random.key(0), True)
    np.testing.assert_array_equal(states, expected_states)
    assert abs(logits - expected_logits).max() > 1e-3


def test_it_learns_what_only_context_tells():
    """The label of a piece is whether the next piece's id is even: of no piece alone."""
    model = tagger()
    batch = batch_of([12] * 24, 12, seed=3)
    labels = jnp.roll(batch["input_ids"], -1, axis=1).at[:, -1].set(0) % 2
    params = init()
    optimizer = optax.adam(1e-2)

    def loss(head: Any) -> jax.Array:
        logits = logits_of(model, {**params, "tagger": head}, batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(head: Any, state: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(head)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(head, updates), state, value

    head = params["tagger"]
    state = optimizer.init(head)
    for _ in range(250):
        head, state, value = step(head, state)
    assert value < 0.1
