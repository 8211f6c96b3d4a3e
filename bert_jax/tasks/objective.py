"""A task as what a model is trained for."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.tasks.task import Feature, Task
from bert_jax.training.objective import Batch, Metrics, Objective, apply
from bert_jax.training.rates import stop_gradients


def task_objective(
    task: Task, model: nn.Module, example: Feature, rate: Callable[[str], float]
) -> Objective:
    """What a model with the head of `task` is trained for.

    Args:
      task: with what it has learnt of its training examples.
      model: of `task.model`.
      example: a feature, as long as any; gives the shape of the model's inputs.
      rate: of the learning rate by parameter; what has the rate 0 is a constant to the gradient.
    """

    def init(key: jax.Array) -> Any:
        tokens = jnp.zeros((1, *example["input_ids"].shape[:-1], 8), jnp.int32)
        return model.init(key, tokens, tokens, tokens)["params"]

    def forward(params: Any, batch: Batch, key: jax.Array | None) -> dict[str, jax.Array]:
        names = ("input_ids", "token_type_ids", "attention_mask", "places")
        inputs = [batch[name] for name in names if name in batch]
        return apply(model, stop_gradients(params, rate), inputs, key)

    def weights(batch: Batch) -> dict[str, jax.Array]:
        # Of a batch without a label, as of sentences whose words have no piece, the loss is 0.
        weight = task.loss_weight(batch)
        return {"loss": jnp.where(weight > 0, weight, 1)}

    def metrics(outputs: dict[str, jax.Array], batch: Batch) -> Metrics:
        return task.metrics(outputs, batch)

    return Objective(init, forward, weights, metrics)
