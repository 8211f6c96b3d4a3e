"""What is imported leaves out what it would only load."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.imports import without

TRAINING = """
import sys
from pathlib import Path
from bert_jax.data.quiet_tensorflow import load_tensorflow
from bert_jax.training.events import EventWriter
tf = load_tensorflow()
EventWriter(Path(sys.argv[1]), 0).close()
print({"torch", "keras", "sklearn"} & {*sys.modules})
print(tf.keras.layers.Dense(3).units)
"""


def test_a_module_is_hidden_for_a_while(tmp_path, monkeypatch):
    (tmp_path / "rarely_used.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with without("rarely_used"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("rarely_used")
    module = importlib.import_module("rarely_used")
    with without("rarely_used"):
        assert importlib.import_module("rarely_used") is module


def test_reading_and_telling_of_a_run_load_no_other_framework(tmp_path: Path):
    """TensorFlow and tensorboardX would: PyTorch is installed with the tests. Keras still loads."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["set()", "3"], done.stderr
