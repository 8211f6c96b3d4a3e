"""Losses are weighted sums that add up over any split of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training import losses
from bert_jax.training.losses import loss_weights, pretraining_metrics
from bert_jax.training.objective import summed_loss

B, P, V = 6, 4, 11


def random_outputs_and_batch(seed: int) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    outputs = {
        "mlm_scores": rng.normal(size=(B, P, V)).astype(np.float32) * 3,
        "mlm_bias": rng.normal(size=V).astype(np.float32),
        "nsp_logits": rng.normal(size=(B, 2)).astype(np.float32) * 3,
    }
    batch = {
        "masked_lm_ids": rng.integers(0, V, (B, P)),
        "masked_lm_weights": (rng.random((B, P)) < 0.6).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, B),
        "next_sentence_weights": np.array([1, 1, 1, 1, 1, 0], np.float32),
    }
    return outputs, batch


def mlm_logits(outputs: dict) -> np.ndarray:
    return np.asarray(outputs["mlm_scores"]) + np.asarray(outputs["mlm_bias"])


def reference(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple:
    """Sum of weighted losses, sum of weighted hits, sum of weights: one label at a time."""
    loss = hits = total = 0.0
    for row, label, weight in zip(
        logits.reshape(-1, logits.shape[-1]), labels.ravel(), weights.ravel(), strict=True
    ):
        probabilities = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
        loss -= weight * np.log(probabilities[label])
        hits += weight * (np.argmax(row) == label)
        total += weight
    return loss, hits, total


def test_metrics_equal_a_plain_reference():
    outputs, batch = random_outputs_and_batch(0)
    # Many are right, some of them of no weight.
    batch["masked_lm_ids"][::2] = mlm_logits(outputs)[::2].argmax(-1)
    batch["next_sentence_labels"][3:] = outputs["nsp_logits"][3:].argmax(-1)
    metrics = jax.jit(pretraining_metrics)(outputs, batch)
    assert set(metrics) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    for name, logits, labels, weights in (
        ("mlm", mlm_logits(outputs), "masked_lm_ids", "masked_lm_weights"),
        ("nsp", outputs["nsp_logits"], "next_sentence_labels", "next_sentence_weights"),
    ):
        loss, hits, total = reference(logits, batch[labels], batch[weights])
        np.testing.assert_allclose(metrics[f"{name}_loss"], (loss, total), rtol=1e-6)
        np.testing.assert_allclose(metrics[f"{name}_accuracy"], (hits, total), rtol=1e-6)


def test_loss_is_the_original_s():
    outputs, batch = random_outputs_and_batch(1)
    mlm, _, mlm_weight = reference(
        mlm_logits(outputs), batch["masked_lm_ids"], batch["masked_lm_weights"]
    )
    nsp, _, nsp_weight = reference(
        outputs["nsp_logits"], batch["next_sentence_labels"], batch["next_sentence_weights"]
    )
    loss = summed_loss(pretraining_metrics(outputs, batch), loss_weights(batch))
    np.testing.assert_allclose(loss, mlm / (mlm_weight + 1e-5) + nsp / nsp_weight, rtol=1e-6)


def test_micro_batches_add_up_to_the_batch():
    outputs, batch = random_outputs_and_batch(2)
    weights = loss_weights(batch)
    whole = pretraining_metrics(outputs, batch)

    def part(tree, rows):
        return {name: array[rows] for name, array in tree.items()}

    parts = [
        pretraining_metrics(
            part(outputs, rows) | {"mlm_bias": outputs["mlm_bias"]}, part(batch, rows)
        )
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    np.testing.assert_allclose(
        sum(summed_loss(metrics, weights) for metrics in parts),
        summed_loss(whole, weights),
        rtol=1e-6,
    )
    for name, value in whole.items():
        np.testing.assert_allclose(sum(np.array(p[name]) for p in parts), value, rtol=1e-6)


def test_without_next_sentence_labels_there_is_no_such_metric():
    outputs, batch = random_outputs_and_batch(3)
    del outputs["nsp_logits"], batch["next_sentence_labels"], batch["next_sentence_weights"]
    assert set(pretraining_metrics(outputs, batch)) == {"mlm_loss", "mlm_accuracy"}
    assert set(loss_weights(batch)) == {"mlm_loss"}


def test_a_batch_without_predictions_has_a_finite_loss_and_gradient():
    outputs, batch = random_outputs_and_batch(4)
    batch["masked_lm_weights"] = np.zeros((B, P), np.float32)

    def loss(outputs):
        return summed_loss(pretraining_metrics(outputs, batch), loss_weights(batch))

    value, gradient = jax.value_and_grad(loss)(outputs)
    assert np.isfinite(value)
    assert not gradient["mlm_scores"].any()
    assert not gradient["mlm_bias"].any()


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("name", ["mlm_scores", "mlm_bias"])
def test_large_logits_neither_overflow_nor_lose_the_loss(name, shift):
    outputs, batch = random_outputs_and_batch(5)
    plain = pretraining_metrics(outputs, batch)["mlm_loss"][0]
    outputs[name] = jnp.asarray(outputs[name] + np.float32(shift))
    np.testing.assert_allclose(pretraining_metrics(outputs, batch)["mlm_loss"][0], plain, rtol=1e-3)


@pytest.mark.parametrize(("platform", "jit"), [("cpu", True), ("cpu", False), ("gpu", True)])
def test_gradient_is_softmax_minus_label(platform, jit, monkeypatch):
    monkeypatch.setattr(losses, "device_platform", lambda: platform)
    outputs, batch = random_outputs_and_batch(6)

    def total(outputs):
        metrics = pretraining_metrics(outputs, batch)
        return metrics["mlm_loss"][0] + metrics["nsp_loss"][0]

    def expected(logits, labels, weights):
        one_hot = np.eye(logits.shape[-1])[labels]
        return (jax.nn.softmax(logits) - one_hot) * weights[..., None]

    gradient = (jax.jit if jit else lambda f: f)(jax.grad(total))(outputs)
    mlm = expected(mlm_logits(outputs), batch["masked_lm_ids"], batch["masked_lm_weights"])
    nsp = expected(
        outputs["nsp_logits"], batch["next_sentence_labels"], batch["next_sentence_weights"]
    )
    np.testing.assert_allclose(gradient["mlm_scores"], mlm, atol=1e-6)
    np.testing.assert_allclose(gradient["mlm_bias"], mlm.sum((0, 1)), atol=1e-6)
    np.testing.assert_allclose(gradient["nsp_logits"], nsp, atol=1e-6)
