"""A run whose terminal is closed, or whose output nobody reads any more."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_run import LONG, ROOT, command, wait_until
from test_preemption import RESUME, last_step, steps_saved

_PROGRAM = """
import sys
from bert_jax.terminal import outlive_terminal
outlive_terminal()
print("told", flush=True)
print("told", file=sys.stderr)
sys.stdin.readline()
for _ in range(3):
    print("not read")
    print("not read", file=sys.stderr)
sys.stdout.flush()
sys.exit(3)
"""
ENDLESS = ("--config.phases[0].steps=1000000", "--config.checkpoint_every=1000000")


@contextmanager
def on_terminal(arguments: list[str]) -> Iterator[tuple[subprocess.Popen, int]]:
    """A process with all its streams on a terminal, and the end of it that a person has."""
    person, program = pty.openpty()
    with os.fdopen(program) as streams:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdin=streams,
            stdout=streams,
            stderr=streams,
            start_new_session=True,
        )
    try:
        yield process, person
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("open_output", [pty.openpty, os.pipe])
def test_what_nobody_reads_is_no_error(open_output: Callable[[], tuple[int, int]]):
    reader, output = open_output()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        text=True,
    )
    os.close(output)
    seen = b""
    while seen.count(b"told") < 2:
        seen += os.read(reader, 100)
    os.close(reader)
    process.communicate("go on\n", timeout=LONG)
    assert process.returncode == 3


def test_a_full_disk_is_still_an_error():
    """What is lost there is not what nobody reads."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=LONG,
        )
    assert done.returncode != 3
    assert "No space left on device" in done.stderr


def test_a_run_whose_terminal_is_closed_saves(shards: Path, tmp_path: Path):
    """The terminal tells of its end by SIGHUP, and takes nothing that is printed from then on."""
    run = tmp_path / "run"
    with on_terminal(command(shards, run, *ENDLESS)) as (process, person):
        wait_for_steps(run, 5, process)
        os.close(person)
        process.send_signal(signal.SIGHUP)
        assert process.wait(LONG) == RESUME
    assert steps_saved(run) == [last_step(run)]


@pytest.mark.slow
def test_a_run_that_is_to_outlive_its_terminal_goes_on(shards: Path, tmp_path: Path):
    """By nohup, which has SIGHUP ignored, or disown; SIGTERM still stops it."""
    run = tmp_path / "run"
    held = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    with on_terminal([*held, *command(shards, run, *ENDLESS)]) as (process, person):
        wait_for_steps(run, 5, process)
        os.close(person)
        process.send_signal(signal.SIGHUP)
        wait_for_steps(run, last_step(run) + 50, process)  # evaluations are printed meanwhile
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == RESUME
    assert steps_saved(run) == [last_step(run)]


def wait_for_steps(run: Path, count: int, process: subprocess.Popen) -> None:
    """Wait until a run has recorded so many steps."""
    records = run / "metrics.jsonl"
    wait_until(lambda: records.exists() and last_step(run) >= count, [process], lambda: str(run))
