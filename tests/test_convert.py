"""The command `convert`: its help, its summary, its errors, and what it does without."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peer_models import peer, save_peer
from safetensors.torch import load_file, save_file

from bert_jax import convert as command
from bert_jax.convert import convert
from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.interop.load import reduced
from bert_jax.interop.weights import Weights
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.registry import load_task, task_to_json

ROOT = Path(__file__).parent.parent
# To Python, a module whose entry is None is not installed.
_WITHOUT = """
import runpy, sys

sys.modules.update(dict.fromkeys({absent!r}))
sys.argv = ["convert", *{arguments!r}]
runpy.run_module("bert_jax.convert", run_name="__main__")
"""
PEERS = ("torch", "transformers", "safetensors", "huggingface_hub")


def run_convert(
    *arguments: object, absent: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    words = [str(argument) for argument in arguments]
    code = _WITHOUT.format(absent=absent, arguments=words)
    command = [sys.executable, *(["-c", code] if absent else ["-m", "bert_jax.convert", *words])]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_peer(peer("BertForPreTraining", hidden_act="gelu_new"), tmp_path / "theirs")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_form_is_reached_without_the_peers_installed(source, tmp_path):
    previous, last = source, tmp_path / "hf"
    for form in ("bert_jax", "google", "hf"):
        # Google's format alone takes TensorFlow.
        absent = PEERS if "google" in (form, previous.name) else (*PEERS, "tensorflow")
        result = run_convert(previous, tmp_path / form, f"--to={form}", absent=absent)
        assert result.returncode == 0, result.stderr
        assert f"wrote {tmp_path / form}" in result.stdout
        previous = tmp_path / form
    before, after = (load_file(path / "model.safetensors") for path in (source, last))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_summary_says_what_became_of_every_name(source, tmp_path):
    tensors = load_file(source / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "relationship" not in name}
    tensors |= {"bert.embeddings.position_ids": torch.arange(40)[None], "extra": torch.ones(2)}
    save_file(tensors, source / "model.safetensors")
    result = run_convert(source, tmp_path / "out", "--to=hf", "--max_position_embeddings=50")
    lines = result.stdout.splitlines()
    assert lines[0] == (
        f"{source}: Hugging Face, BertForMaskedLM, 3 layers of width 32, gelu_new, 44 pieces"
    )
    parameters = sum(t.numel() for t in tensors.values()) - 40 - 2 + (50 - 40) * 32
    assert f"{parameters:,} parameters" in lines[1]
    assert lines[2:] == [
        "  missing: cls.seq_relationship.weight",
        "  missing: cls.seq_relationship.bias",
        "  left over: extra",
        "  dropped: bert.embeddings.position_ids (a buffer, not a weight)",
        "  note: its pooler is there for AutoModel, and BertForMaskedLM, which has none, will call "
        "it unexpected; --architecture=BertForMaskedLM leaves it out",
        f"wrote {tmp_path / 'out'}",
    ]
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written["bert.embeddings.position_embeddings.weight"].shape == (50, 32)


def test_what_a_model_was_fine_tuned_for_goes_along(tmp_path):
    source = save_peer(peer("BertForSequenceClassification", num_labels=3), tmp_path / "theirs")
    task = Classification(labels=("bad", "fair", "good"), text_column="review", max_length=16)
    (source / "task.json").write_text(json.dumps(task_to_json(task)))
    weights = load_weights(source)
    told = convert(weights, tmp_path / "hf", "hf", "float16")
    assert not told.dropped
    assert load_task(tmp_path / "hf", load_weights(tmp_path / "hf")) == task
    for form, left in (("google", weights), ("hf", reduced(weights, "BertModel"))):
        told = convert(left, tmp_path / f"{form}-encoder", form)
        assert told.dropped[-1].startswith("task.json")
        assert not (tmp_path / f"{form}-encoder/task.json").exists()


def test_thousands_of_labels_come_back(tmp_path):
    """A letter that is not of ASCII takes six bytes of config.json."""
    count = 4600
    source = save_peer(peer("BertForSequenceClassification", num_labels=count), tmp_path / "theirs")
    names = {str(number): f"{'가' * 60}{number}" for number in range(count)}
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"id2label": names}))
    convert(load_weights(source), tmp_path / "ours", "bert_jax")
    assert load_weights(tmp_path / "ours").head_fields["id2label"] == names


def test_mistakes_are_told_in_one_line(source, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for arguments, said in [
        ((source, link, "--to=hf"), f"{link}: is a link or a mount point; give the name"),
        ((source, full, "--to=hf"), f"{full}: exists already; give a new directory"),
        ((source, tmp_path / "x", "--to=onnx"), "invalid choice: 'onnx'"),
        ((source, tmp_path / "x"), "--to"),
        ((source, tmp_path / "x", "--to=hf", "--max_position_embeddings=0"), "at least 1"),
        ((full, tmp_path / "x", "--to=hf"), "has no config.json"),
        (("nobody/none", tmp_path / "x", "--to=hf"), "could not be fetched"),
        (("~nobody/none", tmp_path / "x", "--to=hf"), "~nobody/none: no such directory"),
    ]:
        result = run_convert(*arguments)
        assert result.returncode == 2, result.stderr
        assert result.stderr.startswith("error: ")
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    assert not (tmp_path / "x").exists()


def test_what_stands_beside_the_destination_stays(source, tmp_path, monkeypatch):
    beside, empty = tmp_path / "out" / "x.partial", tmp_path / "out" / "empty"
    for folder in (beside, empty):
        folder.mkdir(parents=True)
    (beside / "mine.txt").write_text("mine")
    for name in ("x", "empty"):
        convert(load_weights(source), tmp_path / "out" / name, "hf")
    assert sorted(path.name for path in beside.parent.iterdir()) == ["empty", "x", "x.partial"]
    assert [path.name for path in beside.iterdir()] == ["mine.txt"]
    monkeypatch.chdir(tmp_path / "out" / "x.partial")
    (beside / "mine.txt").unlink()
    with pytest.raises(UserError, match="exists already"):
        convert(load_weights(source), Path(), "hf")


def test_a_name_of_the_hub_is_taken_from_its_cache(source, tmp_path, monkeypatch):
    folder, commit = tmp_path / "cache" / "models--someone--small", "0" * 40
    shutil.copytree(source, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    result = run_convert("someone/small", tmp_path / "out", "--to=hf")
    assert result.returncode == 0, result.stderr
    assert "Hugging Face, BertForPreTraining, 3 layers" in result.stdout


def test_a_name_of_the_hub_without_its_library(tmp_path):
    result = run_convert("nobody/none", tmp_path / "x", "--to=hf", absent=PEERS)
    assert result.returncode == 2
    assert "pip install huggingface_hub" in result.stderr


def test_the_help_teaches_with_examples():
    result = run_convert("--help", absent=("tensorflow", *PEERS))
    assert result.returncode == 0
    for said in ("--to=bert_jax", "uncased_L-12_H-768_A-12", "--max_position_embeddings", "hub"):
        assert said in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_written(number, source, tmp_path, monkeypatch, capsys):
    def write(weights: Weights, directory: Path, dtype: str) -> Weights:
        (directory / "model.safetensors").write_text("half")
        signal.raise_signal(number)
        return weights

    monkeypatch.setitem(command._FORMS, "hf", write)
    monkeypatch.setattr(sys, "argv", ["convert", str(source), str(tmp_path / "ours"), "--to=hf"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "\nstopped; nothing was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
