"""The small JSON files of a run directory: written whole or not at all, read within bounds."""

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import replace_file

# Room for the thousands of labels that a config may hold, several times each, as \uXXXX.
_MAX_BYTES = 16 << 20


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    replace_file(path, json.dumps(content, indent=2).encode() + b"\n")


def read_json(path: Path, max_bytes: int = _MAX_BYTES) -> dict[str, Any] | None:
    """A JSON object; None where there is no such file.

    Args:
      path: of the file.
      max_bytes: how large it may be.

    Raises:
      UserError: the file is larger than `max_bytes`, cannot be read, or holds something else.
    """
    if not path.exists():
        return None
    try:
        if not path.is_file():  # to read a named pipe is to wait for its writer
            raise ValueError("not a regular file")
        if path.stat().st_size > max_bytes:
            raise ValueError(f"over {max_bytes >> 20} MiB")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); restore it or move it away") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object; restore it or move it away")
    return content
