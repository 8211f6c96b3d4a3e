"""safetensors files damaged by the thousand: refused, or tensors of the shapes they say."""

import functools
import json
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fuzzing import INPUTS, damaged, damaged_json, fuzz, refused

from bert_jax.errors import UserError
from bert_jax.interop.safetensors_files import read_safetensors, write_safetensors
from bert_jax.interop.weights import Tensor

ARRAYS = {
    "bert.pooler.dense.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bert.pooler.dense.bias": np.arange(3, dtype=ml_dtypes.bfloat16),
    "ids": np.arange(4),
    "empty": np.zeros((0, 5), np.float16),
    "scalar": np.array(True),
}


@functools.cache
def whole_file(folder: Path) -> bytes:
    tensors = {n: Tensor(a.shape, a.dtype, lambda a=a: a) for n, a in ARRAYS.items()}
    write_safetensors(folder / "whole", tensors)
    return (folder / "whole").read_bytes()


def safetensors(draw: random.Random, folder: Path) -> bool:
    """Damage to the header, its length made to fit or not, or to any byte."""
    data, path = whole_file(folder), folder / "model.safetensors"
    if draw.random() < 0.7:
        end = 8 + int.from_bytes(data[:8], "little")
        header = damaged_json(json.loads(data[8:end]), draw)
        data = len(header).to_bytes(8, "little") + header + data[end:]
    path.write_bytes(damaged(data, draw) if draw.random() < 0.3 else data)
    try:
        arrays = {name: (t, t.read()) for name, t in read_safetensors(path).items()}
    except UserError as error:
        return refused(error)
    for tensor, array in arrays.values():
        assert (array.shape, array.dtype) == (tensor.shape, tensor.dtype)
    return True


@pytest.mark.parametrize("inputs", INPUTS)
def test_a_damaged_file_of_weights_is_refused_or_right(inputs):
    fuzz(safetensors, inputs)
