"""A run that is alive but stuck says where, and ends, for whoever started it to start it again."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from bert_jax.config import LimitsConfig
from bert_jax.training.stopping import RESUME_EXIT_CODE

_INTERVAL = 0.25
# Longer than this between two looks, and it was this process that stood still (Ctrl-Z, a machine
# that was paused): nobody else is to blame for the time.
_LONGEST_INTERVAL = 1.0
# For writing the stacks, to a disk or a terminal that may hang too.
_SECONDS_TO_TELL = 2.0


class Watchdog:
    """A thread that ends the process when what was begun takes longer than its limit.

    It needs the interpreter: code that hangs while it holds Python's lock is noticed by the other
    processes alone.
    """

    def __init__(self, limits: LimitsConfig, directory: Path, index: int) -> None:
        """Watch nothing yet.

        Args:
          limits: in seconds.
          directory: where `stacks-INDEX.txt` is written.
          index: of this process.
        """
        self._limits, self._path, self._index = limits, directory / f"stacks-{index}.txt", index
        self._what, self._passed = "", 0.0
        self._closed = threading.Event()

    def begin(self, what: str) -> None:
        """From now on, wait for a "compile", a "step" or a "save"; "" waits for nothing."""
        self._what, self._passed = what, 0.0

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def _watch(self) -> None:
        for passed in running_seconds(_INTERVAL):
            if self._closed.is_set():
                return
            self._passed += passed
            what = self._what
            if what and self._passed > getattr(self._limits, what):
                self._end(what)

    def _end(self, what: str) -> None:
        threading.Timer(_SECONDS_TO_TELL, os._exit, (RESUME_EXIT_CODE,)).start()
        told = (
            f"error: process {self._index}: waited longer than config.limits.{what}="
            f"{getattr(self._limits, what)} s for a {what}; the stacks of its threads stand in "
            f"{self._path}; start the same command again\n"
        )
        sys.stderr.write(told)
        sys.stderr.flush()
        faulthandler.dump_traceback()
        with self._path.open("w") as file:
            file.write(told)
            file.flush()
            faulthandler.dump_traceback(file)
        os._exit(RESUME_EXIT_CODE)


def running_seconds(interval: float) -> Iterator[float]:
    """Every `interval` seconds, the seconds since the last time in which this process ran."""
    before = time.monotonic()
    while True:
        time.sleep(interval)
        now = time.monotonic()
        yield min(now - before, _LONGEST_INTERVAL)
        before = now
