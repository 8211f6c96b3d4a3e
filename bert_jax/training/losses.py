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

from bert_jax.models.devices import device_platform
from bert_jax.models.layers import sum_of_rows

Batch = Mapping[str, jax.Array]
# Keeps the masked-LM mean finite in a batch without predictions; run_pretraining.py,
# `get_masked_lm_output`.
MLM_WEIGHT_EPSILON = 1e-5


def pretraining_metrics(outputs: Batch, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Weighted sums and weights, float32 scalars, of each metric over the batch.

    Args:
      outputs: the model's: mlm_scores float32 [B, P, V], mlm_bias float32 [V] and, where the batch
        has next_sentence_labels, nsp_logits float32 [B, 2], or [B, N, 2].
      batch: labels and weights, as above.

    Returns:
      mlm_loss (nats), mlm_accuracy and, with labels, nsp_loss, nsp_accuracy: (sum, weight) each.
    """
    metrics = _classification(
        "mlm",
        outputs["mlm_scores"],
        outputs["mlm_bias"],
        batch["masked_lm_ids"],
        batch["masked_lm_weights"],
    )
    if "next_sentence_labels" in batch:
        metrics |= _classification(
            "nsp",
            outputs["nsp_logits"],
            jnp.zeros(2, jnp.float32),
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
    name: str, scores: jax.Array, bias: jax.Array, labels: jax.Array, weights: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Cross-entropy and accuracy of the logits `scores + bias`, under `name`."""
    losses, correct = biased_cross_entropy(scores, bias, labels)
    total = jnp.sum(weights)
    return {
        f"{name}_loss": (jnp.sum(losses * weights), total),
        f"{name}_accuracy": (jnp.sum(correct * weights), total),
    }


@jax.custom_vjp
def biased_cross_entropy(
    scores: jax.Array, bias: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The losses of the logits `scores + bias`, and whether the label is the likeliest.

    Its gradient is written out because the bias's is the sum over rows of the scores'. Of what the
    forward pass kept that is a product, and the scores' gradient, which is then cast for products
    of its own, is never written in float32 (docs/cpu_path.md).

    Args:
      scores: float32 [..., V].
      bias: float32 [V].
      labels: integers [...], below V.

    Returns:
      Nats, float32 [...], and bool [...]: a label as likely as the likeliest counts.
    """
    return _cross_entropy_forward(scores, bias, labels)[0]


def _cross_entropy_forward(scores: jax.Array, bias: jax.Array, labels: jax.Array):
    logits, labels = scores + bias, labels[..., None]
    label_logits = jnp.take_along_axis(logits, labels, axis=-1)
    # Correct by the maximum, which the loss needs anyway: a CPU takes longer for argmax over a
    # vocabulary than for the rest of the loss.
    largest = jnp.max(logits, axis=-1, keepdims=True)
    exponentials = jnp.exp(logits - largest)
    total = exponentials.sum(-1, keepdims=True)
    denominators = jnp.log(total) + largest
    outputs = (denominators - label_logits)[..., 0], (label_logits >= largest)[..., 0]
    if device_platform() == "gpu":  # which computes exponentials again sooner than it reads them
        return outputs, (scores, bias, denominators, labels)
    return outputs, (exponentials, total, labels)


def _cross_entropy_backward(residuals: tuple[jax.Array, ...], gradients: tuple[jax.Array, ...]):
    if device_platform() == "gpu":
        scores, bias, denominators, labels = residuals
        at_label = jax.lax.broadcasted_iota(labels.dtype, scores.shape, scores.ndim - 1) == labels
        gradient = (jnp.exp(scores + bias - denominators) - at_label) * gradients[0][..., None]
        return gradient, sum_of_rows(gradient, jnp.ones(labels.shape, jnp.float32)), None
    exponentials, total, labels = residuals
    scale = gradients[0][..., None] / total
    # (probabilities - 1 at the label) times `total`.
    _, pull = jax.vjp(lambda values: jnp.take_along_axis(values, labels, axis=-1), exponentials)
    scaled = exponentials + pull(-total)[0]
    return scaled * scale, sum_of_rows(scaled, scale), None


biased_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
