"""What a model is trained for: its outputs for a batch, and what is made of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import BertForPreTraining
from bert_jax.training.losses import loss_weights, pretraining_metrics

Batch = Mapping[str, jax.Array]
Metrics = dict[str, tuple[jax.Array, jax.Array]]


class Objective(NamedTuple):
    """Functions that jax traces.

    init: from a key to initial parameters, boxed with their logical axes.
    forward: from parameters, a batch and a dropout key (None: no dropout) to the model's outputs.
    weights: from a batch to what the sum of each loss is divided by: float32 scalars, by the names
      of losses in `metrics`. With gradient accumulation they are those of the whole batch, so that
      the gradients of its micro-batches add up.
    metrics: from outputs and their batch to the (sum, weight) of each metric, losses included.
    """

    init: Callable[[jax.Array], Any]
    forward: Callable[[Any, Batch, jax.Array | None], dict[str, jax.Array]]
    weights: Callable[[Batch], dict[str, jax.Array]]
    metrics: Callable[[dict[str, jax.Array], Batch], Metrics]


def apply(
    model: nn.Module, params: Any, inputs: Sequence[jax.Array | None], key: jax.Array | None
) -> dict[str, jax.Array]:
    """The model's outputs for its inputs, None where it has none; no key is no dropout."""
    rngs = None if key is None else {"dropout": key}
    outputs: Any = model.apply({"params": params}, *inputs, deterministic=key is None, rngs=rngs)
    return outputs


def summed_loss(metrics: Metrics, weights: Mapping[str, jax.Array]) -> jax.Array:
    """The sum of the losses that have a weight, each divided by it once.

    Args:
      metrics: of a batch or of one of its micro-batches.
      weights: of the whole batch.
    """
    return jnp.sum(jnp.stack([metrics[name][0] / weight for name, weight in weights.items()]))


def pretraining(model: BertForPreTraining) -> Objective:
    """Masked language model and, where the model has it, next sentence (BERT paper, A.2).

    Batches are those of `bert_jax.data.batch_shapes`, packed or not.
    """

    def init(key: jax.Array) -> Any:
        tokens, positions = jnp.zeros((1, 8), jnp.int32), jnp.zeros((1, 1), jnp.int32)
        return model.init(key, tokens, tokens, tokens, positions)["params"]

    def forward(params: Any, batch: Batch, key: jax.Array | None) -> dict[str, jax.Array]:
        names = ("input_ids", "token_type_ids", "attention_mask", "masked_lm_positions")
        packed = ("position_ids", "segment_ids", "cls_positions")
        return apply(model, params, [batch.get(name) for name in (*names, *packed)], key)

    return Objective(init, forward, loss_weights, pretraining_metrics)
