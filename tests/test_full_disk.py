"""A run on a disk that runs full: told at once, and gone on with when there is room."""

import re
import subprocess

import pytest
from small_run import ROOT, command, history

SECONDS = 300


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(shards, small_disk):
    """44 MB, which two checkpoints of 20 MB nearly fill."""
    disk = small_disk("44m")
    flags = ["model.hidden_size=256", "model.intermediate_size=960", "checkpoint_every=2"]
    run = command(shards, disk / "run", *(f"--config.{flag}" for flag in flags))
    full = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert full.returncode == 2, full.stderr
    error = full.stderr.splitlines()[-1]
    assert re.match(
        r"error: .*/checkpoints: a checkpoint could not be written .* is step 4;", error
    )
    assert "Traceback" not in full.stderr
    assert max(record["step"] for record in history(disk / "run")) == 6

    subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stderr
    assert max(record["step"] for record in history(disk / "run")) == 12
    assert re.search(r"resumes +after step 4 of 12", done.stdout)


@pytest.mark.slow
def test_a_limit_that_free_space_says_nothing_of_is_told_in_a_line(shards, tmp_path):
    """As a quota: one array cannot be written, and others are on their way."""
    flags = ["model.hidden_size=256", "model.intermediate_size=960", "checkpoint_every=2"]
    run = command(shards, tmp_path / "run", *(f"--config.{flag}" for flag in flags))
    limited = ["bash", "-c", 'ulimit -f 2000 && exec "$@"', "", *run]
    full = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert full.returncode == 2, full.stderr
    assert "a checkpoint could not be written" in full.stderr
    assert "Traceback" not in full.stderr
