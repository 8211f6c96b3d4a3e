"""Errors meant for the person at the keyboard: one line, no traceback, exit code 2."""

import sys
from collections.abc import Callable
from typing import NoReturn

USAGE_EXIT_CODE = 2


class UserError(Exception):
    """What was wrong, where (file, line or field), and what to do, in one line."""


def run_main(main: Callable[[], None]) -> None:
    """Run an entry point; print a `UserError` as one line and exit with `USAGE_EXIT_CODE`."""
    try:
        main()
    except UserError as error:
        exit_with(error)


def exit_with(error: object) -> NoReturn:
    """Print `error: ...` on one line of standard error and exit with `USAGE_EXIT_CODE`."""
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    sys.exit(USAGE_EXIT_CODE)
