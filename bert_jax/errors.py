"""Errors meant for the person at the keyboard: one line, no traceback, a meaningful exit code."""

import sys
from collections.abc import Callable
from typing import NoReturn

FAILURE_EXIT_CODE = 1
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130  # as a shell reports an end by Ctrl-C


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

    So is what the system does not allow, wherever it says so.
    """
    try:
        main()
    except UserError as error:
        exit_with(error, error.exit_code)
    except PermissionError as error:
        where = error.filename or "the system"
        exit_with(f"{where}: {error.strerror}; see whose it is and who may use it")


def exit_with(error: object, code: int = USAGE_EXIT_CODE) -> NoReturn:
    """Print `error: ...` on one line of standard error and exit with `code`."""
    print_error(error)
    sys.exit(code)


def print_error(error: object) -> None:
    """Print `error: ...` on one line of standard error."""
    print("error: " + " ".join(str(error).split()), file=sys.stderr)


def first_line(error: Exception) -> str:
    """What a library's error says first, shortened; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
