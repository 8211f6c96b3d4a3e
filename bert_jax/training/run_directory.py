"""What a run directory is sure to hold: one config, one corpus, one history."""

import dataclasses
from pathlib import Path
from typing import Any

from bert_jax.config import Config, walk
from bert_jax.errors import UserError
from bert_jax.training.run_files import read_json, write_json

CONFIG_FILE = "config.json"
DATA_FILE = "data.json"
_MAX_BYTES = 1 << 20

# Settings that change nothing of what a run computes, so that a resumed run may change them.
_FREE = ("log_every", "eval_every", "eval_examples", "checkpoint_every", "keep_checkpoints")
_FREE_GROUPS = ("mesh.", "corpus.", "limits.")
_FREE_FIELDS = (
    "data.dir",
    "data.workers",
    "model.remat",
    "optimizer.accumulate",
    "optimizer.max_skipped",
)


def open_run_directory(directory: Path, config: Config, fingerprint: str) -> None:
    """Make the directory of a run, or check that it is this run's, before anything is computed.

    Args:
      directory: made where it is missing.
      config: the resolved config, written to config.json.
      fingerprint: of the token shards; equal ones give the same examples.

    Raises:
      UserError: the directory belongs to another config or corpus, naming what differs; or its
        files cannot be read or written.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"--workdir={directory}: a file, not a directory")
    stored = read_json(directory / CONFIG_FILE, _MAX_BYTES)
    if stored is not None:
        _check_same(directory, stored, config)
    data = read_json(directory / DATA_FILE, _MAX_BYTES)
    if data is not None and data.get("fingerprint") != fingerprint:
        raise UserError(
            f"--workdir={directory}: its run was trained on the token shards "
            f"{data.get('fingerprint')} of {data.get('directory')}, and those of "
            f"{config.data.dir} are {fingerprint}; choose another --workdir"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / CONFIG_FILE, dataclasses.asdict(config))
        write_json(
            directory / DATA_FILE, {"directory": config.data.dir, "fingerprint": fingerprint}
        )
    except OSError as error:
        raise UserError(f"--workdir={directory}: {error.strerror}") from error


def _check_same(directory: Path, stored: dict[str, Any], config: Config) -> None:
    for path, value, _ in walk(config):
        if path in _FREE + _FREE_FIELDS or path.startswith(_FREE_GROUPS):
            continue
        before = _lookup(stored, path)
        if before != value:
            raise UserError(
                f"--workdir={directory}: its run has config.{path}={before!r}, and this one "
                f"{value!r}; choose another --workdir, or give the same settings to go on with it"
            )
    if len(stored.get("phases", ())) != len(config.phases):
        raise UserError(
            f"--workdir={directory}: its run has other phases; choose another --workdir"
        )


def _lookup(stored: Any, path: str) -> Any:
    for name in path.replace("[", ".").replace("]", "").split("."):
        try:
            stored = stored[int(name)] if name.isdigit() else stored[name]
        except (KeyError, IndexError, TypeError):
            return None
    return stored
