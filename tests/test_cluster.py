"""Several processes of one run: they train as one, and none waits for a peer that is gone."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake_checkout import PYTHON, checkout
from small_run import LONG, Processes, assert_equal_runs, command, history, xla_flags

from bert_jax.config import LimitsConfig
from bert_jax.errors import UserError
from bert_jax.training.checkpoints import saved_steps
from bert_jax.training.cluster import join_cluster
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stopping import StopRequest

# A run that does not end by itself, and neither evaluates nor saves meanwhile.
ENDLESS = [
    *("--config.phases[0].steps=1000000", "--config.eval_every=1000000"),
    "--config.checkpoint_every=1000000",
]


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


def test_an_address_without_a_port_is_named(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost")
    with pytest.raises(UserError, match="JAX_COORDINATOR_ADDRESS=localhost: must be host:port"):
        join_cluster(LimitsConfig(start=1), StopRequest(), False)


FOUND = """
import jax
from bert_jax.config import LimitsConfig
from bert_jax.training.cluster import join_cluster
from bert_jax.training.stopping import StopRequest
cluster = join_cluster(LimitsConfig(), StopRequest(), True)
print(cluster.exchange("places", str(cluster.index)), jax.config.read("jax_cuda_visible_devices"))
cluster.leave()
"""


def in_slurm(index: int, **more: str) -> dict[str, str]:
    """What SLURM sets for a process, as far as JAX and we read it (`srun`'s manual)."""
    of_job = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    local = "0" if more["SLURM_STEP_TASKS_PER_NODE"].startswith("1") else str(index)
    return of_job | {"SLURM_PROCID": str(index), "SLURM_LOCALID": local} | more


def in_open_mpi(index: int, **more: str) -> dict[str, str]:
    """What `mpirun` sets for a process, as far as JAX and we read it."""
    of_all = {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"}
    local = "0" if more["OMPI_COMM_WORLD_LOCAL_SIZE"] == "1" else str(index)
    ranks = {"OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_LOCAL_RANK": local}
    return of_all | ranks | more


@pytest.mark.parametrize(
    ("scheduled", "more", "gpus"),
    [
        (in_slurm, {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, ["all", "all"]),
        (in_slurm, {"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "2,3"}, ["0", "1"]),
        (in_slurm, {"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "3"}, ["all"] * 2),
        (in_slurm, {"SLURM_STEP_TASKS_PER_NODE": "1", "JAX_LOCAL_DEVICE_IDS": "4,5"}, ["4,5"] * 2),
        (in_open_mpi, {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, ["all", "all"]),
        (in_open_mpi, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ["0", "1"]),
    ],
)
def test_processes_of_a_scheduler_meet_and_see_the_gpus_that_are_theirs(
    tmp_path, scheduled, more, gpus
):
    """One that is alone on its host takes all; JAX would have it take the first."""
    unset = ["env", "--unset=JAX_NUM_PROCESSES", "--unset=JAX_PROCESS_ID"]
    commands = []
    for index in range(2):
        variables = [f"{name}={value}" for name, value in scheduled(index, **more).items()]
        commands.append([*unset, *variables, sys.executable, "-c", FOUND])
    with Processes(tmp_path, commands) as processes:
        assert processes.wait(60) == [0, 0], processes.output(0)
        told = [processes.output(index).splitlines()[-1] for index in range(2)]
    assert told == [f"['0', '1'] {seen}" for seen in gpus]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "devices", "flags"),
    [
        pytest.param(2, 2, [], marks=pytest.mark.exhaustive),
        pytest.param(4, 1, [], marks=pytest.mark.exhaustive),
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
@pytest.mark.parametrize(
    ("how", "lost"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGSTOP, 0, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.exhaustive),
    ],
)
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


STUCK = """
import sys
from pathlib import Path
import jax.numpy as jnp
from bert_jax.config import LimitsConfig
from bert_jax.training.cluster import join_cluster
from bert_jax.training.stopping import StopRequest
from bert_jax.training.watchdog import Watchdog
limits = LimitsConfig(step=5)
cluster = join_cluster(limits, StopRequest(), False)
from jax.experimental import multihost_utils
with cluster.failing_together(), Watchdog(limits, Path(sys.argv[1]), cluster.index) as watchdog:
    while True:
        watchdog.begin("step")
        multihost_utils.process_allgather(jnp.ones(3))
        print("a step", flush=True)
"""


def test_a_step_that_never_ends_is_told_with_all_stacks(tmp_path):
    """A peer stands still for less than the heartbeat's 100 s, so that nothing else notices."""
    with Processes(tmp_path, [[sys.executable, "-c", STUCK, str(tmp_path)]] * 2) as processes:
        processes.until(lambda: "a step" in processes.output(1))
        processes.processes[1].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert processes.processes[0].wait(60) == 75
        assert time.monotonic() - start < 5 + 3
        for told in (processes.output(0), (tmp_path / "stacks-0.txt").read_text()):
            assert "error: process 0: waited longer than config.limits.step=5 s" in told
            assert "process_allgather" in told  # where the main thread is
            assert "_keep_in_touch" in told  # and another
        processes.processes[1].send_signal(signal.SIGCONT)
        assert processes.processes[1].wait(60) == 75
        assert "error: process 0 of 2 has gone" in processes.output(1)


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


ENDING = """
import time
import jax
from bert_jax.config import LimitsConfig
from bert_jax.training.cluster import join_cluster
from bert_jax.training.stopping import StopRequest
cluster = join_cluster(LimitsConfig(), StopRequest(), False)
write = cluster._write
cluster._write = lambda key, value: (time.sleep("alive" in key), write(key, value))
time.sleep(0.5)  # a heartbeat is under way
cluster.leave()
jax.distributed.shutdown()  # as JAX does where the process exits
time.sleep(2)
print("over")
"""


def test_a_heartbeat_under_way_at_the_end_is_no_lost_process(tmp_path):
    with Processes(tmp_path, [[sys.executable, "-c", ENDING]] * 2) as processes:
        assert processes.wait(60) == [0, 0], processes.output(0)
        assert [processes.output(index) for index in range(2)] == ["over\n"] * 2


SHARED = """
import sys, time
from bert_jax.config import LimitsConfig
from bert_jax.errors import UserError
from bert_jax.training.cluster import join_cluster
from bert_jax.training.stopping import StopRequest
cluster = join_cluster(LimitsConfig(), StopRequest(), False)
read = cluster._read
def read_late(folder):
    time.sleep(folder in ("spread", "breakfast"))  # the other has long said what it has to say
    return read(folder)
if cluster.index == int(sys.argv[1]):
    cluster._read = read_late
def burn():
    raise UserError("the toast is burnt")
with cluster.failing_together():
    if sys.argv[2] == "same":
        cluster.check_same("spread", lambda: str(cluster.index))
    cluster.by_first("breakfast", burn)
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [("same", "process 1 of 2 has another spread than process 0"), ("first", "the toast is burnt")],
)
@pytest.mark.parametrize("late", [0, 1])
def test_what_all_come_to_each_says_for_itself(tmp_path, what, told, late):
    with Processes(tmp_path, [[sys.executable, "-c", SHARED, str(late), what]] * 2) as processes:
        assert processes.wait(60) == [2, 2]
        for index in range(2):
            assert processes.output(index).startswith(f"error: {told}")
            assert len(processes.output(index).splitlines()) == 1


COUNTED = """
import sys
from pathlib import Path
from bert_jax.config import LimitsConfig
from bert_jax.training.session import in_session
with in_session(LimitsConfig(), Path(sys.argv[1]), None, False):
    print("begun")
"""


def test_processes_that_know_of_another_number_are_told(tmp_path):
    """Those that know of more would wait for ever, and the others for them."""
    one = [sys.executable, "-c", COUNTED, str(tmp_path / "run")]
    with Processes(tmp_path / "logs", [one, ["env", "JAX_NUM_PROCESSES=3", *one]]) as processes:
        assert processes.wait(60) == [2, 75]
        told = "error: process 1 was told of 3 processes, and process 0 of 2"
        assert processes.output(0).startswith(told)
        assert processes.output(1).startswith("error: process 0 of 2 has failed")


def test_processes_with_other_numbers_of_devices_are_told(tmp_path):
    one = [sys.executable, "-c", COUNTED, str(tmp_path / "run")]
    with Processes(tmp_path / "logs", [one, ["env", f"XLA_FLAGS={xla_flags(2)}", *one]]) as both:
        assert both.wait(60) == [2, 2]
        for index in (0, 1):
            told = "error: process 1 of 2 has another number of devices than process 0; "
            assert both.output(index).startswith(told)


LATE = """
import sys, time
from pathlib import Path
from jax._src import xla_bridge
from bert_jax.config import LimitsConfig
from bert_jax.training.session import in_session
limits = LimitsConfig()
with in_session(limits, Path(sys.argv[1]), None, False) as session:
    assert xla_bridge.backends_are_initialized()
    limits.start = limits.step = 2
    time.sleep(6 * session.first)  # it reads weights, say
    session.cluster.check_same("set of examples", lambda: "these")
    session.watchdog.begin("save" if session.first else "step")
    time.sleep(6 * session.first)  # it writes the model
print("over")
"""


def test_a_process_that_reads_or_writes_for_long_is_waited_for(tmp_path):
    """Longer than for any to come: JAX, too, would have given it up, after two minutes."""
    late = [sys.executable, "-c", LATE, str(tmp_path / "run")]
    with Processes(tmp_path / "logs", [late] * 2) as processes:
        assert processes.wait(60) == [0, 0], processes.output(0) + processes.output(1)


FETCHING = """
import sys
from pathlib import Path
import huggingface_hub
from bert_jax.config import LimitsConfig
from bert_jax.interop import load_weights
from bert_jax.training.session import in_session

def snapshot_download(*_, **__):
    raise RuntimeError("404 Client Error.")

huggingface_hub.snapshot_download = snapshot_download
with in_session(LimitsConfig(), Path(sys.argv[1]), None, False) as session:
    if not session.first:
        load_weights(sys.argv[2])
    session.cluster.check_same("model", lambda: "this")
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("org/none", "org/none: no such file or directory, and it could not be fetched"),
        ("{}/broken", "{}/broken/config.json: cannot be read"),
    ],
)
def test_a_process_that_cannot_read_its_model_says_so_at_once(tmp_path, source, told):
    """It cannot be that a peer's end is to blame, which it would wait to hear, for 100 s."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    one = [sys.executable, "-c", FETCHING, str(tmp_path / "run"), source.format(tmp_path)]
    with Processes(tmp_path / "logs", [one] * 2) as processes:
        assert processes.wait(60) == [75, 2]
        assert processes.output(1).startswith(f"error: {told.format(tmp_path)}")
        assert processes.output(0).startswith("error: process 1 of 2 has failed, see its messages")


def test_processes_of_other_settings_are_told(shards, tmp_path):
    commands = [command(shards, tmp_path / "run", f"--config.seed={seed}") for seed in (0, 1)]
    with Processes(tmp_path / "logs", commands) as processes:
        assert processes.wait(LONG) == [2, 2]
        for index in (0, 1):
            assert "error: process 1 of 2 has another config than process 0" in (
                processes.output(index)
            )


def test_processes_without_a_directory_in_common_are_told(shards, tmp_path):
    commands = [command(shards, tmp_path / name) for name in ("mine", "yours")]
    with Processes(tmp_path / "logs", commands) as processes:
        assert processes.wait(LONG) == [2, 2], processes.output(0)
        for index in (0, 1):
            assert "error: process 1 of 2 has another run directory at --workdir than" in (
                processes.output(index)
            )


@pytest.mark.slow
def test_the_launcher_starts_all_again_where_one_is_killed(shards, tmp_path):
    launcher = checkout(tmp_path / "checkout", PYTHON) / "launch/local_cluster.sh"
    flags = ["--config.phases[0].steps=120", "--config.eval_every=40"]
    flags += ["--config.checkpoint_every=20"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(shards, whole, 2, 1, *flags)
    arguments = ["bash", str(launcher), "2", *command(shards, killed, *flags)[3:]]
    with Processes(tmp_path / "logs", [arguments]) as processes:
        processes.until(lambda: (killed / "checkpoints/40").is_dir())
        victim = rank_of(killed, 1)
        os.kill(victim, signal.SIGKILL)
        assert processes.wait(LONG) == [0], processes.output(0)
        told = processes.output(0)
        assert told.count("starting all 2 processes again") == 1
        assert "[0] done" in told
    assert_equal_runs(killed, whole, 124)


@pytest.mark.slow
def test_ctrl_c_has_the_launcher_save_and_say_how_to_go_on(shards, tmp_path):
    launcher = checkout(tmp_path / "checkout", PYTHON) / "launch/local_cluster.sh"
    directory = tmp_path / "run"
    arguments = ["bash", str(launcher), "2", *command(shards, directory, *ENDLESS)[3:]]
    with Processes(tmp_path / "logs", [arguments]) as processes:
        processes.until(lambda: len(read_metrics(directory)) > 5)
        os.killpg(processes.processes[0].pid, signal.SIGINT)  # as a terminal sends it
        assert processes.wait(LONG) == [75], processes.output(0)
        assert "[0] stopped" in processes.output(0)
    assert len(saved_steps(directory / "checkpoints")) == 1


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
