"""safetensors files as the library of that name writes and reads them, and hostile ones."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load as library_load
from safetensors.numpy import load_file, save

from bert_jax.errors import UserError
from bert_jax.interop.safetensors_files import read_safetensors, write_safetensors
from bert_jax.interop.weights import Tensor

RNG = np.random.default_rng(0)
ARRAYS = {
    "a.weight": RNG.standard_normal((5, 3)).astype(np.float32),
    "b": RNG.standard_normal(7).astype(np.float16),
    "c": RNG.standard_normal((2, 2, 2)).astype(ml_dtypes.bfloat16),
    "d.position_ids": np.arange(6)[None],
    "e": np.array(3.0, np.float32),
    "f": np.zeros((0, 4), np.float32),
}


def packed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: list, start: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_the_librarys_files_are_read(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(ARRAYS, metadata={"format": "np"}))
    tensors = read_safetensors(path)
    assert tensors.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (tensors[name].shape, tensors[name].dtype) == (array.shape, array.dtype)
        assert tensors[name].read().tobytes() == array.tobytes()


def test_the_library_reads_what_is_written(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    arrays = ARRAYS | {"g": ARRAYS["a.weight"].T}
    tensors = {n: Tensor(a.shape, a.dtype, lambda a=a: a) for n, a in arrays.items()}
    write_safetensors(path, tensors)
    found = load_file(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_a_full_disk_is_told_as_such(small_disk):
    array = np.ones(100_000, np.float32)
    tensors = {"a": Tensor(array.shape, array.dtype, lambda: array)}
    with pytest.raises(OSError, match="No space left on device"):
        write_safetensors(small_disk("64k") / "x.safetensors", tensors)


HOSTILE = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "a header longer than the file": packed({}, length=100),
    "a header of exabytes": packed({}, length=2**63),
    "no JSON": packed(b"nonsense"),
    "not UTF-8": packed(b'{"\xff": 1}'),
    "not an object": packed([1, 2]),
    "nested without end": packed(b"[" * 200_000),
    "a name twice": packed(b'{"a":1,"a":1}'),
    "an entry that is none": packed({"a": 7}),
    "no offsets": packed({"a": {"dtype": "F32", "shape": [1]}}),
    "an unknown dtype": packed({"a": entry([1], 0, 4, "Q9")}, bytes(4)),
    "a dtype that is a list": packed({"a": {**entry([1], 0, 4), "dtype": []}}, bytes(4)),
    "a negative shape": packed({"a": entry([-1, -1], 0, 4)}, bytes(4)),
    "a shape of floats": packed({"a": entry([1.0], 0, 4)}, bytes(4)),
    "a shape of truths": packed({"a": entry([True], 0, 4)}, bytes(4)),
    "a shape beyond memory": packed({"a": entry([2**62, 2**62], 0, 4)}, bytes(4)),
    "offsets beyond the end": packed({"a": entry([2], 0, 8)}, bytes(4)),
    "offsets backwards": packed({"a": entry([1], 8, 4)}, bytes(8)),
    "three offsets": packed({"a": {**entry([1], 0, 4), "data_offsets": [0, 4, 8]}}, bytes(4)),
    "overlapping tensors": packed({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, bytes(8)),
    "a gap": packed({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)),
    "bytes after the end": packed({"a": entry([1], 0, 4)}, bytes(8)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(UserError, match=r"not a whole safetensors file"):
        read_safetensors(path)


def test_a_file_that_is_cut_is_refused(tmp_path: Path):
    path, whole = tmp_path / "x.safetensors", save(ARRAYS)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError):
            read_safetensors(path)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path):
    path, whole = tmp_path / "x.safetensors", save(ARRAYS)
    path.write_bytes(whole)
    tensors = read_safetensors(path)
    path.write_bytes(whole[:-90])
    with pytest.raises(UserError, match="cut short"):
        [tensor.read() for tensor in tensors.values()]


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_read_as_the_library_does(
    place: int, bit: int, tmp_path_factory
):
    data = bytearray(save(ARRAYS))
    data[place % len(data)] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(data)
    try:
        tensors = {name: tensor.read() for name, tensor in read_safetensors(path).items()}
    except UserError:
        return
    try:
        theirs = library_load(bytes(data))
    except (SafetensorError, KeyError):
        return  # the library is stricter in a detail that harms nobody
    assert tensors.keys() == theirs.keys()
    for name, array in theirs.items():
        assert tensors[name].tobytes() == array.tobytes()
