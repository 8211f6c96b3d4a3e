"""safetensors files, read a tensor at a time and written a tensor at a time.

The format: eight bytes with the length of the header, little-endian; the header, JSON that gives
each tensor's dtype, shape and place; then the bytes of all tensors without a gap
(github.com/huggingface/safetensors). The library of that name maps the whole file into memory and
writes from copies of all tensors; here no more than one tensor is held.
"""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.weights import Tensor

# The header of BERT large has 60 kB; the format itself allows 100 MB.
_MAX_HEADER = 16 << 20
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name; their bytes are read when they are asked for.

    Raises:
      UserError: the file cannot be read, is cut short, or its header contradicts itself or the
        size of the file.
    """
    try:
        if path.exists() and not path.is_file():  # to open a named pipe is to wait for its writer
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise ValueError(f"its header of {length} bytes does not fit")
            header = json.loads(file.read(length), object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        places = {name: _place(name, entry) for name, entry in header.items()}
        _check_places(places, size - 8 - length)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not a whole safetensors file ({error}); fetch it again"
        ) from error
    return {
        name: Tensor(shape, dtype, partial(_read, path, 8 + length + start, shape, dtype))
        for name, (dtype, shape, start, _) in places.items()
    }


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file that PyTorch, NumPy and JAX read alike, one tensor in memory at a time."""
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        start, end = end, end + tensor.dtype.itemsize * math.prod(tensor.shape)
        header[name] = {
            "dtype": codes[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            # Not by `tofile`, whose error tells of bytes and not of a full disk.
            array = np.ascontiguousarray(tensors[name].read())
            file.write(array.reshape(-1).view(np.uint8).data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return found


def _place(name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Dtype, shape, and first and last byte of a tensor."""
    try:
        dtype = _DTYPES[entry["dtype"]]
        numbers = [*entry["shape"], *entry["data_offsets"]]
        start, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor {name[:80]!r} is not described as the format has it") from error
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"tensor {name[:80]!r} has a shape or a place that is none")
    shape = tuple(entry["shape"])
    # NumPy counts up to these, a dimension of 0 beside them or not.
    if len(shape) > 32 or math.prod(size or 1 for size in shape) > 1 << 60:
        raise ValueError(f"tensor {name[:80]!r} has a shape that is none")
    if end - start != dtype.itemsize * math.prod(shape):
        raise ValueError(f"tensor {name[:80]!r} has {end - start} bytes for the shape {shape}")
    return dtype, shape, start, end


def _check_places(places: dict[str, tuple[np.dtype, tuple[int, ...], int, int]], size: int) -> None:
    reached = 0
    for name, (_, _, start, end) in sorted(places.items(), key=lambda item: item[1][2:]):
        if start != reached:
            raise ValueError(f"tensor {name[:80]!r} overlaps another or leaves a gap")
        reached = end
    if reached != size:
        raise ValueError(f"its tensors take {reached} bytes and it has {size}")


def _read(path: Path, start: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    count = dtype.itemsize * math.prod(shape)
    raw = np.fromfile(path, np.uint8, count, offset=start)
    if raw.size != count:
        raise UserError(f"{path}: it was cut short while it was read; fetch it again")
    return raw.view(dtype).reshape(shape)
