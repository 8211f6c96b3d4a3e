"""The losses that tasks share, as sums and weights."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.tasks.task import Metrics


def cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Metrics:
    """Loss in nats and accuracy over the last axis of `logits`.

    Args:
      logits: float32 [..., C].
      labels: int32 [...].
      weights: float32 [...]: of the labels' classes; 0 where there is nothing to say.
    """
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    counted = (weights > 0).astype(jnp.float32)
    correct = jnp.argmax(logits, axis=-1) == labels
    return {
        "loss": (jnp.sum(losses * weights), jnp.sum(weights)),
        "accuracy": (jnp.sum(correct * counted), jnp.sum(counted)),
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis, float64."""
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)
