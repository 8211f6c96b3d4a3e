"""What compresses bytes, by the ending of the file."""

import bz2
import gzip
import lzma
from collections.abc import Callable

import pyarrow as pa


def zst(data: bytes) -> bytes:
    """One frame of Zstandard."""
    return pa.compress(data, codec="zstd", asbytes=True)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zst,
}
