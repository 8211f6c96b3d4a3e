"""Token shards copied to a local disk, whole and as they were written."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.shards import MANIFEST, SPLITS, checksum, read_manifest
from bert_jax.errors import UserError
from bert_jax.files import held, replace_file

# What stands beside the shards; the pairs only where a run has planned them there.
_FOLDERS = ("tokenizer", "pairs")
# A reader of Cloud Storage gets a few hundred MB/s; a host's network carries several of them.
_READERS = 8


class Staged(NamedTuple):
    """What was done for a directory of shards.

    Attributes:
      files: that hold the shards.
      copied: those of them that were not there yet, or not as they should be.
      copied_bytes: of these.
    """

    files: int
    copied: int
    copied_bytes: int


def stage(source: Path, directory: Path) -> Staged:
    """Copy a directory of token shards; what is there already and whole is not copied again.

    Every file of a shard is checked against its checksum in the manifest, which is written last: a
    directory that has one is complete. Other files are compared with the source's. Of two processes
    that stage to one directory, the second waits for the first.

    Args:
      source: what `prepare` wrote.
      directory: made where it is missing.

    Raises:
      UserError: no shards there, a file of them missing or not what its checksum says, or a disk
        that is full or cannot be read or written.
    """
    manifest = read_manifest(source)
    entries = [entry for split in SPLITS for entry in manifest.splits[split].shards]
    files = [item for entry in entries for item in entry.checksums.items()]
    content = (source / MANIFEST).read_bytes()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Half-written files have one name whoever writes them.
        with held(directory, wait=True), ThreadPoolExecutor(_READERS) as readers:
            if not _holds(directory / MANIFEST, content):
                (directory / MANIFEST).unlink(missing_ok=True)
            sizes = list(readers.map(lambda item: _copy(source, directory, *item), files))
            paths = (path for folder in _FOLDERS for path in (source / folder).glob("*"))
            # A plan is written to *.tmp first, which goes at any moment, or a killed run has left.
            beside = [path for path in paths if path.suffix != ".tmp" and path.is_file()]
            list(readers.map(lambda path: _copy_beside(path, source, directory), beside))
            replace_file(directory / MANIFEST, content)
    except OSError as error:
        where = error.filename or directory
        raise UserError(f"{where}: {error.strerror}; the shards were not staged") from error
    return Staged(len(files), sum(size > 0 for size in sizes), sum(sizes))


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _copy_beside(path: Path, source: Path, directory: Path) -> None:
    name = path.relative_to(source)
    (directory / name.parent).mkdir(exist_ok=True)
    _copy(source, directory, str(name), checksum(path))


def _copy(source: Path, directory: Path, name: str, expected: str) -> int:
    """The bytes that had to be copied, 0 where the file is there and whole."""
    path = directory / name
    if path.is_file() and checksum(path) == expected:
        return 0
    temporary = path.with_name(path.name + ".tmp")
    shutil.copyfile(source / name, temporary)
    if checksum(temporary) != expected:
        temporary.unlink()
        raise UserError(
            f"{source / name}: truncated, edited or damaged (its checksum differs); restore it "
            "from a copy, or prepare the shards again"
        )
    os.replace(temporary, path)
    return path.stat().st_size
