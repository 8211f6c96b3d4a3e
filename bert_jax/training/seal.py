"""The seal of a folder: what it holds to the last bit, so that any change to it is seen.

`seal.json` names every file with its size and CRC-32, and carries what else belongs to the folder.
It is canonical JSON under a CRC-32 of its own: a changed byte of it shows too. It is a guard
against damage, not against a forger.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

SEAL_FILE = "seal.json"
_MAX_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20


class Damage(Exception):
    """What of a folder is not as it was sealed."""


def write_seal(folder: Path, content: dict[str, Any], *, later: tuple[str, ...] = ()) -> None:
    """Seal a folder.

    Args:
      folder: it holds all its files, except those in `later`.
      content: JSON values by names other than `files` and `crc32`.
      later: names of files that are still to come; of them the seal says only that they exist.
    """
    files: dict[str, list[int] | None] = dict.fromkeys(later)
    for name, size in _sizes(folder).items():
        files[name] = [size, _crc32(folder / name)]
    (folder / SEAL_FILE).write_bytes(_encode(content | {"files": files}))


def read_seal(folder: Path) -> dict[str, Any]:
    """What `write_seal` was given as content, and the list of files under `files`.

    Raises:
      Damage: there is no seal, or it was changed.
      PermissionError: it may not be read.
    """
    try:
        if not (folder / SEAL_FILE).is_file():
            raise Damage(f"{SEAL_FILE} is missing")
        if (folder / SEAL_FILE).stat().st_size > _MAX_BYTES:
            raise Damage(f"{SEAL_FILE} is too large")
        stored = (folder / SEAL_FILE).read_bytes()
        content = json.loads(stored)
        del content["crc32"]
        whole = _encode(content) == stored
    except PermissionError:
        raise
    except OSError as error:
        raise Damage(f"{SEAL_FILE}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise Damage(f"{SEAL_FILE} is not what was written")
    return content


def check_files(folder: Path, files: dict[str, list[int] | None]) -> None:
    """Check that a folder holds the files of its seal; the sizes first, which costs nothing.

    Raises:
      Damage: a file is missing or was changed.
      PermissionError: a file may not be read.
    """
    sizes = _sizes(folder)
    for name, facts in files.items():
        if name not in sizes:
            raise Damage(f"{name} is missing")
        if facts and sizes[name] != facts[0]:
            raise Damage(f"{name} has {sizes[name]} bytes and not {facts[0]}")
    for name, facts in files.items():
        try:
            whole = facts is None or _crc32(folder / name) == facts[1]
        except PermissionError:
            raise
        except OSError as error:
            raise Damage(f"{name}: {error.strerror}") from error
        if not whole:
            raise Damage(f"{name} is not what was written")


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of each file under a folder, by path from there."""
    paths = (Path(where, name) for where, _, names in os.walk(folder) for name in names)
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in paths if path.is_file()
    }


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return value


def _encode(content: dict[str, Any]) -> bytes:
    crc32 = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    return json.dumps(content | {"crc32": crc32}, sort_keys=True, indent=1).encode()
