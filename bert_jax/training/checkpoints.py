"""A run's checkpoints: written in the background, whole or absent, and checked before use.

A checkpoint is a folder, `checkpoints/STEP`, that Orbax writes and `bert_jax.training.seal` seals.
The seal also holds the dtype, shape and fingerprint of every array. What fails a check is named
and moved to `checkpoints/damaged`; it is never deleted.
"""

import errno
import itertools
import logging
import mmap
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from bert_jax.errors import UserError, first_line
from bert_jax.training.fingerprint import fingerprints, leaf_names
from bert_jax.training.seal import Damage, check_files, read_seal, write_seal

DAMAGED = "damaged"
_UNFINISHED = ocp.path.atomicity.TMP_DIR_SUFFIX
_PROBE = "probe"
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NEVER_SAVED, _NONE_WHOLE = -1, -2
# What Orbax and the seal write beside the arrays: a kilobyte for each, and what is for all.
_METADATA_BYTES = 1 << 20
_METADATA_BYTES_PER_ARRAY = 1 << 10
# Devices that hold an array alike write a part of it each, where a part has as many bytes: the
# kernels of `base` up to 144 of them. Orbax by itself cuts every array, by a program for each shape
# and part, and a call for each part of each save.
_MIN_PART_BYTES = 1 << 16
# A week: how long a save may take is for the watchdog to say. Orbax by itself gives up after twenty
# minutes.
_SAVE_SECONDS = 7 * 24 * 3600
# Bytes: XLA takes what begins at a multiple of them as an array of a CPU, and copies other memory.
_ALIGNMENT = 64

State = TypeVar("State")  # a tree of arrays
_print_unraisable = sys.unraisablehook


