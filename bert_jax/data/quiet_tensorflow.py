"""TensorFlow without its remarks: it is a reader of records here, and computes nothing."""

import importlib
import os
from types import ModuleType

from bert_jax.imports import without


def load_tensorflow() -> ModuleType:
    """The module, which takes seconds to load.

    It is to keep from standard error how it would compute. Of its own it imports Keras, and with it
    scikit-learn, SciPy and Matplotlib: a third of the time. `tf.keras` still loads when it is used.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    with without("keras"):
        return importlib.import_module("tensorflow")
