"""TensorFlow without its remarks: it is a reader of records here, and computes nothing."""

import os


def quiet_tensorflow() -> None:
    """Have TensorFlow keep from standard error how it would compute; call it before the import."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
