"""A run directory belongs to one process at a time, and to one config."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.flags import load_config, override
from bert_jax.tasks.classification import Classification
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.run_directory import locked, open_run_directory

_HOLD = """
import sys, time
from pathlib import Path
from bert_jax.flags import load_config, override
from bert_jax.training.run_directory import locked, open_run_directory
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""


@contextlib.contextmanager
def holder(directory: Path):
    """Another process that holds the directory."""
    command = [sys.executable, "-c", _HOLD, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_directory_in_use_is_refused_and_its_holder_named(tmp_path):
    with holder(tmp_path / "run") as process:
        for _ in range(2):
            told = rf"--workdir=.*/run: in use by process {process.pid} on \S+; "
            with pytest.raises(UserError, match=told), locked(tmp_path / "run"):
                pass
        process.kill()
        process.wait()
        with locked(tmp_path / "run"):
            pass


def test_a_path_that_is_not_utf8_is_refused_before_anything_is_made(tmp_path):
    directory = tmp_path / os.fsdecode("국".encode("cp949")) / "run"
    with pytest.raises(UserError, match="its full path is not UTF-8"), locked(directory):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("character", "*?[\\")
def test_a_path_that_orbax_misreads_is_refused_before_anything_is_made(tmp_path, character):
    directory = tmp_path / f"a{character}b" / "run"
    told = re.escape(f"its full path has {character}, which Orbax misreads")
    with pytest.raises(UserError, match=told), locked(directory):
        pass
    assert not list(tmp_path.iterdir())


# All that a shell, a URL or a format could take for something else, and letters beyond ASCII.
@pytest.mark.parametrize("name", ["' \"]{}%20%s#&;:=+,@$!`|<>~^()\t\n", "한글 e\u0301 \U0001f600"])
def test_under_any_other_path_a_checkpoint_is_read_as_it_was_written(tmp_path, name):
    state = {"kernel": jnp.arange(9.0), "step": jnp.int32(3)}
    with locked(tmp_path / name):
        checkpoints = Checkpoints(tmp_path / name, 1)
        checkpoints.save(state, 3, {})
        checkpoints.close()
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
    restored = Checkpoints(tmp_path / name, 1).restore(shapes)
    assert restored is not None
    jax.tree.map(np.testing.assert_array_equal, restored[0], state)


def test_a_directory_is_free_again_after_its_block(tmp_path):
    for _ in range(2):
        with locked(tmp_path):
            pass
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    with locked(tmp_path):
        pass


def test_a_file_is_no_run_directory(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="a file, not a directory"), locked(tmp_path / "run"):
        pass


def test_a_setting_that_an_earlier_version_did_not_know_was_as_by_default(tmp_path):
    config = load_config("tiny")
    open_run_directory(tmp_path, config, "data", "fingerprint")
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    del stored["model"]["gradient_dtype"]
    path.write_text(json.dumps(stored))
    changed = override(load_config("tiny"), ["--config.model.gradient_dtype=bfloat16"])
    with pytest.raises(UserError, match=r"has config\.model\.gradient_dtype='float32'"):
        open_run_directory(tmp_path, changed, "data", "fingerprint")
    open_run_directory(tmp_path, config, "data", "fingerprint")


def test_a_run_of_thousands_of_labels_is_gone_on_with(tmp_path):
    """A letter that is not of ASCII takes six bytes of config.json."""
    labels = tuple(f"{'가' * 60}{number}" for number in range(4600))
    config = FinetuneConfig(task=Classification(labels=labels))
    for _ in range(2):
        open_run_directory(tmp_path, config, "data", "fingerprint")
    assert (tmp_path / "config.json").stat().st_size > 1 << 20
    config.task = Classification(labels=labels[1:])
    with pytest.raises(UserError, match=r"its run has config\.task\.labels="):
        open_run_directory(tmp_path, config, "data", "fingerprint")
