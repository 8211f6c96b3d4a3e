"""Tagging over frozen features: its files, and a run of it that leaves the encoder as it was."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from peer_models import peer, save_peer

from bert_jax.config import BertConfig, OptimizerConfig
from bert_jax.convert import convert
from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_results import write_model
from bert_jax.finetuning import finetune
from bert_jax.interop import load_weights
from bert_jax.interop.google import write_google
from bert_jax.interop.init_from import adopted_model
from bert_jax.interop.load import reduced
from bert_jax.interop.params import load_params
from bert_jax.interop.runs import write_run
from bert_jax.tasks.feature_tagging import FeatureTagging
from bert_jax.tasks.registry import load_task

NAMES, WORDS = ("bird", "house"), ("river", "stone", "light", "walk", "under")


def write_columns(path: Path, count: int, seed: int = 0) -> Path:
    """A bird or a house is an entity, and so is what walks before it."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        for _ in range(draw.randint(2, 4)):
            before, name = draw.choice(WORDS), draw.choice(NAMES)
            tags = (f"B-{name}", f"I-{name}") if before == "walk" else ("O", f"B-{name}")
            lines += [f"{before} {tags[0]}", f"{name} {tags[1]}"]
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def config_of(folder: Path) -> FinetuneConfig:
    return FinetuneConfig(
        init_from=str(folder / "model"),
        task=FeatureTagging(
            train=str(folder / "train.conll"),
            dev=str(folder / "dev.conll"),
            max_length=24,
            lstm_width=8,
            encoder_features="weighted_all",
        ),
        model=BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        epochs=8,
        batch_size=16,
        optimizer=OptimizerConfig(learning_rate=2e-2),
        freeze_layers=-1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    (folder / "model").mkdir()
    save_peer(peer("BertModel", num_hidden_layers=2), folder / "model")
    write_columns(folder / "train.conll", 160)
    write_columns(folder / "dev.conll", 40, seed=1)
    return folder


@pytest.fixture(scope="module")
def saved(folder: Path) -> tuple[Path, Any]:
    """A model directory, and the parameters that it was written from."""
    config, weights = config_of(folder), load_weights(folder / "model")
    task = config.task.learn(config.task.read(folder / "train.conll"))
    adopted = adopted_model(config.model, weights)
    config.model = dataclasses.replace(adopted, vocab_multiple=1)
    model, ids = task.model(config.model), jnp.zeros((1, 8), jnp.int32)
    abstract: Any = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), ids, ids, ids))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(p.dtype), abstract["params"])
    assert weights.tokenizer
    (folder / "run").mkdir()
    write_model(folder / "run", config, task, weights.tokenizer, params)
    return folder / "run/model", params


def test_the_model_is_read_again_with_its_head(saved):
    place, params = saved
    weights = load_weights(place)
    task = load_task(place, weights)
    assert (task.kind, task.max_length, weights.architecture) == (
        "feature_tagging",
        24,
        "BertModel",
    )
    assert {name.split("/")[0] for name in weights.own} == {"tagger"}
    like = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), params)
    again, missing = load_params(weights, like)
    assert not missing
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.slow
def test_a_run_learns_and_leaves_the_encoder_as_it_was(folder):
    assert finetune(config_of(folder), folder / "trained")
    told = json.loads((folder / "trained/metrics.json").read_text())
    assert told["scores"]["dev"]["f1"] > 0.9
    ours, theirs = (load_weights(folder / name).tensors for name in ("trained/model", "model"))
    for name, tensor in theirs.items():
        if not name.startswith("bert/pooler"):
            np.testing.assert_array_equal(ours[name].read(), tensor.read())


def test_transformers_loads_the_encoder(saved):
    place, _ = saved
    encoder = transformers.AutoModel.from_pretrained(place)
    ours = load_weights(place).tensors["bert/embeddings/word_embeddings"].read()
    theirs = encoder.embeddings.word_embeddings.weight.detach().numpy()
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("form", ["google", "run"])
def test_other_forms_say_the_head_or_refuse_it(saved, tmp_path, form):
    weights = load_weights(saved[0])
    if form == "google":
        with pytest.raises(UserError, match="no name for tagger/"):
            write_google(weights, tmp_path, "float32")
        return
    write_run(weights, tmp_path, "float32")
    again = load_weights(tmp_path)
    assert again.own.keys() == weights.own.keys()
    for name, tensor in weights.own.items():
        np.testing.assert_array_equal(again.tensors[name].read(), tensor.read())


def test_fewer_layers_than_are_read_are_refused():
    config = BertConfig(num_hidden_layers=2)
    for features in ("concat_last_four", "weighted_last_four"):
        with pytest.raises(UserError, match=f"encoder_features='{features}': the model has 2"):
            FeatureTagging(labels=("O",), encoder_features=features).model(config)
    for features in ("weighted_all", "second_to_last", "last", "embeddings"):
        FeatureTagging(labels=("O",), encoder_features=features).model(config)


def test_a_head_that_is_left_out_is_told(folder, saved, tmp_path):
    of_run, given = load_weights(saved[0]), load_weights(folder / "model").tensors
    pooler = {name: tensor for name, tensor in given.items() if name.startswith("bert/pooler")}
    weights = dataclasses.replace(of_run, tensors={**of_run.tensors, **pooler})
    assert not convert(weights, tmp_path / "whole", "hf").dropped
    assert load_task(tmp_path / "whole", weights).kind == "feature_tagging"
    told = convert(reduced(weights, "BertModel"), tmp_path / "encoder", "hf")
    assert [name.split()[0] for name in told.dropped] == ["tagger", "task.json"]
    assert not (tmp_path / "encoder/task.json").exists()


def test_an_encoder_that_would_move_is_refused(folder):
    config = config_of(folder)
    config.freeze_layers = 1
    with pytest.raises(UserError, match="freeze_layers=1: must be -1, as feature_tagging"):
        config.validate()
