"""What a process does around the training of any kind of run: meet the others, hold, and let go."""

import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax.config import LimitsConfig, RunConfig
from bert_jax.errors import TrainingFailure, UserError, full_memory_told
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.clock import Clock
from bert_jax.training.cluster import Cluster, join_cluster
from bert_jax.training.console import Progress
from bert_jax.training.loop import Run, save_checkpoint, settle
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.run_directory import CONFIG_FILE, locked
from bert_jax.training.state import TrainState
from bert_jax.training.stopping import StopRequest
from bert_jax.training.watchdog import Watchdog
from bert_jax.training.window import Window

# A disk that is full, or that may not be written: the user's to mend.
_NO_ROOM_OR_RIGHT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
_LESS_MEMORY = (
    "the same command goes on with --config.optimizer.accumulate=2 (4, 8 ...), which takes a batch "
    "in so many parts, for the same update, or with --config.model.remat=dots, which keeps less of "
    "it"
)


class Session(NamedTuple):
    """A process that works on a run."""

    directory: Path
    clock: Clock
    cluster: Cluster
    watchdog: Watchdog

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.cluster.index == 0

    def begin_directory(self, begin: Callable[[], object]) -> bool:
        """Let process 0 `begin` the run directory, and check that all of them have the same.

        Returns:
          Whether it was done; False where a signal has come to any process.

        Raises:
          UserError: of `begin`; or a process does not see what process 0 wrote: each would keep its
            part of every checkpoint to itself.
        """
        begun = self.cluster.by_first("run directory", begin)
        if begun:
            # Listed, not asked for: a network drive remembers what was missing a moment ago.
            seen = self.directory.is_dir() and CONFIG_FILE in os.listdir(self.directory)
            mend = "let it be one that all of them share, on a network drive or in a mounted bucket"
            self.cluster.check_same("run directory at --workdir", lambda: str(seen), mend)
        return begun

    def check_same_settings(self, config: RunConfig) -> None:
        """Check that all processes have the same settings.

        Raises:
          SharedFailure: as `Cluster.check_same`.
        """

        def digest() -> str:
            settings = json.dumps(dataclasses.asdict(config)).encode()
            return hashlib.blake2b(settings, digest_size=8).hexdigest()

        self.cluster.check_same("config", digest)


@contextmanager
def in_session(
    limits: LimitsConfig,
    directory: Path,
    clock: Clock | None,
    detect_processes: bool,
    stop: StopRequest | None = None,
) -> Iterator[Session]:
    """Hold the run directory with the other processes of the run; failures are told to them.

    Meanwhile SIGINT, SIGTERM and SIGHUP do not end the process, but ask it to stop.

    Args:
      limits: how long to wait for others.
      directory: of the run, made where it is missing; the same to all processes.
      clock: started with the process; now by default.
      detect_processes: see `join_cluster`.
      stop: of all that the process does; the session's own by default.

    Raises:
      UserError: the directory is in use; a disk or a memory that is full.
    """
    with nullcontext(stop) if stop else StopRequest() as asked:
        cluster = join_cluster(limits, asked, detect_processes)
        with (
            cluster.failing_together(),
            full_memory_told(_LESS_MEMORY),
            _machine_errors_explained(directory),
            Watchdog(limits, directory, cluster.index) as watchdog,
            ExitStack() as held,
        ):
            cluster.check_count()
            cluster.by_first("lock", lambda: held.enter_context(locked(directory)))
            # Before any reads for long: JAX gives a process two minutes to tell its devices.
            number = "number of devices"
            cluster.check_same(number, lambda: str(jax.local_device_count()), "give each as many")
            yield Session(directory, clock or Clock(), cluster, watchdog)
            watchdog.begin("")  # the others are waited for as long as theirs let them be
            cluster.leave()


@contextmanager
def open_run(
    session: Session,
    config: RunConfig,
    mesh: Mesh,
    train_step: Any,
    step: int,
    window: Window,
    checkpoints: Checkpoints,
    seconds_left: Callable[[int, Mapping[str, Any]], float | None],
    score: str = "",
) -> Iterator[Run]:
    """A run that goes on from `step` under `mesh`, with its metrics and its progress bar open.

    Args:
      seconds_left: see `Progress`.
      score: see `Run`.
    """
    clock, first = session.clock, session.first
    with (
        jax.set_mesh(mesh),
        MetricsWriter(session.directory, step, window.evaluated, enabled=first) as writer,
        Progress(config.total_steps, seconds_left, step, enabled=first) as progress,
        clock("log"),
    ):
        writer.write(clock.record(step))
        run = Run(
            directory=session.directory,
            config=config,
            mesh=mesh,
            train_step=train_step,
            clock=clock,
            window=window,
            writer=writer,
            progress=progress,
            checkpoints=checkpoints,
            stop_due=session.cluster.stop_due,
            ending=session.cluster.ending_alone,
            begin=session.watchdog.begin,
            score=score,
        )
        try:
            yield run
        except Exception as error:
            # A checkpoint on its way is finished, unless the others may be gone that write it too.
            if isinstance(error, TrainingFailure) or session.cluster.count == 1:
                with suppress(UserError):
                    checkpoints.close()
            raise


def save_last(run: Run, state: TrainState) -> None:
    """Save the state in which training ends or stops, and wait until it is safe.

    One that stops in a row of skipped steps may be ruined, as in `train_steps`: the last good
    checkpoint stays the newest.
    """
    step = int(state.step)
    settle(run)
    if not run.window.in_row or step == run.config.total_steps:
        save_checkpoint(run, state, step)
    with run.clock("checkpoint"):
        run.checkpoints.close()
    run.writer.write(run.clock.record(step))


@contextmanager
def _machine_errors_explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM_OR_RIGHT:
            raise
        where = error.filename or directory
        told = f"{where}: {error.strerror}; when that is mended, start the same command again"
        raise UserError(told) from error
