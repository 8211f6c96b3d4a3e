"""The script of a SLURM job, on a cluster that is this machine (`fake_srun.py`)."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from fake_checkout import PYTHON, ROOT, checkout
from fake_cloud import FAKES, LIMIT, write_program
from small_run import LONG, command, free_port, history, wait_until, xla_flags

from bert_jax.training.metrics import read_metrics

# A program that brings a new checkpoint where the test says so, and ends as it says.
FAKE_PYTHON = """#!/bin/bash
if [[ -n $SAVES && $SLURM_PROCID == 0 ]]; then mkdir -p runs/books/checkpoints/$RANDOM; fi
if [[ $CODE == KILL && $SLURM_PROCID == 1 ]]; then kill -KILL $$; fi
exit $CODE
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Its commands, in `bin`."""
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin/srun", FAKES / "fake_srun.py")
    (tmp_path / "bin/scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/queued\n')
    (tmp_path / "bin/scontrol").chmod(0o755)
    return tmp_path


def submit(cluster: Path, folder: Path, *flags: str, **variables: str) -> subprocess.Popen[str]:
    """The job, from a copy of the script, as SLURM keeps one."""
    script = shutil.copy(ROOT / "launch/slurm.sh", cluster / "slurm_script")
    environment = {
        "PATH": f"{cluster}/bin:{os.environ['PATH']}",
        "FAKE_SLURM": str(cluster),
        "SLURM_JOB_ID": "4711",
        "SLURM_NTASKS": "2",
    }
    return subprocess.Popen(
        ["bash", script, *flags],
        cwd=folder,
        env=os.environ | environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def queued(cluster: Path) -> str:
    written = cluster / "queued"
    return written.read_text() if written.exists() else ""


@pytest.mark.parametrize(
    ("code", "saves", "ends", "again"),
    [
        ("0", "yes", 0, ""),
        ("1", "yes", 1, ""),
        ("2", "", 2, ""),
        ("75", "yes", 75, "requeue Incomplete 4711\n"),
        ("75", "", 75, ""),
        ("KILL", "yes", 75, "requeue Incomplete 4711\n"),
    ],
)
def test_a_job_that_saved_and_did_not_end_is_queued_again(cluster, code, saves, ends, again):
    folder = checkout(cluster / "checkout", FAKE_PYTHON)
    flags = ["--config=base", "--workdir=runs/books"]
    job = submit(cluster, folder, *flags, CODE=code, SAVES=saves, SLURM_CPUS_PER_TASK="8")
    said, _ = job.communicate(timeout=LIMIT)
    assert (job.returncode, queued(cluster)) == (ends, again), said
    options, command = json.loads((cluster / "call.json").read_text())
    assert options == ["--kill-on-bad-exit=0", "--cpus-per-task=8"]
    python = str(folder / ".venv/bin/python")
    assert command == [python, "-m", "bert_jax.train", "--distributed", *flags]


def test_without_a_venv_in_the_checkout_the_active_python_is_taken(cluster):
    python = cluster / "bin/python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    job = submit(cluster, cluster, "--workdir=runs/books", CODE="0", SAVES="")
    said, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, said
    options, command = json.loads((cluster / "call.json").read_text())
    assert (options, command[0]) == (["--kill-on-bad-exit=0"], "python")


@pytest.mark.parametrize(
    ("variables", "flags", "told"),
    [
        ({"SLURM_JOB_ID": ""}, ["--workdir=run"], "submit it: sbatch"),
        ({}, ["--config=base"], "give --workdir=DIR"),
    ],
)
def test_what_is_missing_is_said(cluster, variables, flags, told):
    job = submit(cluster, cluster, *flags, **variables)
    said, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 2
    assert told in said


@pytest.mark.slow
def test_a_run_whose_time_is_up_goes_on_when_the_job_runs_again(cluster, shards):
    """SLURM signals the processes, not the script; they meet by what it has set for each."""
    checkout(cluster / "checkout", PYTHON)
    run = cluster / "run"
    flags = command(shards, run)[3:]
    variables = {"JAX_COORDINATOR_PORT": str(free_port()), "XLA_FLAGS": xla_flags(1)}
    job = submit(cluster, cluster / "checkout", *flags, **variables)
    wait_until(lambda: len(read_metrics(run)) > 3, [job], lambda: "no steps")
    for task in json.loads((cluster / "tasks.json").read_text()):
        os.kill(task, signal.SIGTERM)
    said, _ = job.communicate(timeout=LONG)
    assert (job.returncode, queued(cluster)) == (75, "requeue Incomplete 4711\n"), said
    job = submit(cluster, cluster / "checkout", *flags, **variables)
    said, _ = job.communicate(timeout=LONG)
    assert job.returncode == 0, said
    assert "resumes" in said
    assert max(record["step"] for record in history(run)) == 12
