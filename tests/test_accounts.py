"""A run that is killed and resumed: its accounts add up to its wall time, its history is one."""

import subprocess
import time
from pathlib import Path

import pytest
import small_run

from bert_jax.training.clock import account
from bert_jax.training.metrics import read_metrics

_FLAGS = (
    "--config.phases[0].steps=120",
    "--config.log_every=7",
    "--config.checkpoint_every=10",
    "--config.eval_every=50",
)


def times(directory: Path) -> list[dict]:
    return [record for record in read_metrics(directory) if record["kind"] == "time"]


def finish(process: subprocess.Popen[str]) -> float:
    """Read a run's output until it says that it is done, or fail; returns when that was."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "done\n":
            done = time.time()
            assert process.wait(small_run.LONG) == 0
            return done
    raise AssertionError("".join(lines))


@pytest.mark.slow
@pytest.mark.timeout(3 * small_run.LONG)
def test_the_accounts_of_a_killed_run_add_up_to_its_wall_time(shards, tmp_path):
    finish(small_run.start(shards, tmp_path / "whole", *_FLAGS))
    run = tmp_path / "run"
    began = time.time()
    with small_run.start(shards, run, *_FLAGS) as killed:
        # In the middle of a window of seven steps, and well past a few checkpoints.
        while not any(record["step"] > 40 for record in times(run)):
            assert killed.poll() is None, killed.communicate()[0]
            assert time.time() - began < small_run.LONG
            time.sleep(0.01)
        killed.kill()
    time.sleep(1.0)
    wall = finish(small_run.start(shards, run, *_FLAGS)) - began
    seconds = account(times(run))
    assert sum(seconds.values()) == pytest.approx(wall, rel=0.01)
    assert seconds["restarts"] > 1.0
    assert {"start", "compile", "train", "input", "checkpoint", "eval"} <= seconds.keys()
    assert small_run.history(run) == small_run.history(tmp_path / "whole")
