"""BERT in JAX: from raw text to a pretrained encoder, on a CPU, a GPU or a TPU pod."""

__version__ = "0.1.0"
