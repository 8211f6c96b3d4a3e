"""A run that was trained, given away and taken up again."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import transformers
from flax.traverse_util import flatten_dict, unflatten_dict
from peer_models import peer, save_peer
from safetensors.numpy import load_file
from small_run import parameters, small_config

from bert_jax.config import BertConfig
from bert_jax.convert import convert
from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.interop.params import VOCABULARY
from bert_jax.interop.runs import model_directory, tensors_of_params
from bert_jax.models import BertForPreTraining
from bert_jax.pretraining import train
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.metrics import read_metrics
from bert_jax.training.objective import pretraining


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained") / "run"
    assert train(small_config(shards), directory)
    return directory


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def files(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def test_stacked_layers_and_padded_rows_are_told_apart():
    """Each layer has its own of the stack, and the table its first rows: the rest is padding."""
    depth = 12  # numbers of two digits among them
    config = BertConfig(
        vocab_size=21,
        hidden_size=8,
        num_hidden_layers=depth,
        num_attention_heads=2,
        intermediate_size=12,
        vocab_multiple=8,
        scan_layers=True,
    )
    like = jax.eval_shape(lambda: pretraining(BertForPreTraining(config)).init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    leaves: dict[str, Any] = dict(flatten_dict(nn.meta.unbox(like), sep="/"))
    params = {name: rng.normal(size=leaf.shape).astype("f4") for name, leaf in leaves.items()}
    found = {name: t.read() for name, t in tensors_of_params(params, config, "run").items()}
    stacks = {name: stack for name, stack in params.items() if "/layer/" in name}
    assert len(stacks) == 16
    assert len(found) == len(params) + (depth - 1) * len(stacks)
    for name, stack in stacks.items():
        for layer in range(depth):
            of_layer = found[name.replace("/layer/", f"/layer_{layer}/")]
            np.testing.assert_array_equal(of_layer, stack[layer])
    for name in params.keys() - stacks.keys():
        assert len(params[name]) == (24 if name in VOCABULARY else len(found[name]))
        np.testing.assert_array_equal(found[name], params[name][: len(found[name])])


@pytest.mark.parametrize("architecture", ["BertForTokenClassification", "BertForMaskedLM"])
def test_all_that_is_known_of_a_model_comes_back(architecture, tmp_path):
    """Its class too, which its tensors alone do not tell: those of a tagger are a classifier's."""
    model = peer(architecture, problem_type="single_label_classification")
    weights = load_weights(save_peer(model, tmp_path / "theirs"))
    with pytest.raises(UserError, match=r"--dtype=float16: parameters are float32 here"):
        convert(weights, tmp_path / "half", "bert_jax", "float16")
    convert(weights, tmp_path / "ours", "bert_jax")
    again = load_weights(tmp_path / "ours")
    assert (again.form, again.facts) == ("bert_jax at step 0", {})
    assert (again.architecture, again.config) == (architecture, weights.config)
    assert again.head_fields == weights.head_fields
    assert again.fingerprint() == weights.fingerprint()
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert written["data"]["next_sentence"] == weights.next_sentence
    shutil.rmtree(tmp_path / "ours/tokenizer")
    assert load_weights(tmp_path / "ours").tokenizer is None


def test_a_run_whose_layers_are_apart_is_read_with_a_head_of_its_own(tmp_path):
    """And without the rest of its state."""
    weights = load_weights(save_peer(peer("BertForMaskedLM"), tmp_path / "theirs"))
    head = {f"tagger/{name}": np.arange(i, 9.0, dtype="f4") for i, name in enumerate("ab")}
    arrays = {name: tensor.read() for name, tensor in weights.tensors.items()} | head
    state = {"params": unflatten_dict(arrays, sep="/"), "opt_state": {"m": np.ones(3, "f4")}}
    checkpoints = Checkpoints(tmp_path / "ours", keep=1)
    checkpoints.save(jax.tree.map(jax.device_put, state), 7, {})
    checkpoints.close()
    config = {"model": asdict(weights.config)}
    (tmp_path / "ours/config.json").write_text(json.dumps(config))
    found = load_weights(tmp_path / "ours")
    assert found.tensors.keys() == arrays.keys()
    assert found.own.keys() == head.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.tensors[name].read(), array)
    for path in (tmp_path / "ours/checkpoints/7").rglob("*"):
        if path.is_file() and path.stat().st_size > 10_000:
            path.write_bytes(path.read_bytes()[:-1])
    checkpoints = Checkpoints(tmp_path / "ours", keep=2)
    checkpoints.save(jax.tree.map(jax.device_put, state), 5, {})
    checkpoints.close()
    told = load_weights(tmp_path / "ours").notes
    assert re.search(r"checkpoints/7 is damaged: .*; read is the one of step 5$", told[0])
    shutil.rmtree(tmp_path / "ours/checkpoints/5")
    with pytest.raises(UserError, match=r"has no whole checkpoint; .*checkpoints/7 is damaged: "):
        load_weights(tmp_path / "ours")


