"""Contenders measured side by side: a process each, several rounds.

A machine that others share is slower at one moment than at the next; contenders that take turns are
slowed alike, and their ratio stays. A GPU that nobody shares is each contender's in turn.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bert_jax import allocator

ROOT = Path(__file__).parent.parent
DTYPES = ("float32", "bfloat16")
# Of one contender's turn: long against a switch of tasks, short against a neighbour's job.
SECONDS_A_TURN = 1.0


@dataclass(frozen=True)
class Contender:
    """Work to be measured.

    Attributes:
      name: of its row in the table.
      module: as `benchmarks.worker` takes it.
      settings: of the module's `prepare`.
      environment: variables of the process, beside those of this one.
    """

    name: str
    module: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Of Python, for the process that it is."""
        return ["-m", "benchmarks.worker", self.module, json.dumps(dict(self.settings))]


def in_jax(
    name: str, module: str, settings: Mapping[str, Any], dtypes: Sequence[str], platform: str
) -> list[Contender]:
    """A module of ours in each dtype, with the allocator that `train` starts itself with."""
    return [
        Contender(
            f"{name}, {dtype}",
            module,
            {**settings, "dtype": dtype},
            allocator.SETTINGS | {"JAX_PLATFORMS": platform},
        )
        for dtype in dtypes
    ]


@dataclass(frozen=True)
class Result:
    """What a contender took.

    Attributes:
      name: of the contender.
      seconds: of one work in each round.
      rival_seconds: of the rival's work in the same rounds.
      ready: seconds until the first work was done, imports and compilation included.
      memory: peak in bytes, of the GPU or of the process.
    """

    name: str
    seconds: list[float]
    rival_seconds: dict[str, list[float]]
    ready: float
    memory: int

    def ratios(self, rival: str) -> list[float]:
        """How many times as long as the rival it took, round by round."""
        return [a / b for a, b in zip(self.seconds, self.rival_seconds[rival], strict=True)]


class Worker:
    """The process of a contender, ready to work."""

    def __init__(self, contender: Contender) -> None:
        """Start it, and wait until it has done its work once.

        Raises:
          RuntimeError: it ended; its messages are on standard error.
        """
        self.name = contender.name
        self._process = subprocess.Popen(
            [sys.executable, *contender.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | dict(contender.environment),
        )
        try:
            self.ready = self._answer()
            self.repeats = max(1, round(SECONDS_A_TURN / self._work(1)))
        except BaseException:
            self._process.kill()
            raise

    def seconds(self) -> float:
        """Work as often as fills a turn; the seconds of one work.

        A work before them is not counted: the first after a pause takes up to twice as long as
        those that follow, and training has no pauses.
        """
        self._work(1)
        return self._work(self.repeats) / self.repeats

    def _work(self, repeats: int) -> float:
        assert self._process.stdin
        self._process.stdin.write(f"{repeats}\n")
        self._process.stdin.flush()
        return self._answer()

    def peak_memory(self) -> int:
        """End the process; its peak in bytes, or that of what it had of the GPU."""
        assert self._process.stdin
        self._process.stdin.close()
        memory = self._answer()
        self._process.wait()
        return memory

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self._process.wait()}, see above")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def contest(own: Sequence[Contender], peers: Sequence[Contender], rounds: int) -> list[Result]:
    """Measure each peer in turns with all of ours; a peer's process ends before the next begins.

    Returns:
      Of ours, then of the peers. A peer's `rival_seconds` are those of each of ours in its rounds.
    """
    results = []
    with ExitStack() as stack:
        rivals = [stack.enter_context(Worker(contender)) for contender in own]
        taken: dict[str, list[float]] = {worker.name: [] for worker in rivals}
        for peer in peers:
            print(f"  {peer.name}", file=sys.stderr, flush=True)
            with Worker(peer) as worker:
                seconds: list[float] = []
                beside: dict[str, list[float]] = {rival.name: [] for rival in rivals}
                for _ in range(rounds):
                    for rival in rivals:
                        beside[rival.name].append(rival.seconds())
                    seconds.append(worker.seconds())
                results.append(
                    Result(peer.name, seconds, beside, worker.ready, worker.peak_memory())
                )
            for name, more in beside.items():
                taken[name].extend(more)
        mine = [Result(w.name, taken[w.name], {}, w.ready, w.peak_memory()) for w in rivals]
    return mine + results


def contest_alone(
    own: Sequence[Contender], peers: Sequence[Contender], rounds: int
) -> Iterator[Result]:
    """Measure one after the other, which has all of the machine.

    Yields:
      Of ours, then of the peers, as each is done. A peer's `rival_seconds` are those of ours in the
      rounds of the same number.
    """
    rivals: dict[str, list[float]] = {}
    for contender in (*own, *peers):
        print(f"  {contender.name}", file=sys.stderr, flush=True)
        with Worker(contender) as worker:
            seconds = [worker.seconds() for _ in range(rounds)]
            beside = dict(rivals) if contender in peers else {}
            yield Result(contender.name, seconds, beside, worker.ready, worker.peak_memory())
        if contender in own:
            rivals[contender.name] = seconds


# By device.
CONTESTS = {"cpu": contest, "cuda": contest_alone}


def median_and_spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return statistics.median(values), min(values), max(values)
