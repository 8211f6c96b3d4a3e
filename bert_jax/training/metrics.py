"""What a run writes about itself: metrics.jsonl, TensorBoard events and environment.json.

jax is imported where it is used, for those who only read metrics.
"""

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from bert_jax.errors import UserError
from bert_jax.files import replace_file
from bert_jax.training.events import EventWriter
from bert_jax.training.run_files import read_json, write_json

METRICS_FILE = "metrics.jsonl"
ENVIRONMENT_FILE = "environment.json"
# A line is about 350 bytes: three million of them.
_MAX_METRICS_BYTES = 1 << 30
_MAX_LINE_BYTES = 1 << 20
_PACKAGES = (
    "bert-jax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "tokenizers",
    "sentencepiece",
    "tensorflow",
    "tensorflow-cpu",
)
# Of an environment, what may change the bits that a step computes.
_HANGS_ON = ("python", "versions", "platform", "devices", "processes", "git")


class MetricsWriter:
    """Appends records to `metrics.jsonl` and their numbers to `tensorboard/`.

    Both are with the operating system when `write` returns, and with a "time" record on the disk,
    or in the bucket that is mounted there. One process of a run writes.
    """

    def __init__(
        self,
        run_directory: Path,
        start_step: int,
        evaluated: int | None = None,
        *,
        enabled: bool = True,
    ):
        """Opens the files of a run that goes on from `start_step` (0: a run that begins).

        What `truncate_after` drops is dropped, so that a resumed run does not leave two histories;
        TensorBoard is told to hide the same. `evaluated` is the step of the last evaluation that
        counts, `start_step` or before. Not `enabled` (any process but the first) writes nothing.

        Raises:
          UserError: as `read_metrics`.
        """
        self._enabled = enabled
        if not enabled:
            return
        run_directory.mkdir(parents=True, exist_ok=True)
        truncate_after(run_directory, start_step, evaluated)
        self._lines = (run_directory / METRICS_FILE).open("a", encoding="utf-8")
        self._events = EventWriter(run_directory / "tensorboard", purge_step=start_step + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; "time" (unix seconds) is added where it is missing.

        Values are strings, numbers (Python, NumPy or JAX scalars), None or dicts of them; NaN and
        infinities become null, for JSON has neither. Numbers of a record with a step go to
        TensorBoard under `kind/name`.
        """
        if not self._enabled:
            return
        record = {"time": time.time()} | {key: _plain(value) for key, value in record.items()}
        self._lines.write(json.dumps(record, allow_nan=False) + "\n")
        self._lines.flush()
        values = {
            f"{record['kind']}/{name}": value
            for name, value in record.items()
            if name not in ("step", "phase", "time") and isinstance(value, int | float)
        }
        if values:
            self._events.write(values, record.get("step", 0), record["time"])
        if record["kind"] == "time":  # with each checkpoint, of which it is to be as sure
            os.fsync(self._lines.fileno())
            self._events.sync()

    def close(self) -> None:
        """Close both files, once all is written."""
        if self._enabled:
            self._lines.close()
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(run_directory: Path) -> list[dict[str, Any]]:
    """Records of `metrics.jsonl`, in order; empty where there is no such file.

    A last line without its line break (a run that was killed while writing) is left out.

    Raises:
      UserError: the file is larger than 1 GiB, or a line is no record.
    """
    path = run_directory / METRICS_FILE
    if not path.exists():
        return []
    if path.stat().st_size > _MAX_METRICS_BYTES:
        raise UserError(f"{path} is larger than {_MAX_METRICS_BYTES >> 20} MiB: no metrics file")
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(_MAX_LINE_BYTES), b"")
        return [
            _parse(line, f"{path}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.endswith(b"\n") or len(line) == _MAX_LINE_BYTES
        ]


def truncate_after(run_directory: Path, step: int, evaluated: int | None = None) -> None:
    """Drop from `metrics.jsonl` what a run that goes on from `step` will write anew.

    Those are train and skip records beyond `step`, eval records beyond `evaluated` (`step` where
    that is None), the baseline of a phase that begins at `step` or later, and a torn last line.
    Records of other kinds stay: the time a run took was spent, whatever came of it.
    """
    last = {
        "train": step,
        "skip": step,
        "eval": step if evaluated is None else evaluated,
        "baseline": step - 1,
    }
    kept = [
        record
        for record in read_metrics(run_directory)
        if record["kind"] not in last or record.get("step", 0) <= last[record["kind"]]
    ]
    lines = "".join(json.dumps(record) + "\n" for record in kept)
    replace_file(run_directory / METRICS_FILE, lines.encode())


def write_environment(run_directory: Path) -> None:
    """Write `environment.json`: versions, devices, host, git commit and command line.

    A run that goes on where what its bits hang on is another keeps what it was, under "earlier",
    oldest first: its figures are of all of them.

    Raises:
      UserError: there is an `environment.json` that cannot be read.
    """
    import jax

    environment = {
        "python": platform.python_version(),
        "versions": _versions(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu_count": os.cpu_count(),
        "devices": dict(Counter(device.device_kind for device in jax.devices())),
        "processes": jax.process_count(),
        "git": _git_state(Path(__file__).parent),
        "command": sys.argv,
    }
    path = run_directory / ENVIRONMENT_FILE
    before = read_json(path) or {}
    earlier = before.pop("earlier", None)
    earlier = earlier if isinstance(earlier, list) else []
    if before and any(before.get(key) != environment[key] for key in _HANGS_ON):
        earlier.append(before)
    write_json(path, {**environment, "earlier": earlier} if earlier else environment)


def _plain(value: Any) -> Any:
    """`value`, or what a dict holds, as JSON has it: None for NaN and infinities."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: not JSON; remove the line") from None
    if not _is_record(record):
        raise UserError(f"{where}: not a record of metrics; remove the line")
    return _plain(record)


def _is_record(record: Any) -> bool:
    """Whether it has what readers count on; its other values may be anything."""
    if not isinstance(record, dict):
        return False
    match record.get("kind"):
        case "train" | "eval" | "skip":
            return _is_step(record.get("step"))
        case "time":
            return (
                _is_step(record.get("step"))
                and _is_time(record.get("session"))
                and isinstance(record.get("seconds"), dict)
                and all(value is None or _is_time(value) for value in record["seconds"].values())
            )
        case "baseline":
            return _is_step(record.get("step", 0))
        case kind:
            return isinstance(kind, str)


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_time(value: Any) -> bool:
    """Whether it is a number of seconds that can be added to others."""
    return type(value) in (int, float) and abs(value) < 1e15


def _versions() -> dict[str, str]:
    """Versions of those packages that are installed, from their metadata: nothing is imported."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _git_state(directory: Path) -> dict[str, Any] | None:
    """Commit, and whether tracked files differ from it; None where git does not track us.

    A package installed below somebody else's checkout is not part of that checkout.
    """
    if _git(directory, "ls-files", "--error-unmatch", "metrics.py") is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": _git(directory, "rev-parse", "HEAD"), "dirty": bool(changes)}


def _git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
