"""A packed step is the step of its unpacked batch, and no sequence knows of its neighbours."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from small_run import packed_examples

from bert_jax.config import BertConfig, MeshConfig, Phase
from bert_jax.data.pipeline import Batch
from bert_jax.models import BertForPreTraining, BertModel
from bert_jax.training.objective import pretraining
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import TrainState, abstract_state, create_state
from bert_jax.training.steps import Outcome, compile_train_step

PHASE = Phase(seq_len=48, batch_size=32, max_predictions=8)
CONFIG = BertConfig(
    vocab_size=120,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=48,
    vocab_multiple=8,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    # Far enough from uniform attention for a key too many to be seen.
    initializer_range=0.3,
)


def batches(shards: Path, multiple: int, next_sentence: bool = True) -> tuple[Batch, Batch]:
    """The first batch, unpacked and packed; half of its sequences are short."""
    both = packed_examples(shards, PHASE, next_sentence=next_sentence, multiple=multiple)
    unpacked, packed = (examples.batch(0, PHASE.batch_size) for examples in both)
    return unpacked, packed


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_packed_step_is_the_unpacked_one(shards, next_sentence):
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    both = batches(shards, 4, next_sentence)
    segments = both[1]["segment_ids"]
    assert len(segments) < PHASE.batch_size
    assert not segments.any(axis=1).all(), "no row is empty: nothing shows that one does no harm"
    one_layer = dataclasses.replace(CONFIG, num_hidden_layers=1)
    objective = pretraining(BertForPreTraining(one_layer, next_sentence=next_sentence))
    # The parameters then tell the gradients as they are.
    optimizer = optax.sgd(1.0)
    abstract = abstract_state(objective, optimizer, mesh)

    with jax.set_mesh(mesh):
        start = jax.device_get(create_state(objective, optimizer, abstract, seed=3))
        run = compile_train_step(abstract, objective, optimizer, accumulate=1)

        def step(batch: Batch) -> tuple[TrainState, dict[str, Any], Outcome]:
            shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
            return run(jax.device_put(start, shardings), shard_batch(mesh, batch), 3)

        (expected, metrics, outcome), (found, packed_metrics, packed_outcome) = map(step, both)
    np.testing.assert_allclose(packed_outcome.loss, outcome.loss, rtol=1e-6)
    np.testing.assert_allclose(packed_outcome.grad_norm, outcome.grad_norm, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), packed_metrics, metrics)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6),
        found.params,
        expected.params,
    )


def test_other_tokens_of_a_sequence_leave_its_neighbours_as_they_are(shards):
    objective = pretraining(BertForPreTraining(CONFIG))
    batch = batches(shards, 1)[1]
    second = batch["segment_ids"] == 2
    assert second.any(axis=1).sum() > 5
    ids = np.where(second, (batch["input_ids"] + 7) % CONFIG.vocab_size, batch["input_ids"])

    @jax.jit
    def outputs(batch: Any) -> dict[str, jax.Array]:
        params = objective.init(jax.random.key(0))
        inputs = (batch["input_ids"], batch["token_type_ids"], None)
        packed = (batch[name] for name in ("position_ids", "segment_ids", "cls_positions"))
        every, _ = BertModel(CONFIG).apply({"params": params["bert"]}, *inputs, *packed)
        return objective.forward(params, batch, None) | {"sequence_output": every}

    before, after = jax.device_get((outputs(batch), outputs(batch | {"input_ids": ids})))
    assert all(np.isfinite(array).all() for array in before.values())  # padding's too
    changed = np.any(before["sequence_output"] != after["sequence_output"], axis=-1)
    np.testing.assert_array_equal(changed, second)
    pooled = np.any(before["pooled_output"] != after["pooled_output"], axis=-1)
    real = batch["next_sentence_weights"] > 0
    np.testing.assert_array_equal(pooled[real], np.nonzero(real)[1] == 1)
