"""Errors meant for the person at the keyboard: one line, no traceback, a meaningful exit code."""

import sys
from collections.abc import Callable
from typing import NoReturn

FAILURE_EXIT_CODE = 1
USAGE_EXIT_CODE = 2


class UserError(Exception):
    """What was wrong, where (file, line or field), and what to do, in one line."""

    exit_code = USAGE_EXIT_CODE


class TrainingFailure(UserError):
    """What the run itself came to, in one line: the same command again would come to the same."""

    exit_code = FAILURE_EXIT_CODE


def run_main(main: Callable[[], None]) -> None:
    """Run an entry point; print a `UserError` as one line and exit with its code."""
    try:
        main()
    except UserError as error:
        exit_with(error, error.exit_code)


def exit_with(error: object, code: int = USAGE_EXIT_CODE) -> NoReturn:
    """Print `error: ...` on one line of standard error and exit with `code`."""
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    sys.exit(code)
