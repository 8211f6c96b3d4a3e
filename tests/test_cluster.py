"""Several processes of one run: they train as one, and none waits for a peer that is gone."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_run import ROOT, Processes, command, history, parameters

from bert_jax.training.metrics import read_metrics

# As a time limit of a test, on a machine that does other things too.
LONG = 240
# A run that does not end by itself, and neither evaluates nor saves meanwhile.
ENDLESS = [
    *("--config.phases[0].steps=1000000", "--config.eval_every=1000000"),
    "--config.checkpoint_every=1000000",
]


@pytest.fixture(scope="module", autouse=True)
def compilation_cache(tmp_path_factory):
    """The processes of a test compile the same: once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


def run(shards: Path, directory: Path, count: int, devices: int, *flags: str) -> Path:
    """A whole run; gives its directory."""
    commands = [command(shards, directory, *flags)] * count
    with Processes(directory.with_suffix(".logs"), commands, devices) as processes:
        assert processes.wait(LONG) == [0] * count, processes.output(0)
        for index in range(1, count):
            assert "step" not in processes.output(index)  # the first alone prints
    return directory


@pytest.fixture(scope="module")
def one_process(shards, tmp_path_factory) -> Path:
    return run(shards, tmp_path_factory.mktemp("one") / "run", 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "devices", "flags"),
    [
        (2, 2, []),
        (4, 1, []),
        (2, 2, ["--config.mesh.data=1", "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]),
    ],
)
def test_several_processes_train_as_one(shards, one_process, tmp_path, count, devices, flags):
    """The same batches and updates, to the rounding of sums in another order."""
    several = run(shards, tmp_path / "run", count, devices, *flags)
    for ours, theirs in zip(history(several), history(one_process), strict=True):
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(
            [value for _, value in sorted(ours.items()) if not isinstance(value, str)],
            [value for _, value in sorted(theirs.items()) if not isinstance(value, str)],
            rtol=1e-5,
        )
    assert (several / "predictions.json").is_file()
    assert (several / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 0])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_is_named_within_the_heartbeat(shards, tmp_path, how, lost):
    heartbeat = 10
    flags = [*ENDLESS, f"--config.limits.heartbeat={heartbeat}"]
    with Processes(tmp_path / "logs", [command(shards, tmp_path / "run", *flags)] * 2) as processes:
        processes.until(lambda: len(read_metrics(tmp_path / "run")) > 5)
        processes.processes[lost].send_signal(how)
        start = time.monotonic()
        assert processes.processes[1 - lost].wait(60) == 75, processes.output(1 - lost)
        assert time.monotonic() - start < heartbeat + 5
        told = processes.output(1 - lost).splitlines()[-1]
        assert told.startswith(f"error: process {lost} of 2 "), processes.output(1 - lost)
        assert "Traceback" not in processes.output(1 - lost)


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def stop_device_threads(process: int) -> None:
    """Stop the threads that compute, and no other: the process lives, and its step never ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for task in Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().startswith("tf_XLA"):
            for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
                if libc.ptrace(request, int(task.name), None, None):
                    pytest.skip(
                        f"threads cannot be stopped here: {os.strerror(ctypes.get_errno())}"
                    )


@pytest.mark.slow
def test_a_stuck_process_ends_all_with_their_stacks(shards, tmp_path):
    limit = 10
    flags = [*ENDLESS, f"--config.limits.step={limit}"]
    with Processes(tmp_path / "logs", [command(shards, tmp_path / "run", *flags)] * 2) as processes:
        processes.until(lambda: len(read_metrics(tmp_path / "run")) > 5)
        stop_device_threads(processes.processes[1].pid)
        start = time.monotonic()
        assert processes.wait(60) == [75, 75], processes.output(0)
        assert time.monotonic() - start < limit + 3
        for index in (0, 1):
            stacks = (tmp_path / f"run/stacks-{index}.txt").read_text()
            for told in (processes.output(index), stacks):
                assert f"error: process {index}: waited longer than config.limits.step=10" in told
                assert "train_steps" in told
                assert "_keep_in_touch" in told


MISSING = """
import sys, time
from bert_jax.config import LimitsConfig
from bert_jax.training.cluster import join_cluster
from bert_jax.training.stopping import StopRequest
cluster = join_cluster(LimitsConfig(), StopRequest(), False)
if cluster.index in (1, 3):
    time.sleep(100)
print(cluster.exchange("breakfast", str(cluster.index), 3))
"""


def test_a_barrier_names_who_is_missing(tmp_path):
    with Processes(tmp_path, [[sys.executable, "-c", MISSING]] * 4) as processes:
        for index in (0, 2):
            assert processes.processes[index].wait(60) == 75
            told = processes.output(index)
            assert "error: process 1, 3 of 4 did not come to 'breakfast' within 3 s" in told


def test_processes_of_other_settings_are_told(shards, tmp_path):
    commands = [command(shards, tmp_path / "run", f"--config.seed={seed}") for seed in (0, 1)]
    with Processes(tmp_path / "logs", commands) as processes:
        assert processes.wait(LONG) == [2, 2]
        for index in (0, 1):
            assert "error: process 1 of 2 has another config than process 0" in (
                processes.output(index)
            )


def checkout(folder: Path) -> Path:
    """The launchers, in a checkout whose .venv is the interpreter of the tests."""
    for name in ("launch", "setup.py", "constraints.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    stamp = f'cat "{folder}/setup.py" "{folder}/constraints.txt" | cksum'
    sums = subprocess.run(["bash", "-c", stamp], capture_output=True, text=True, check=True)
    (folder / ".venv/installed").write_text(f"{folder} {sums.stdout}")
    return folder / "launch/local_cluster.sh"


@pytest.mark.slow
def test_the_launcher_starts_all_again_where_one_is_killed(shards, tmp_path):
    (tmp_path / "checkout").mkdir()
    launcher = checkout(tmp_path / "checkout")
    flags = ["--config.phases[0].steps=300", "--config.eval_every=100"]
    flags += ["--config.checkpoint_every=50"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(shards, whole, 2, 1, *flags)
    arguments = ["bash", str(launcher), "2", *command(shards, killed, *flags)[3:]]
    with Processes(tmp_path / "logs", [arguments]) as processes:
        processes.until(lambda: (killed / "checkpoints/100").is_dir())
        victim = rank_of(killed, 1)
        os.kill(victim, signal.SIGKILL)
        assert processes.wait(LONG) == [0], processes.output(0)
        told = processes.output(0)
        assert told.count("starting all 2 processes again") == 1
        assert "[0] done" in told
    assert history(killed) == history(whole)
    left, right = (parameters(directory, 304) for directory in (whole, killed))
    import jax

    jax.tree.map(np.testing.assert_array_equal, left, right)


def rank_of(directory: Path, index: int) -> int:
    """The process of that index of the run in `directory`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"--workdir={directory}".encode() in arguments and (
            f"JAX_PROCESS_ID={index}".encode() in environment
        ):
            return int(process.name)
    raise AssertionError("no such process")
