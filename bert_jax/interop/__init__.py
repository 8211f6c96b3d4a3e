"""Weights in and out: Hugging Face's files, Google's TF1 checkpoints and runs of this package."""

from bert_jax.interop.load import load_weights
from bert_jax.interop.params import load_params
from bert_jax.interop.weights import Tensor, Weights

__all__ = ["Tensor", "Weights", "load_params", "load_weights"]
