"""The processes of a run, one a host: how they meet, agree, and notice that one is gone.

They meet through JAX's coordination service, which process 0 runs. JAX ends a process whose peer is
lost by abort(); so each sends heartbeats of its own here, and ends with a line that names the peer
and with the exit code that says "start again".

A stop is agreed on in the same place. When a process got a signal, each tells how often it has
asked whether to stop, and all stop at the question after the most of these: at the same step.
Before that, a question costs no message.
"""

import ctypes
import functools
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from json import JSONDecodeError
from typing import Any, NoReturn

import jax
from jax._src import distributed
from jax.errors import JaxRuntimeError

from bert_jax.config import LimitsConfig
from bert_jax.errors import FAILURE_EXIT_CODE, SharedFailure, UserError, print_error
from bert_jax.training.stopping import RESUME_EXIT_CODE, StopRequest, ending_at_signals
from bert_jax.training.watchdog import running_seconds

# What is to be done where what they read differs.
SAME_FILES = "let all of them read the same files"

_INTERVAL = 0.25
# Process 0 runs the service that the others hear from: once it has told them, it stays as long.
_FAREWELL = 1.5
# Keys of the service.
_ALIVE, _NOTICE, _QUESTIONS = "alive", "notice", "questions"
_STOP, _STOP_AT, _END = f"{_NOTICE}/stop", f"{_NOTICE}/stop_at", f"{_NOTICE}/end"
_NEVER = 1 << 62


def joins_others(detect: bool) -> bool:
    """Whether this process is to meet others: it is to find them, or is told how many there are."""
    return detect or "JAX_NUM_PROCESSES" in os.environ


