"""What a run directory is sure to hold: one config, one corpus, one history."""

import dataclasses
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bert_jax.config import Config, Phase, RunConfig
from bert_jax.errors import UserError
from bert_jax.files import lock
from bert_jax.settings import is_of_type, walk
from bert_jax.training.run_files import read_json, write_json

CONFIG_FILE = "config.json"
DATA_FILE = "data.json"
LOCK_FILE = "lock"
T = TypeVar("T")
_MAX_HOLDER = 300

# Settings that change nothing of what a run computes, but for rounding and for which elements
# dropout drops, so that a resumed run may change them.
_FREE = (
    "log_every",
    "eval_every",
    "eval_examples",
    "checkpoint_every",
    "keep_checkpoints",
    "xla_options",
)
_FREE_GROUPS = ("mesh.", "corpus.", "limits.")
_FREE_FIELDS = (
    "data.dir",
    "data.workers",
    "model.remat",
    "model.attention",
    "model.dropout_bits",
    "optimizer.accumulate",
    "optimizer.max_skipped",
    "task.test",
    "task.also",
)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the run directory, made where it is missing, for this process.

    The system lets go of a lock when its process ends, however it ends. A file system without locks
    (some network ones) goes without.

    Raises:
      UserError: another process holds it, naming that one; or it cannot be written, or not by
        Orbax.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"--workdir={directory}: a file, not a directory")
    _check_path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK_FILE).open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"--workdir={directory}: {error.strerror}") from error
    with file:
        try:
            lock(file)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(_MAX_HOLDER).strip() or "another process"
            raise UserError(
                f"--workdir={directory}: in use by {holder}; wait for its end, stop it, or choose "
                "another --workdir"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        yield


def _check_path(directory: Path) -> None:
    """Refuse a path under which Orbax saves what it cannot read again, or nothing."""
    path = str(directory.absolute())
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"--workdir={directory}: its full path is not UTF-8, as checkpoints need it; choose "
            "another"
        ) from error
    # Orbax looks for what each process wrote by a pattern, which begins with the path as it is, and
    # saves nothing if it finds none; and `etils.epath` takes a backslash for a slash.
    found = [character for character in "*?[\\" if character in path]
    if found:
        raise UserError(
            f"--workdir={directory}: its full path has {' and '.join(found)}, which Orbax misreads "
            "(checkpoints would be lost); choose another"
        )


def open_run_directory(
    directory: Path,
    config: RunConfig,
    data: str,
    fingerprint: str,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Begin a run in its directory, or check that it is this run's, before anything is computed.

    Args:
      directory: it is there, and `locked`.
      config: the resolved config, written to config.json.
      data: where the training data lie.
      fingerprint: of the data; equal ones give the same examples.
      more: what config.json is to hold beside the settings.

    Raises:
      UserError: the directory belongs to another config or corpus, naming what differs; or its
        files cannot be read or written.
    """
    stored = read_json(directory / CONFIG_FILE)
    if stored is not None:
        _check_same(directory, stored, config)
    stored_data = read_json(directory / DATA_FILE)
    if stored_data is not None and stored_data.get("fingerprint") != fingerprint:
        raise UserError(
            f"--workdir={directory}: its run was trained on the data "
            f"{stored_data.get('fingerprint')} of {stored_data.get('directory')}, and those of "
            f"{data} are {fingerprint}; choose another --workdir"
        )
    try:
        write_json(directory / CONFIG_FILE, dataclasses.asdict(config) | dict(more or {}))
        write_json(directory / DATA_FILE, {"directory": data, "fingerprint": fingerprint})
    except OSError as error:
        raise UserError(f"--workdir={directory}: {error.strerror}") from error


def read_fingerprint(directory: Path) -> str | None:
    """The fingerprint of the token shards that a run was trained on, None where it is not told."""
    return (read_json(directory / DATA_FILE) or {}).get("fingerprint")


def is_of_finetuning(directory: Path) -> bool:
    """Whether a directory is that of a fine-tuning run.

    Raises:
      UserError: its config.json cannot be read.
    """
    return "task_kind" in (read_json(directory / CONFIG_FILE) or {})


def read_config(directory: Path) -> Config:
    """The config of a run.

    Raises:
      UserError: the directory is no run's, or config.json is not what a run writes.
    """
    path = directory / CONFIG_FILE
    settings = read_json(path)
    if settings is None:
        raise UserError(f"{directory}: no run directory, for it has no {CONFIG_FILE}")
    try:
        if missing := {"model", "phases"} - settings.keys():
            raise TypeError(f"{', '.join(sorted(missing))} missing")
        known = {spec.name for spec in dataclasses.fields(Config)}
        config = typed(Config, {name: settings[name] for name in known & settings.keys()})
        config.validate()
    except (TypeError, UserError) as error:
        raise UserError(f"{path}: not a run's config ({error})") from error
    return config


def typed(schema: type[T], values: Any) -> T:
    """A dataclass with `values`, which were read from JSON; what they leave out has its default.

    Raises:
      TypeError: an unknown field, or another type than its default's.
    """
    made: Any = schema()
    if not isinstance(values, dict):
        raise TypeError(f"{values!r} where settings were expected")
    for name, value in values.items():
        if name not in {spec.name for spec in dataclasses.fields(made)}:
            raise TypeError(f"no setting is called {name!r}")
        default = getattr(made, name)
        if dataclasses.is_dataclass(default):
            value = typed(type(default), value)
        elif isinstance(default, tuple) and isinstance(value, list):
            phases = name == "phases"
            value = tuple(typed(Phase, item) if phases else _scalar(item) for item in value)
        elif not is_of_type(value, default):
            raise TypeError(f"{name} is {value!r}")
        setattr(made, name, value)
    return made


def _scalar(value: Any) -> Any:
    """A name or number, as it is."""
    if not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} in a list")
    return value


def _check_same(directory: Path, stored: dict[str, Any], config: RunConfig) -> None:
    for path, value, spec in walk(config):
        if path in {*_FREE, *_FREE_FIELDS, *config.derived} or path.startswith(_FREE_GROUPS):
            continue
        # What an earlier version did not know of was as it is by default.
        before = _lookup(stored, path, spec.default)
        if before != (list(value) if isinstance(value, tuple) else value):  # as JSON has it
            raise UserError(
                f"--workdir={directory}: its run has config.{path}={before!r}, and this one "
                f"{value!r}; choose another --workdir, or give the same settings to go on with it"
            )
    if len(stored.get("phases", ())) != len(getattr(config, "phases", ())):
        raise UserError(
            f"--workdir={directory}: its run has other phases; choose another --workdir"
        )


def _lookup(stored: Any, path: str, default: Any) -> Any:
    for name in path.replace("[", ".").replace("]", "").split("."):
        try:
            stored = stored[int(name)] if name.isdigit() else stored[name]
        except (KeyError, IndexError, TypeError):
            return default
    return stored