class Checkpoints:
    """The `checkpoints` folder of a run directory. All processes call its methods alike."""

    def __init__(self, run_directory: Path, keep: int) -> None:
        """Open the folder, making it where it is missing.

        The `keep` newest checkpoints stay, and however old those are that their windows name as
        "best".
        """
        # Orbax tells of every stage, and of an error before it raises it; asyncio of the errors of
        # its other arrays, which it waits for no longer.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        sys.unraisablehook = _without_late_answers
        self._folder = (run_directory / "checkpoints").absolute()
        self._keep = keep
        self._newest: int | None = None
        self._pending: tuple[int, Any, Any, dict[str, Any]] | None = None
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(
                # Weights shrink by a twelfth, for twice the cores' time and their size again in
                # memory (docs/cpu_path.md).
                use_compression=False,
                type_handler_registry=_handlers(),
            ),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=_SAVE_SECONDS,
                # Process 0 calls it when all is written, before the folder gets its name.
                post_finalization_callback=self._seal,
            ),
            # Else Orbax changes a file after that.
            checkpoint_metadata_store=ocp.metadata.metadata_store(enable_write=False),
        )
        if jax.process_index() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for unfinished in self._folder.glob(f"*{_UNFINISHED}"):
                shutil.rmtree(unfinished)

    def save(self, state: Any, step: int, window: dict[str, Any]) -> None:
        """Begin to save the state of `step`; it is written while training goes on.

        Args:
          state: a tree of arrays, of numbers or bools (typed random keys are not restored); all of
            it is copied to the host before this returns.
          step: the step that it is the state of; the newest that is saved is not saved again.
          window: JSON values, under 1 KB: what was measured since the last "train" record, and as
            "best" the step and score of the best evaluation.

        Raises:
          UserError: this save, or the one before it, could not be written.
        """
        if self._newest == step:
            return
        try:
            self._checkpointer.wait_until_finished()
            self._delete_old()
            self._check_room(state)
            # Computed while the state is copied, and fetched when that is written.
            self._pending = step, _described(state), fingerprints(state), window
            arguments = ocp.args.PyTreeSave(_apart(state))
            self._checkpointer.save(self._path(step), args=arguments)
        except Exception as error:
            raise self._failure(error) from error
        self._newest = step

    def restore(self, abstract_state: State) -> tuple[State, dict[str, Any]] | None:
        """The newest checkpoint that is whole, each array read straight into its sharding.

        Those that are damaged are named on standard error and set aside.

        Args:
          abstract_state: the shapes, dtypes and shardings to restore into.

        Returns:
          The state, and the `window` that was saved with it; None where none was ever saved.

        Raises:
          UserError: there are checkpoints and none is whole, or the newest whole one has other
            arrays than `abstract_state`, or cannot be read.
        """
        while (step := _of_first_process(self._newest_whole())) >= 0:
            try:
                restored = self.restore_step(step, abstract_state)
                self._newest = step
                return restored
            except Damage as damage:
                self._set_aside(step, str(damage))
        if step == _NEVER_SAVED:
            return None
        raise UserError(
            f"{self._folder}: no checkpoint is whole; put a good copy of one back, or move "
            f"{self._folder / DAMAGED} away to begin at step 0"
        )

    def restore_step(self, step: int, abstract_state: State) -> tuple[State, dict[str, Any]]:
        """As `restore`, of one checkpoint.

        Raises:
          Damage: it is not what was saved.
          UserError: it has other arrays than `abstract_state`, or cannot be read.
        """
        try:
            state, seal = self._read(step, abstract_state)
        except (UserError, Damage):
            raise
        except Exception as error:
            raise UserError(
                f"{self._path(step)}: cannot be restored ({first_line(error)}); move it away "
                "to go on from the one before it"
            ) from error
        found = _with_fingerprints(_described(state), fingerprints(state))
        changed = [name for name, facts in found.items() if facts != seal["arrays"][name]]
        if changed:
            raise Damage(f"{changed[0]} is not what was saved")
        return state, seal["window"]

    def close(self) -> None:
        """Wait until all is written.

        Raises:
          UserError: the last save could not be written.
        """
        try:
            self._checkpointer.close()
            self._delete_old()
        except Exception as error:
            raise self._failure(error) from error

    def _path(self, step: int) -> Path:
        return self._folder / str(step)

    def _seal(self) -> None:
        assert self._pending
        step, arrays, prints, window = self._pending
        content = {"arrays": _with_fingerprints(arrays, prints), "window": window}
        folder = self._folder / f"{step}{_UNFINISHED}"
        write_seal(folder, content, later=(ocp.path.atomicity.COMMIT_SUCCESS_FILE,))

    def _delete_old(self) -> None:
        if jax.process_index():
            return
        steps = saved_steps(self._folder)
        # A run may go on from any that is kept, and ends with the best that it names.
        needed = {self._best(step) for step in steps[-self._keep :]}
        for step in steps[: -self._keep]:
            if step not in needed:
                shutil.rmtree(self._path(step))

    def _best(self, step: int) -> int | None:
        """The step that the checkpoint of `step` names as the best; None for none."""
        try:
            best = read_seal(self._path(step))["window"].get("best")
        except Damage:
            return None
        return best[0] if best else None

    def _check_room(self, state: Any) -> None:
        """Raise at once what would fail on the way, and leave the disk full."""
        if number := _of_first_process(self._cannot_make_folders()):
            raise OSError(number, os.strerror(number), str(self._folder))
        sizes = [leaf.nbytes + _METADATA_BYTES_PER_ARRAY for leaf in jax.tree.leaves(state)]
        needed = sum(sizes) + _METADATA_BYTES
        disk = shutil.disk_usage(self._folder)
        # Some network drives say nothing: 0 of 0 bytes are free.
        if _of_first_process(disk.total > 0 and disk.free < needed):
            room = f"it takes {needed / 2**20:,.1f} MiB, and {disk.free / 2**20:,.1f} are free"
            raise OSError(room)

    def _cannot_make_folders(self) -> int:
        """The number of the error that Orbax would meet in its first folder; 0 for none.

        Threads of its own wait minutes for that folder, and the process for them as it ends.
        """
        if jax.process_index():
            return 0  # process 0 makes it for all
        try:
            (self._folder / _PROBE).mkdir(exist_ok=True)
            (self._folder / _PROBE).rmdir()
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _newest_whole(self) -> int:
        """The step of the newest checkpoint whose files are all as they were written."""
        if jax.process_index():
            return _NEVER_SAVED  # process 0 looks for all
        for step in reversed(saved_steps(self._folder)):
            try:
                check_files(self._path(step), read_seal(self._path(step))["files"])
                return step
            except Damage as damage:
                self._set_aside(step, str(damage))
        return _NONE_WHOLE if (self._folder / DAMAGED).exists() else _NEVER_SAVED

    def _set_aside(self, step: int, damage: str) -> None:
        if jax.process_index():
            return
        folder = self._folder / DAMAGED
        folder.mkdir(exist_ok=True)
        aside = folder / f"{step}-{len(list(folder.iterdir())) + 1}"
        self._path(step).rename(aside)
        print(f"{self._path(step)}: damaged: {damage}; set aside as {aside}", file=sys.stderr)

    def _read(self, step: int, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
        seal = read_seal(self._path(step))
        self._check_arrays(step, seal["arrays"], _described(abstract_state))
        as_sharded = ocp.checkpoint_utils.construct_restore_args(abstract_state)
        arguments = ocp.args.PyTreeRestore(abstract_state, restore_args=as_sharded)
        return self._checkpointer.restore(self._path(step), args=arguments), seal

    def _check_arrays(self, step: int, stored: dict[str, Any], expected: dict[str, Any]) -> None:
        for name in sorted(stored.keys() | expected.keys()):
            there, here = (
                f"{facts[name]['dtype']}{facts[name]['shape']}" if name in facts else "missing"
                for facts in (stored, expected)
            )
            if there != here:
                raise UserError(
                    f"{self._path(step)}: {name} is {there} there, and {here} in this model; "
                    "choose another --workdir, or the settings that it was saved with"
                )

    def _failure(self, error: Exception) -> UserError:
        self._newest = None
        kept = saved_steps(self._folder)
        held = f"the newest one that is whole is step {max(kept)}" if kept else "there is none yet"
        number = error.errno if isinstance(error, OSError) else None
        forbidden = number in _FORBIDDEN or "PERMISSION_DENIED" in str(error)  # TensorStore's
        room = "memory" if number == errno.ENOMEM else "disk space"
        mend = "let it be written to" if forbidden else f"free some {room}"
        return UserError(
            f"{self._folder}: a checkpoint could not be written ({first_line(error)}); {held}; "
            f"{mend} and start the same command again"
        )


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints that `folder` holds by name, the oldest first."""
    names = (path.name for path in folder.iterdir())
    steps = [int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]{0,9}", name)]
    return sorted(step for step in steps if step < 2**31)  # an int32, as in the state


def _handlers() -> ocp.type_handlers.TypeHandlerRegistry:
    handler = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_MIN_PART_BYTES)
    return ocp.type_handlers.create_type_handler_registry((jax.Array, handler))


def _apart(state: State) -> State:
    """Of a CPU a copy, in memory that goes back to the system when all of it is written.

    There Orbax writes the state from where it lies: the next step could not take that memory over,
    and would make the state anew, elsewhere, while glibc keeps what it was in. From other devices
    Orbax copies by itself.
    """
    if jax.default_backend() != "cpu":
        return state
    shards = [shard.data for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards]
    starts = [0, *itertools.accumulate(-(-shard.nbytes // _ALIGNMENT) for shard in shards)]
    # By default it is shared with child processes, and takes twice as long to fill.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, starts[-1] * _ALIGNMENT, flags=private)

    def copied(shard: jax.Array, start: int) -> jax.Array:
        copy = np.ndarray(shard.shape, shard.dtype, memory, start * _ALIGNMENT)
        np.copyto(copy, np.asarray(shard))
        return jax.device_put(copy, shard.device, may_alias=True)

    with ThreadPoolExecutor() as pool:
        copies = pool.map(copied, shards, starts)

    def whole(leaf: jax.Array) -> jax.Array:
        parts = [*itertools.islice(copies, len(leaf.addressable_shards))]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)

    return jax.tree.map(whole, state)


def _described(tree: Any) -> dict[str, dict[str, Any]]:
    """Each array's dtype and shape by its name."""
    return {
        name: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
        for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
    }


def _with_fingerprints(described: dict[str, dict[str, Any]], prints: Any) -> dict[str, Any]:
    """Waits for `prints`, which lie on the devices."""
    values = (f"{int(value):08x}" for value in jax.device_get(jax.tree.leaves(prints)))
    return {
        name: facts | {"fingerprint": value}
        for (name, facts), value in zip(described.items(), values, strict=True)
    }


def _without_late_answers(unraisable: Any) -> None:
    """Print what a thread cannot raise, but for the answers that nobody waits for.

    Where an array cannot be written, Orbax closes the event loop that the others answer to: each of
    them would print a traceback.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        _print_unraisable(unraisable)


def _of_first_process(number: int) -> int:
    """Process 0's number, in all processes."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))