def join_cluster(limits: LimitsConfig, stop: StopRequest, detect: bool) -> "Cluster":
    """Meet the other processes of the run; to be called before JAX sees a device.

    Which they are stands in the environment variables JAX_COORDINATOR_ADDRESS (host:port of process
    0), JAX_NUM_PROCESSES and JAX_PROCESS_ID, or is found by JAX itself where `detect` (Cloud TPU,
    SLURM, Open MPI). With neither there is one process.

    Raises:
      UserError: it cannot be found out.
    """
    if not joins_others(detect):
        return Cluster(limits, stop, 0, 1)
    _check_address()
    # Its handler of SIGTERM would replace ours, and it knows nothing of Ctrl-C.
    jax.config.update("jax_enable_preemption_service", False)
    _at_abort(functools.partial(_not_all_came, limits))
    try:
        jax.distributed.initialize(
            num_processes=_number("JAX_NUM_PROCESSES"),
            process_id=_number("JAX_PROCESS_ID"),
            local_device_ids=_local_devices(os.environ),
            cluster_detection_method=None if detect else "deactivate",
            initialization_timeout=limits.start,
            # Ours are to come first, and say more.
            heartbeat_timeout_seconds=2 * limits.heartbeat + 60,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"the other processes cannot be found ({error}); set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from error
    state = distributed.global_state
    return Cluster(limits, stop, state.process_id, state.num_processes)


class Cluster:
    """This process among those of its run.

    Attributes:
      index: of this process; process 0 writes and prints.
      count: of processes.
    """

    def __init__(self, limits: LimitsConfig, stop: StopRequest, index: int, count: int) -> None:
        """See `join_cluster`. With several processes, begins to send heartbeats."""
        self.index, self.count = index, count
        self._limits, self._heartbeat, self._stop = limits, limits.heartbeat, stop
        self._client: Any = distributed.global_state.client
        self._questions, self._stop_at = 0, _NEVER
        self._asking, self._holds = threading.Lock(), False
        self._unanswered = 0.0
        self._left = threading.Event()
        if count > 1:
            _at_abort(self._aborted)
            for target in (self._keep_in_touch, self._await_answers):
                threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def stop_due(self) -> bool:
        """Whether the run is to stop here. All processes ask at the same places, and agree."""
        if self.count == 1:
            return self._stop.pending
        with self._asking:
            self._questions += 1
            return self._questions >= self._stop_at

    def ending_alone(self) -> AbstractContextManager[None]:
        """`ending_at_signals`, but for one of several processes, which would be taken for lost."""
        return ending_at_signals() if self.count == 1 else nullcontext()

    def exchange(self, name: str, value: str, limit: float | None = None) -> list[str]:
        """Tell all processes `value`, wait for theirs, and return them in order: a barrier.

        Args:
          name: of the barrier; each is used once.
          value: not empty.
          limit: in seconds; beyond it the process ends, naming those that are missing. None waits
            for as long as they live.
        """
        if self.count == 1:
            return [value]
        self._write(f"{name}/{self.index}", value)
        keys = [f"{name}/{index}" for index in range(self.count)]
        waited = 0.0
        for passed in running_seconds(_INTERVAL / 5):
            told = self._read(name)
            if len(told) == self.count:
                break
            waited += passed
            if limit is not None and waited > limit:
                missing = [index for index, key in enumerate(keys) if key not in told]
                self._blame(missing, f"did not come to {name!r} within {limit} s")
        return [told[key] for key in keys]

    def check_count(self) -> None:
        """Check that all processes know of as many; else some wait for those that never come.

        Raises:
          UserError: in process 0, which knows of fewer than another.
        """
        counts = self.exchange("count", str(self.count), self._limits.start)
        for index, count in enumerate(counts):
            if count != counts[0]:
                raise UserError(
                    f"process {index} was told of {count} processes, and process 0 of {counts[0]}; "
                    "give all of them the same JAX_NUM_PROCESSES"
                )

    def check_same(
        self,
        name: str,
        value: Callable[[], str],
        mend: str = "give all of them the same command",
    ) -> None:
        """Check that all processes have the same value; `mend` says what to do where not.

        A single process has nothing to compare, and computes none.

        Raises:
          SharedFailure: in all of them, naming those whose value is not that of process 0.
        """
        if self.count == 1:
            return
        # What they read before may come to one of them from the network, to another from its disk.
        values = self.exchange(name, value(), self._limits.compile)
        others = [str(index) for index, other in enumerate(values) if other != values[0]]
        if others:
            raise SharedFailure(
                f"process {', '.join(others)} of {self.count} has another {name} than process 0; "
                + mend
            )

    def by_first(self, name: str, work: Callable[[], object]) -> bool:
        """Let process 0 do work that a signal may break off; the others wait as long as it lives.

        Returns:
          Whether it was done; False where a signal has come to any process.

        Raises:
          SharedFailure: process 0 raised a UserError; all raise the same.
        """
        try:
            with self._stop.interrupting():
                if self.index == 0:
                    work()
            outcome = "done"
        except KeyboardInterrupt:
            outcome = "stopped"
        except UserError as error:
            outcome = f"failed: {error}"
            if self.count == 1:
                raise
        outcomes = self.exchange(name, outcome)
        if outcomes[0].startswith("failed: "):
            raise SharedFailure(outcomes[0].removeprefix("failed: "))
        return "stopped" not in outcomes

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """With several processes, end this one where the block fails, and let the others know.

        It would otherwise wait for them to end with it. What all come to, each says for itself.
        The failure may be the effect of a peer's end, a broken connection: then the process waits
        to hear whose end it was.
        """
        try:
            yield
        except Exception as error:
            if self.count == 1:
                raise
            if isinstance(error, SharedFailure):
                self.leave()
            else:
                if not _is_of_this_process(error):
                    time.sleep(self._heartbeat + 2 * _FAREWELL)
                self._tell(f"process {self.index} of {self.count} has failed, see its messages")
            _print_failure(error)
            self._exit(error.exit_code if isinstance(error, UserError) else FAILURE_EXIT_CODE)

    def leave(self) -> None:
        """Wait for all processes to come here, while they live; from now on none is missed.

        Process 0 comes last: it writes what a run leaves, under the limits of its watchdog.
        """
        self.exchange("end", "here")
        self._left.set()

    def _keep_in_touch(self) -> None:
        """Tell that this process lives, and hear what the others have to tell."""
        heard = {f"{_ALIVE}/{peer}": "" for peer in range(self.count)}
        silent = [0.0] * self.count
        for beat, passed in enumerate(running_seconds(_INTERVAL)):
            if self._left.is_set():
                return
            try:
                self._write(f"{_ALIVE}/{self.index}", str(beat))
                if self._stop.pending:
                    self._write(_STOP, "asked for")
                notices = self._read(_NOTICE)
                self._agree(notices)
                beats = self._read(_ALIVE) if self.index == 0 else {}
            except JaxRuntimeError:
                if self._left.is_set():  # meanwhile, and JAX has closed the connection
                    return
                self._blame([0], "has gone")
            self._unanswered = 0.0
            if _END in notices:
                self._end(notices[_END])
            if self.index == 0:
                for peer, key in enumerate(heard):
                    silent[peer] = 0.0 if beats.get(key) != heard[key] else silent[peer] + passed
                heard |= beats
                lost = [peer for peer in range(self.count) if silent[peer] > self._heartbeat]
                if lost:
                    self._blame(lost, f"sent no heartbeat for {self._heartbeat} s")

    def _await_answers(self) -> None:
        """Notice that the service no longer answers: a call to it does not return then."""
        for passed in running_seconds(_INTERVAL):
            if self._left.is_set():
                return
            self._unanswered += passed
            if self._unanswered > self._heartbeat:
                self._blame([0], f"has not answered for {self._heartbeat} s")

    def _agree(self, notices: dict[str, str]) -> None:
        """Where a stop was asked for, hold the next question back until all know its answer."""
        if _STOP not in notices or self._stop_at < _NEVER:
            return
        if not self._holds:
            self._holds = self._asking.acquire()
            self._write(f"{_QUESTIONS}/{self.index}", str(self._questions))
            if not self._stop.pending:
                self._stop.ask()
        if self.index == 0 and _STOP_AT not in notices:
            asked = self._read(_QUESTIONS)
            if len(asked) == self.count:
                self._write(_STOP_AT, str(max(map(int, asked.values())) + 1))
        if _STOP_AT in notices:
            self._stop_at = int(notices[_STOP_AT])
            self._asking.release()

    def _write(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value, allow_overwrite=True)

    def _read(self, folder: str) -> dict[str, str]:
        return dict(self._client.key_value_dir_get(folder))

    def _blame(self, peers: list[int], why: str) -> NoReturn:
        sentence = f"process {', '.join(map(str, peers))} of {self.count} {why}"
        if 0 not in peers:
            self._tell(sentence)
        self._end(sentence)

    def _tell(self, sentence: str) -> None:
        """Let the others end with these words."""
        with suppress(JaxRuntimeError):
            self._write(_END, sentence)

    def _end(self, sentence: str) -> NoReturn:
        print(f"error: {sentence}; start the same command again on all", file=sys.stderr)
        self._exit(RESUME_EXIT_CODE)

    def _exit(self, code: int) -> NoReturn:
        sys.stderr.flush()
        if self.index == 0:
            time.sleep(_FAREWELL)
        os._exit(code)

    def _aborted(self) -> None:
        """JAX aborts this process: because the service has gone, or for a reason of its own."""
        if self.index == 0 or self._left.is_set():
            return
        host, _, port = str(distributed.global_state.coordinator_address).rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            self._end(f"process 0 of {self.count} has gone")


def _not_all_came(limits: LimitsConfig) -> NoReturn:
    told = f"not all processes came within config.limits.start={limits.start} s"
    print(f"error: {told}; start the same command again on all", file=sys.stderr, flush=True)
    os._exit(RESUME_EXIT_CODE)


def _print_failure(error: Exception) -> None:
    if isinstance(error, UserError):
        print_error(error)
    else:
        traceback.print_exception(error)


def _is_of_this_process(error: BaseException | None) -> bool:
    """Whether nothing but the user's mistakes and the disk's errors led to it.

    JAX raises errors of several types for a connection that broke.
    """
    while isinstance(error, UserError | OSError | UnicodeError | JSONDecodeError):
        error = error.__cause__
    return error is None


def _check_address() -> None:
    address = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    if address and not re.fullmatch(r".+:[0-9]+", address):
        raise UserError(
            f"JAX_COORDINATOR_ADDRESS={address}: must be host:port, of process 0; the port may be "
            "any that is free there"
        )


def _local_devices(environ: Mapping[str, str]) -> list[int] | None:
    """None, which GPUs are this process's, or [], all that it sees.

    JAX gives a process that SLURM or Open MPI started the GPU of its number on the host. One that
    is alone there is for all of them, and one that was given a GPU (`--gpus-per-task=1`) for that,
    which is the first that it sees.
    """
    processes = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE", ""
    )
    alone = re.fullmatch(r"1(\(x[0-9]+\))?", processes)  # "1(x4)" on four hosts
    one = re.fullmatch("[^,]+", environ.get("CUDA_VISIBLE_DEVICES", ""))
    return [] if (alone or one) and "JAX_LOCAL_DEVICE_IDS" not in environ else None


def _number(name: str) -> int | None:
    """An environment variable that holds a count, None where it is not set."""
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise UserError(f"{name}={text}: must be a number")
    return None if text is None else int(text)


_C_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handlers: list[Any] = []  # C keeps no reference


def _at_abort(call: Callable[[], None]) -> None:
    """Call a function where C++ code aborts the process; where it returns, the process aborts.

    A handler of Python's own would only run once the thread that aborts is back in Python.
    """
    handler = _C_HANDLER(lambda number: call())
    _handlers.append(handler)
    ctypes.CDLL(None).signal(ctypes.c_int(signal.SIGABRT), handler)
