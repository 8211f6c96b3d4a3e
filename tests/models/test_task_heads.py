"""Where the heads of fine-tuning drop: before the classifier, and nowhere before spans."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.models.task_heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

WIDTH, RATE = 32, 0.3
CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=WIDTH,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
    hidden_dropout_prob=RATE,
)


def share_of_zeros(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Of the logits of a head that hands on some values of the encoder's as they come to it."""
    ids = jax.random.randint(jax.random.key(0), shape, 0, CONFIG.vocab_size)
    inputs = (ids, jnp.zeros_like(ids), jnp.ones_like(ids))
    params: Any = nn.unbox(jax.jit(model.init)(jax.random.key(1), *inputs))["params"]
    name = "qa_outputs" if "qa_outputs" in params else "classifier"
    kernel = jnp.eye(*params[name]["kernel"].shape)
    params = params | {name: {"kernel": kernel, "bias": jnp.zeros(kernel.shape[1])}}
    outputs: Any = jax.jit(
        lambda key: model.apply({"params": params}, *inputs, deterministic=False, rngs=key)
    )({"dropout": jax.random.key(2)})
    return float(np.mean(np.concatenate([value.ravel() for value in outputs.values()]) == 0))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (BertForSequenceClassification(CONFIG, WIDTH), (64, 8)),
        (BertForTokenClassification(CONFIG, WIDTH), (8, 8)),
        (BertForMultipleChoice(CONFIG), (256, 4, 8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_dropout_stands_before_the_classifier(model, shape):
    assert share_of_zeros(model, shape) == pytest.approx(RATE, abs=0.06)
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0)
    assert share_of_zeros(dataclasses.replace(model, config=config), shape) == 0


def test_no_dropout_stands_before_spans():
    assert share_of_zeros(BertForQuestionAnswering(CONFIG), (64, 8)) == 0
