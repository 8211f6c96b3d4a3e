"""What tests of the ways to attend have in common."""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.models import BertForPreTraining

# Of the largest value; bfloat16 rounds the probabilities of plain attention alone.
TOLERANCES = {"float32": 3e-6, "bfloat16": 1e-2}
SEED = (3, 2**32 - 5)


def masks(batch: int, length: int) -> np.ndarray:
    """Row 0 whole, row 1 padded at its end, row 2 with holes, too."""
    mask = np.ones((batch, length), np.int32)
    mask[1:, length - length // 3 :] = 0
    mask[2:, ::5] = 0
    return mask


def packed_segments() -> np.ndarray:
    """Three rows of 400: of several sequences, of one with padding, of none; ids from 1 on."""
    segments = np.zeros((3, 400), np.int32)
    for row, lengths in zip(segments, [[130, 7, 200], [390], []], strict=True):
        ids = np.repeat(np.arange(len(lengths)) + 1, lengths)
        row[: len(ids)] = ids
    return segments


def deviation(ours: jax.Array, expected: jax.Array) -> float:
    """Largest difference, of the largest value."""
    a, b = np.asarray(ours, np.float32), np.asarray(expected, np.float32)
    return float(np.abs(a - b).max() / np.abs(b).max())


CONFIG = BertConfig(
    vocab_size=90,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=128,
    attention_probs_dropout_prob=0.1,
    vocab_multiple=32,
)


def loss_of(config: BertConfig) -> tuple[Callable[[Any], jax.Array], Any]:
    """The loss of a whole model with dropout, at positions that are no padding, and parameters."""
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(0, 90, (8, 128)),
        "token_type_ids": rng.integers(0, 2, (8, 128)),
        "attention_mask": masks(8, 128),
        "masked_lm_positions": np.full((8, 3), [1, 4, 61]),
    }
    model = BertForPreTraining(config)
    params = jax.jit(model.init)(jax.random.key(0), **batch)

    def of(params: Any) -> jax.Array:
        rngs = {"dropout": jax.random.key(1)}
        outputs: Any = model.apply(params, **batch, deterministic=False, rngs=rngs)
        return jax.nn.log_softmax(outputs["mlm_logits"])[..., 7].mean()

    return of, params


def loss_and_gradient(config: BertConfig) -> tuple[jax.Array, Any]:
    loss, params = loss_of(config)
    return jax.jit(jax.value_and_grad(loss))(params)


@functools.cache
def plain_loss_and_gradient() -> tuple[jax.Array, Any]:
    return loss_and_gradient(CONFIG)


def assert_same(found: tuple[jax.Array, Any], expected: tuple[jax.Array, Any]) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max() + 1e-7)


def on(platform: str, monkeypatch: pytest.MonkeyPatch, **device: str) -> None:
    """Let jax's devices be of another platform."""
    told = {"device_kind": "TPU v5 lite", "compute_capability": "9.0"} | device
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform=platform, **told)])