@pytest.mark.parametrize(
    ("kind", "folders", "place"),
    [
        ("task_kind", ["checkpoints", "model"], "model"),
        ("task_kind", ["model"], "model"),  # a sweep leaves no more
        ("task_kind", ["checkpoints"], None),
        ("phases", ["checkpoints"], "."),
        ("hidden_size", [], "."),
        ("hidden_size", ["model"], "."),
    ],
)
def test_the_model_of_a_directory_lies_where_its_run_left_it(kind, folders, place, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({kind: 1}))
    for folder in folders:
        (tmp_path / folder).mkdir()
    if place:
        assert model_directory(tmp_path) == tmp_path / place
    else:
        with pytest.raises(UserError, match="its fine-tuning is not finished"):
            model_directory(tmp_path)


@pytest.mark.slow
def test_a_run_is_given_away_and_told_of(run, tmp_path):
    before = files(run)
    weights = load_weights(run)
    assert weights.form == "bert_jax at step 12"
    convert(weights, tmp_path / "hf", "hf")
    assert files(run) == before

    trained = parameters(run, 12)
    written = load_file(tmp_path / "hf" / "model.safetensors")
    layer = trained["bert"]["encoder"]["layer_1"]
    assert np.array_equal(
        written["bert.encoder.layer.1.intermediate.dense.weight"],
        np.asarray(layer["intermediate"]["dense"]["kernel"]).T,
    )
    words = np.asarray(trained["bert"]["embeddings"]["word_embeddings"])
    size = weights.config.vocab_size
    assert np.array_equal(written["bert.embeddings.word_embeddings.weight"], words[:size])
    assert len(words) > size

    _, report = transformers.AutoModelForPreTraining.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(report.values())
    card = (tmp_path / "hf" / "README.md").read_text()
    for said in (
        "step 12 of 12",
        "- 8 steps of 16 sequences of 32 pieces",
        "adamw",
        "| mlm",
        "/books/*.txt",
    ):
        assert said in card, card
    scores = [record["mlm_loss"] for record in read_metrics(run) if record["kind"] == "eval"]
    told = [f"{score:.4f}" for score in scores]
    assert told[0] != told[-1]
    assert f"| mlm loss | {told[-1]} |" in card
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert weights.tokenizer
    ids = weights.tokenizer.encode_batch(["the river walks"])[0]
    assert tokenizer("the river walks", add_special_tokens=False)["input_ids"] == list(ids)


@pytest.mark.slow
def test_weights_come_back_from_a_directory_like_a_runs(run, tmp_path):
    convert(load_weights(run), tmp_path / "first", "hf")
    convert(load_weights(tmp_path / "first"), tmp_path / "ours", "bert_jax")
    convert(load_weights(tmp_path / "ours"), tmp_path / "second", "hf")
    for file in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(copy):
    newest = copy / "checkpoints" / "12"
    data = max(
        (path for path in newest.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert load_weights(copy).form == "bert_jax at step 9"
    assert newest.is_dir()
    for step in (copy / "checkpoints").iterdir():
        shutil.rmtree(step)
    with pytest.raises(UserError, match="has no whole checkpoint"):
        load_weights(copy)


@pytest.mark.slow
def test_a_config_that_disagrees_with_the_checkpoint(copy):
    config = json.loads((copy / "config.json").read_text())
    for field, value, said in [
        ("hidden_size", 64, r"bert/.* is \[.*32\] in the checkpoint and \[.*64\] here"),
        ("num_hidden_layers", 3, "num_hidden_layers is 3, and the checkpoint has 2"),
        ("num_hidden_layers", 1, "num_hidden_layers is 1, and the checkpoint has 2"),
    ]:
        changed = config | {"model": config["model"] | {field: value}}
        (copy / "config.json").write_text(json.dumps(changed))
        with pytest.raises(UserError, match=said):
            load_weights(copy)
    (copy / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config.json of a run"):
        load_weights(copy)
