"""Commands measured side by side, each from the start of its process to the end."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.contest import ROOT, Result

# Each run of a command has an empty folder in the place of this word.
NEW = "{new}"


@dataclass(frozen=True)
class Command:
    """A process to be measured from its start to its end.

    Attributes:
      name: of its row in the table.
      arguments: of Python; NEW stands for an empty folder.
      environment: variables of the process, beside those of this one; NEW as before.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> tuple[float, int]:
        """Seconds, and the peak in bytes of its largest process.

        Raises:
          RuntimeError: it failed; its messages are on standard error.
        """
        with tempfile.TemporaryDirectory() as new:
            environment = {k: v.replace(NEW, new) for k, v in self.environment.items()}
            begun = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *(argument.replace(NEW, new) for argument in self.arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env=os.environ | environment,
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{self.name} ended with code {process.returncode}, see above")
        return seconds, usage.ru_maxrss << 10


def in_turns(own: Sequence[Command], peers: Sequence[Command], rounds: int) -> list[Result]:
    """Run all once for each round; a peer's ratios are to ours of the same round."""
    runs = {command.name: [] for command in (*own, *peers)}
    for _ in range(rounds):
        for command in (*own, *peers):
            runs[command.name].append(command.run())
    seconds = {name: [took for took, _ in measured] for name, measured in runs.items()}
    rivals = {command.name: seconds[command.name] for command in own}
    return [
        Result(
            command.name,
            seconds[command.name],
            {} if command in own else rivals,
            seconds[command.name][0],
            max(memory for _, memory in runs[command.name]),
        )
        for command in (*own, *peers)
    ]


def once(*arguments: str) -> None:
    """Run Python, for what it leaves."""
    subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, stdout=sys.stderr)
