"""A run that was trained, given away and taken up again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file
from small_run import parameters, small_config

from bert_jax.convert import convert
from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.pretraining import train


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


@pytest.mark.slow
def test_a_run_is_given_away_and_told_of(run, tmp_path):
    before = files(run)
    weights = load_weights(run)
    assert weights.form == "bert_jax at step 12"
    convert(weights, tmp_path / "hf", "hf")
    assert files(run) == before

    trained = parameters(run, 12)
    written = load_file(tmp_path / "hf" / "model.safetensors")
    layer = trained["bert"]["encoder"]["layer"]
    assert np.array_equal(
        written["bert.encoder.layer.1.intermediate.dense.weight"],
        np.asarray(layer["intermediate"]["dense"]["kernel"])[1].T,
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
        ("hidden_size", 64, r"bert/.* is \[.*\] in the checkpoint and \[.*\] here"),
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
