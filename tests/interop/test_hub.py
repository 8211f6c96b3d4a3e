"""Models by their names on the Hugging Face hub, without it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from peer_models import peer, save_peer

from bert_jax.errors import UserError
from bert_jax.interop import load_weights

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_peer(peer("BertForPreTraining"), tmp_path / "theirs")


def test_of_the_hub_neither_pickles_nor_folders_are_fetched(model, monkeypatch):
    wanted = {"config.json", "vocab.txt", "spiece.model", "model-1.safetensors", "tokenizer.json"}
    others = {"pytorch_model.bin", "flax_model.msgpack", "onnx/config.json", "old/a.safetensors"}
    fetched: set[str] = set()

    def snapshot_download(name: str, **patterns: Any) -> str:
        fetched.update(huggingface_hub.utils.filter_repo_objects(wanted | others, **patterns))
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    load_weights("someone/small")
    assert fetched == wanted


def test_a_name_of_the_hub_without_a_network(tmp_path):
    # conftest.py sets HF_HUB_OFFLINE
    with pytest.raises(UserError, match="could not be fetched from the Hugging Face hub"):
        load_weights("nobody/no-such-model")
    with pytest.raises(UserError, match="no such directory"):
        load_weights(tmp_path / "nothing here")
    (tmp_path / "bert_model.ckpt.meta").touch()
    with pytest.raises(UserError, match=r"ckpt\.meta: is a file; give its directory, or"):
        load_weights(tmp_path / "bert_model.ckpt.meta")


def test_a_model_of_the_hub_that_is_pickled_alone(model, monkeypatch):
    (model / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(model))
    with pytest.raises(UserError) as caught:
        load_weights("someone/small")
    said = str(caught.value)
    assert said.startswith("someone/small: ")
    assert "not fetched" in said
    assert "BertForPreTraining.from_pretrained('someone/small').save_pretrained(NEW_DIR)" in said
    (model / "config.json").unlink()
    with pytest.raises(UserError, match=r"small: the Hugging Face hub has no config\.json"):
        load_weights("someone/small")


def test_a_model_of_the_hub_that_is_not_for_all(monkeypatch):
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("403 Client Error.\n\nCannot access gated repo for url http://hub/x.\nAsk.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(UserError, match=r"Error\. Cannot access gated repo.*log in: hf auth login"):
        load_weights("someone/small")


# What the library does with threads of its own, and a transfer that takes long.
_SLOW_HUB = """
import runpy, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
import huggingface_hub

def snapshot_download(*arguments, **settings):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 40)
        print("fetching", flush=True)
        time.sleep(40)

huggingface_hub.snapshot_download = snapshot_download
signal.signal(signal.SIGINT, signal.default_int_handler)
_, module, *sys.argv[1:] = sys.argv
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "arguments", "number", "code"),
    [
        ("convert", ("org/name", "out", "--to=hf"), signal.SIGINT, 130),
        ("predict", ("embed", "org/name", "a text"), signal.SIGINT, 130),
        (
            "finetune",
            ("--config=classify", "--init_from=org/name", "--workdir=run"),
            signal.SIGTERM,
            75,
        ),
    ],
)
def test_a_model_that_is_fetched_is_not_waited_for(module, arguments, number, code, tmp_path):
    if module == "finetune":
        (tmp_path / "t.tsv").write_text("text\tlabel\na\tb\n")
        arguments = (*arguments, "--config.task.train=t.tsv")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BERT_JAX_ALLOCATOR": "default"}
    command = [sys.executable, "-c", _SLOW_HUB, f"bert_jax.{module}", *arguments]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "fetching\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert said.splitlines()[-1].startswith("stopped")


def test_a_notebook_outlives_what_it_breaks_off(tmp_path):
    program = """
import signal, time
import huggingface_hub
from bert_jax.interop import load_weights

def snapshot_download(*arguments, **settings):
    print("fetching", flush=True)
    time.sleep(40)

huggingface_hub.snapshot_download = snapshot_download
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    load_weights("org/name")
except KeyboardInterrupt:
    print("goes on")
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, text=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "fetching\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[0] == "goes on\n"
    assert process.returncode == 0
