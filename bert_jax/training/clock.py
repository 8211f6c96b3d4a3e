"""Where the wall time of a run goes: each second of it has one cause.

A session (a process that works on a run) appends "time" records to metrics.jsonl as it goes: when
it begins, with each checkpoint and at its end. Its last record may be older than its death, so the
accounts of a run are made of all of them.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Time in steps; and what was done for nothing, with the time that no session ran.
TRAIN, RESTARTS = "train", "restarts"


class Clock:
    """Adds up seconds by cause; at every moment one cause is charged.

    Attributes:
      session: when the session began, in unix seconds: its name in "time" records.
      seconds: of the causes that have ended or been interrupted, up to the last change of cause.
    """

    def __init__(self, age: float = 0.0) -> None:
        """Charges "start" until another cause takes over, and `age` seconds that passed before."""
        self.seconds: defaultdict[str, float] = defaultdict(float, start=age)
        self.session = time.time() - age
        self._cause, self._since = "start", time.perf_counter()

    @contextmanager
    def __call__(self, cause: str) -> Iterator[None]:
        """Charge a `with` block to `cause`; one inside it interrupts it."""
        before = self._charge(cause)
        try:
            yield
        finally:
            self._charge(before)

    def move(self, cause: str, to: str, seconds: float) -> None:
        """Charge `seconds` of one cause to another instead."""
        self.seconds[cause] -= seconds
        self.seconds[to] += seconds

    def record(self, step: int) -> dict[str, Any]:
        """The "time" record of the session up to now, at `step` steps done."""
        self._charge(self._cause)
        seconds = dict(self.seconds)
        return {"kind": "time", "step": step, "session": self.session, "seconds": seconds}

    def _charge(self, cause: str) -> str:
        """Change the cause; returns the one before."""
        now = time.perf_counter()
        self.seconds[self._cause] += now - self._since
        before, self._cause, self._since = self._cause, cause, now
        return before


def process_age() -> float:
    """Seconds since this process was started; 0 where the system has no /proc to tell it."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # proc_pid_stat(5): field 22, in clock ticks since boot; the name before may hold spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    return 0.0


def account(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by cause of a run so far, over all its sessions: they add up to its wall time.

    Of a session that a later one followed, what counts is what it had done at the step that the
    later one went on from. All from there until the next session began is RESTARTS: steps done for
    nothing, and time that nothing ran.

    Args:
      records: the run's "time" records, in order.
    """
    sessions: dict[float, list[Mapping[str, Any]]] = {}
    for record in records:
        sessions.setdefault(record["session"], []).append(record)
    total: defaultdict[str, float] = defaultdict(float)
    limit, end = float("inf"), None
    for began, own in reversed(sessions.items()):
        counting = [record for record in own if record["step"] <= limit]
        seconds = {
            cause: spent or 0.0
            for record in counting[-1:]
            for cause, spent in record["seconds"].items()
        }
        for cause, spent in seconds.items():
            total[cause] += spent
        if end is not None:
            total[RESTARTS] += max(0.0, end - began - sum(seconds.values()))
        limit, end = min(limit, own[0]["step"]), began
    return dict(total)


def goodput(seconds: Mapping[str, float]) -> float | None:
    """The share of the wall time that was spent in steps that count; None where there is none."""
    total = sum(seconds.values())
    return seconds.get(TRAIN, 0.0) / total if total else None
