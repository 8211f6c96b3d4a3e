"""Errors meant for the person at the keyboard: one line, no traceback, a meaningful exit code."""

import io
import os
import signal
import sys
import threading
import time
from _thread import get_ident, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

FAILURE_EXIT_CODE = 1
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130  # as a shell reports an end by Ctrl-C
# Whether a command runs, which a signal may end, and not a notebook, say, that holds more.
in_command: ContextVar[bool] = ContextVar("in_command", default=False)
_MOMENT = 0.01  # seconds; after it a callback has returned


class UserError(Exception):
    """What was wrong, where (file, line or field), and what to do, in one line."""

    exit_code = USAGE_EXIT_CODE


class SharedFailure(UserError):
    """What all processes of a run come to alike, so that none has to tell the others."""


class TrainingFailure(SharedFailure):
    """What the run itself came to, in one line: the same command again would come to the same."""

    exit_code = FAILURE_EXIT_CODE


def run_main(main: Callable[[], None]) -> None:
    """Run an entry point; print a `UserError` as one line and exit with its code.

    So is what the system does not allow, has no room for or cannot find, wherever it says so.
    """
    sys.argv[1:] = map(_with_home, sys.argv[1:])
    # Under `<&-`, `>&-` and `2>&-` there are none, and files that are opened next would get their
    # numbers, and with them what libraries print.
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A name in another encoding than the terminal's is told as well as can be.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not __debug__:
        # Of `flax.core.meta.Partitioned.remove_axis` one asserts what it does in passing.
        exit_with("Flax needs its asserts: run without python -O, and without PYTHONOPTIMIZE")
    outside = in_command.set(True)
    try:
        with dropped_interrupts_repeated():
            main()
        sys.stdout.flush()
    except UserError as error:
        _flush_or_drop_output()
        exit_with(error, error.exit_code)
    except OSError as error:
        _flush_or_drop_output()
        where = error.filename or "the system"
        forbidden = isinstance(error, PermissionError)
        advice = "; see whose it is and who may use it" if forbidden else ""
        exit_with(f"{where}: {error.strerror or error}{advice}")
    finally:
        in_command.reset(outside)


def _with_home(argument: str) -> str:
    """`--name=~/place` as the shell would have it, which knows ~ only where a word begins."""
    name, _, value = argument.partition("=")
    if name.startswith("--") and value.startswith("~/"):
        return f"{name}={os.path.expanduser(value)}"
    return argument


@contextmanager
def dropped_interrupts_repeated(heard: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Meanwhile let Ctrl-C come again, after a call of `heard`, where its exception was dropped.

    What calls back drops an exception and prints its traceback: JAX calls back after each garbage
    collection, and a signal that comes during one is then raised there.
    """
    print_unraisable = sys.unraisablehook

    def repeat(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            print_unraisable(unraisable)
            return
        heard()
        # Not by `threading`, whose locks what was called back from may hold.
        start_new_thread(_interrupt_later, (get_ident(),))

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = print_unraisable


def handles_signals() -> bool:
    """Whether signals are handled in the calling thread, which Python leaves to the main one."""
    return threading.current_thread() is threading.main_thread()


def _interrupt_later(thread: int) -> None:
    time.sleep(_MOMENT)
    signal.pthread_kill(thread, signal.SIGINT)


@contextmanager
def full_memory_told(advice: str) -> Iterator[None]:
    """Tell what a device's memory has no room for in one line, with what to do.

    Raises:
      UserError: that.
    """
    try:
        yield
    except RuntimeError as error:  # of which JAX's is one
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(f"{first_line(error).rstrip('.')}; {advice}") from error


def drop_output(descriptor: int) -> None:
    """Send what is still to be written to it nowhere: Python would try at its end, and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _flush_or_drop_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        drop_output(sys.stdout.fileno())


def exit_with(error: object, code: int = USAGE_EXIT_CODE) -> NoReturn:
    """Print `error: ...` on one line of standard error and exit with `code`."""
    print_error(error)
    sys.exit(code)


def print_error(error: object) -> None:
    """Print `error: ...` on one line of standard error."""
    print("error: " + " ".join(str(error).split()), file=sys.stderr)


def first_line(error: Exception, lines: int = 1) -> str:
    """What a library's error says first, of so many lines one; its type where it says nothing."""
    said = [line for line in str(error).splitlines() if line]
    return " ".join(said[:lines] or [type(error).__name__])[:300]
