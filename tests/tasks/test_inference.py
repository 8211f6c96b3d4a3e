"""Outputs of features: those of one at a time, in their order, whatever the batches."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig, MeshConfig
from bert_jax.models import BertModel
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.task import Feature
from bert_jax.training.sharding import make_mesh

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=64,
    vocab_multiple=8,
)
MODEL = BertModel(CONFIG)


@pytest.fixture(scope="module")
def params() -> Any:
    ids = np.zeros((1, 8), np.int32)
    return nn.unbox(jax.jit(MODEL.init)(jax.random.key(0), ids, ids, ids))["params"]


def features(lengths: list[int]) -> list[Feature]:
    """Random pieces, with labels of a shape of their own, which no forward pass reads."""
    generator = np.random.default_rng(0)
    return [
        {
            "input_ids": generator.integers(5, 50, length).astype(np.int32),
            "token_type_ids": generator.integers(0, 2, length).astype(np.int32),
            "attention_mask": np.ones(length, np.int32),
            "label": np.zeros(number, np.int32),
        }
        for number, length in enumerate(lengths)
    ]


def forward(params: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
    names = ("input_ids", "token_type_ids", "attention_mask")
    given = [batch[name] for name in names]
    hidden, pooled = jax.jit(MODEL.apply)({"params": params}, *given)
    return {"token_hidden": hidden, "pooled": pooled}


LENGTHS = [3, 40, 7, 7, 21, 64, 8, 9, 33, 5, 16]  # the last batch of four lacks a row


def test_outputs_are_those_of_one_at_a_time_in_order(params):
    given = features(LENGTHS)
    found = Inference(forward, pad_id=0, batch_size=4).outputs(params, given)
    assert len(found) == len(given)
    for feature, outputs in zip(given, found, strict=True):
        alone = {name: value[None] for name, value in feature.items() if name != "label"}
        expected = forward(params, alone)
        assert outputs["token_hidden"].shape == (len(feature["input_ids"]), 16)
        for name, value in outputs.items():
            np.testing.assert_allclose(value, expected[name][0], atol=2e-6)


@pytest.mark.parametrize("lengths", [(8, 16, 64), (24, 64), (64,)])
def test_a_program_is_compiled_for_each_length_once(params, lengths):
    shapes = []

    def counted(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        shapes.append(batch["input_ids"].shape)  # runs where it is traced
        return forward(params, batch)

    inference = Inference(counted, pad_id=0, batch_size=4, sizes=lengths)
    for _ in range(2):
        inference.outputs(params, features(LENGTHS))
    assert sorted(shapes) == [(4, length) for length in lengths]


def test_a_mesh_gives_the_same(params):
    mesh = make_mesh(MeshConfig(data=4, fsdp=2, tensor=1))
    given = features(LENGTHS)
    expected = Inference(forward, pad_id=0, batch_size=8).outputs(params, given)
    with jax.set_mesh(mesh):
        found = Inference(forward, pad_id=0, batch_size=8, mesh=mesh).outputs(params, given)
    for ours, theirs in zip(found, expected, strict=True):
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], atol=2e-6)


def test_nothing_gives_nothing(params):
    assert Inference(forward, pad_id=0, batch_size=4).outputs(params, []) == []


def test_several_sequences_a_feature(params):
    """Choices: [choices, length] padded together."""

    def per_choice(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        flat = {name: value.reshape(-1, value.shape[-1]) for name, value in batch.items()}
        pooled = forward(params, flat)["pooled"]
        return {"pooled": pooled.reshape(*batch["input_ids"].shape[:2], -1)}

    singles = features([9, 9, 12, 12])
    names = ("input_ids", "token_type_ids", "attention_mask")
    pairs = [
        {name: np.stack([a[name], b[name]]) for name in names}
        for a, b in (singles[:2], singles[2:])
    ]
    found = Inference(per_choice, pad_id=0, batch_size=2).outputs(params, pairs)
    expected = Inference(forward, pad_id=0, batch_size=1).outputs(params, singles)
    together = np.concatenate([outputs["pooled"] for outputs in found])
    alone = np.stack([outputs["pooled"] for outputs in expected])
    np.testing.assert_allclose(together, alone, atol=2e-6)
