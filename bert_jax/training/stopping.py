"""A run that is asked to stop saves its state first, and tells that it can be resumed."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, Self

from bert_jax.errors import (
    INTERRUPTED_EXIT_CODE,
    dropped_interrupts_repeated,
    handles_signals,
    in_command,
)

# EX_TEMPFAIL of sysexits.h: try again later, unlike a failure (1) or bad usage (2).
RESUME_EXIT_CODE = 75
STOPPED = "stopped; run it again to go on from here"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What is told at an end, and the exit code.
_RESUMABLE = STOPPED, RESUME_EXIT_CODE
_INTERRUPTED = "stopped", INTERRUPTED_EXIT_CODE


def exit_at_signals() -> None:
    """While the program starts, end it at once where one comes: there is nothing to lose yet."""
    for number in SIGNALS:
        _handle(number, _exit)


def interrupt_at_signals() -> None:
    """Let each be a KeyboardInterrupt, as Ctrl-C is."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        _handle(number, signal.default_int_handler)


def ignore_signals() -> None:
    """Let none disturb the end of the process: all is saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Meanwhile end a command's process at once where a signal comes that would ask it to stop.

    For what can be broken off at any moment: what waits for threads of its own before it lets an
    interrupt through, and a compiler, before whose end no handler of Python's runs.
    """
    may_end = in_command.get() and handles_signals()
    before = {number: signal.getsignal(number) for number in SIGNALS if may_end}
    # What the system does by itself, ignoring one too, it goes on doing.
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    ends = {
        int(number): _INTERRUPTED if handler is signal.default_int_handler else _RESUMABLE
        for number, handler in handled.items()
    }
    if not ends:
        yield
        return
    # Python tells this pipe of a signal when it comes, and its handlers when it is their turn.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    listener = threading.Thread(target=_end_when_told, args=(heard, ends), daemon=True)
    listener.start()
    told_before = signal.set_wakeup_fd(told)
    try:
        for number in handled:
            signal.signal(number, _leave_to_listener)
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(told_before)
        os.close(told)
        listener.join()
        os.close(heard)


def _end_when_told(heard: int, ends: Mapping[int, tuple[str, int]]) -> None:
    while number := os.read(heard, 1):
        if end := ends.get(number[0]):
            _end(*end)


def _leave_to_listener(number: int, frame: FrameType | None) -> None:
    """There must be a handler, or the system's own is called."""


def _handle(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle a signal; SIGHUP that `nohup` has ignored stays so: a run may outlive its terminal."""
    if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    _end(*_RESUMABLE)


def _end(told: str, code: int) -> NoReturn:
    with suppress(OSError):  # a terminal that was closed
        os.write(2, f"\n{told}\n".encode())
    os._exit(code)


class Stopped(Exception):
    """The run is to stop, and what was under way is broken off."""


class StopRequest:
    """Whether a signal to stop has come to this process.

    SIGINT is Ctrl-C; SIGTERM comes from a machine that is taken away, SIGHUP from a terminal that
    is closed. In a thread of a caller's they are left to the caller, and only `ask` asks.

    Attributes:
      pending: it has; signals after the first change nothing.
    """

    def __init__(self) -> None:
        """From now on these signals no longer end the process; `pending` tells of them."""
        self.pending, self._interrupts = False, False
        self._before = {number: signal.getsignal(number) for number in SIGNALS if handles_signals()}
        if not self._before:
            return
        signal.signal(signal.SIGINT, self._receive)
        # What holds back Ctrl-C for a moment (the pool of `bert_jax.data.workers`) holds back all.
        for number in (signal.SIGTERM, signal.SIGHUP):
            _handle(number, lambda number, frame: signal.raise_signal(signal.SIGINT))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The signals do what they did before; those of a command, which ends now, nothing."""
        if not in_command.get():
            for number, handler in self._before.items():
                if handler is not None:  # it was set from Python
                    signal.signal(number, handler)

    def ask(self) -> None:
        """Let it be as if a signal had come; from any thread."""
        if self._before:
            os.kill(os.getpid(), signal.SIGINT)  # so that what can be broken off is
        else:
            self.pending = True

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Break off the block by KeyboardInterrupt, once, where a signal has come or comes."""
        with dropped_interrupts_repeated(self._arm):
            self._arm()
            try:
                if self.pending:
                    raise KeyboardInterrupt
                yield
            finally:
                self._interrupts = False

    def _arm(self) -> None:
        """Let the next signal raise; one that was dropped is the next once more."""
        self._interrupts = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.pending = True
        if self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
