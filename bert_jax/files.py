"""Files that are there whole or not at all, and locks that end with whoever holds them."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def flush_to_disk(file: IO[Any]) -> None:
    """Have what was written to a file on its disk, which a loss of power leaves as it is."""
    file.flush()
    os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: under a temporary name, then renamed."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        flush_to_disk(file)
    os.replace(temporary, path)


def lock(opened: int | IO[Any], *, wait: bool = False) -> None:
    """Lock an open file or directory until it is closed or the process ends, however it ends.

    A file system without locks (some network ones) goes without.

    Args:
      opened: the file, or the descriptor of a directory.
      wait: for another process that holds the lock.

    Raises:
      BlockingIOError: another process holds it, and `wait` is not set.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise


@contextmanager
def held(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a directory; see `lock`."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        lock(opened, wait=wait)
        yield
    finally:
        os.close(opened)
