"""Files as they lie on a disk, decompressed by what their names end in."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bert_jax.errors import UserError


def _zst(raw: BinaryIO) -> io.BufferedReader:
    import pyarrow  # Python has no Zstandard of its own before 3.14

    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))


# All read on where one compressed file was appended to another.
_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zst,
}
ENDINGS = tuple(_OPENERS)


def kind(path: Path) -> str:
    """The ending that says what a file holds, that of compression aside, in lower case.

    Some programs write `.CSV`.
    """
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in ENDINGS else name.suffix


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The bytes of a file, decompressed if need be, and the file as it lies on the disk.

    Raises:
      UserError: it cannot be read, or, in here, turns out damaged, cut short or not compressed so.
    """
    ending = path.suffix.lower()
    try:
        with path.open("rb") as raw:
            if ending not in ENDINGS:
                yield raw, raw
                return
            with _OPENERS[ending](raw) as stream:
                yield stream, raw
    except EOFError as error:
        raise UserError(
            f"{path}: the {ending} file is cut short; fetch or write it again"
        ) from error
    except (OSError, zlib.error, lzma.LZMAError) as error:
        raise unreadable(path, ending, error) from error


def unreadable(path: Path, kind: str, error: Exception) -> UserError:
    """What to say of a file of some kind whose reading raised an error, in a line.

    An error of the system has a reason; a library's means that the file is damaged or no such file.
    """
    if reason := getattr(error, "strerror", None):
        return UserError(f"{path}: cannot be read: {reason}")
    said = " ".join(str(error).split())
    return UserError(f"{path}: not a {kind} file, or a damaged one ({said})")
