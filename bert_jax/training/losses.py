"""The pretraining losses, as sums and weights.

A mean of means is wrong wherever parts differ in weight: devices, micro-batches, a ragged last
batch. So nothing here divides; `objective.summed_loss` does, once, by the whole batch's weights.

A batch is a dict of arrays (B sequences, P predictions each): masked_lm_ids int32 [B, P],
masked_lm_weights float32 [B, P] (1 real, 0 padding), and with next-sentence prediction
next_sentence_labels int32 [B] (0 = is next, 1 = random), next_sentence_weights float32 [B]. Where
it is packed, B is its rows, of N sequences each, and the last two are [B, N].
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

Batch = Mapping[str, jax.Array]
# Keeps the masked-LM mean finite in a batch without predictions; run_pretraining.py,
# `get_masked_lm_output`.
MLM_WEIGHT_EPSILON = 1e-5


def pretraining_metrics(outputs: Batch, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Weighted sums and weights, float32 scalars, of each metric over the batch.

    Args:
      outputs: the model's: mlm_logits float32 [B, P, V] and, where the batch has
        next_sentence_labels, nsp_logits float32 [B, 2], or [B, N, 2].
      batch: labels and weights, as above.

    Returns:
      mlm_loss (nats), mlm_accuracy and, with labels, nsp_loss, nsp_accuracy: (sum, weight) each.
    """
    metrics = _classification(
        "mlm", outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"]
    )
    if "next_sentence_labels" in batch:
        metrics |= _classification(
            "nsp",
            outputs["nsp_logits"],
            batch["next_sentence_labels"],
            batch["next_sentence_weights"],
        )
    return metrics


def loss_weights(batch: Batch) -> dict[str, jax.Array]:
    """What each loss's sum is divided by: float32 scalars, from the whole batch's weights alone.

    With gradient accumulation, each micro-batch's sums are divided by these weights of the whole
    batch; the gradients then add up to those of the large batch.
    """
    weights = {"mlm_loss": jnp.sum(batch["masked_lm_weights"]) + MLM_WEIGHT_EPSILON}
    if "next_sentence_labels" in batch:
        weights["nsp_loss"] = jnp.sum(batch["next_sentence_weights"])
    return weights


def _classification(
    name: str, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Cross-entropy and accuracy over the last axis of `logits`, under `name`."""
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - label_logits
    # Against the maximum that logsumexp needs anyway: a CPU takes longer for argmax over a
    # vocabulary than for the rest of the loss. A label as likely as the likeliest counts.
    correct = label_logits >= jnp.max(logits, axis=-1)
    total = jnp.sum(weights)
    return {
        f"{name}_loss": (jnp.sum(losses * weights), total),
        f"{name}_accuracy": (jnp.sum(correct * weights), total),
    }
