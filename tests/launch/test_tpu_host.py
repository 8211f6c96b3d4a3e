"""launch/tpu_host.sh, as it runs in a pod and on a TPU VM."""

import fcntl
import os
import shutil
import signal
import subprocess
import time

import pytest
from fake_cloud import LIMIT, Cloud, finish


def start(cloud: Cloud, *arguments: str) -> subprocess.Popen[str]:
    """The script on a host of its own."""
    home = cloud.folder / "hosts/bert-0"
    if not home.exists():
        (home / "bin").mkdir(parents=True)
        (home / "bert_jax").symlink_to(cloud.launcher.parent)
    path = [home / "bin", cloud.folder / "host_bin", "/usr/local/bin:/usr/bin:/bin"]
    return subprocess.Popen(
        ["bash", str(home / "bert_jax/launch/tpu_host.sh"), *arguments],
        env={
            "HOME": str(home),
            "PATH": ":".join(map(str, path)),
            "FAKE_CLOUD": str(cloud.folder),
            "FAKE_HOST": "bert-0",
            "BERT_JAX_LINGER": "0",
        },
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cloud: Cloud, *arguments: str) -> tuple[int, str]:
    done = finish(start(cloud, *arguments))
    return done.returncode, done.stdout + done.stderr


def until_told(cloud: Cloud, status: str) -> None:
    deadline = time.monotonic() + LIMIT
    while run(cloud, "status", "bert") != (0, status):
        assert time.monotonic() < deadline


@pytest.fixture
def pod(cloud: Cloud) -> list[str]:
    """The arguments of a pod, whose image has all installed and whose bucket is mounted."""
    link = cloud.launcher.parent / ".venv/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(cloud.folder / "host_bin/fake_host")
    bucket = cloud.folder / "buckets/my-bucket"
    return ["train", str(bucket / "data/books"), str(bucket / "runs/books"), "--config=base"]


@pytest.mark.parametrize("code", [0, 1, 2, 75])
def test_a_pod_ends_as_training_does(cloud: Cloud, pod: list[str], code: int):
    cloud.plan([], [code])
    assert run(cloud, *pod)[0] == code
    (arguments,) = cloud.trained().values()
    assert arguments[0] == "--distributed"
    assert arguments[-1] == "--config=base"


def test_a_pod_passes_a_signal_on(cloud: Cloud, pod: list[str]):
    cloud.plan([], ["hang"])
    process = start(cloud, *pod)
    deadline = time.monotonic() + LIMIT
    while not cloud.trained():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)  # it alone, as Kubernetes does
    assert finish(process).returncode == 75


def test_staging_is_tried_again(cloud: Cloud, pod: list[str]):
    cloud.plan([], [0])
    (cloud.folder / "stage_fails").touch()
    assert run(cloud, *pod)[0] == 0
    assert run(cloud, "train", "nowhere", *pod[2:])[0] == 1


def test_setting_up_twice_installs_once(cloud: Cloud):
    for times in (1, 0):
        code, told = run(cloud, "setup", "my-bucket")
        assert code == 0, told
        assert told.count("installing Python 3.12") == times
        assert told.count("installing Cloud Storage FUSE") == times
    assert (cloud.folder / "hosts/bert-0/gcs/data/books/manifest.json").is_file()


def test_a_stop_ends_where_its_host_goes(cloud: Cloud):
    """Another watcher deletes the TPUs as soon as the run has saved."""
    state = cloud.folder / "hosts/bert-0/bert_jax_run"
    assert run(cloud, "status", "bert")[0] == 0  # makes it
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as training:
        (state / "pid").write_text(f"{training.pid}\n")
        with (state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stopping = start(cloud, "stop")
            assert training.wait(LIMIT) == -signal.SIGTERM
            shutil.rmtree(state)
            done = finish(stopping)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stop_in_the_middle_of_a_start_is_kept(cloud: Cloud, pod: list[str]):
    """The run was to be started again, and is not until somebody allows it."""
    cloud.plan([], [0])
    assert run(cloud, "stop") == (0, "")
    assert run(cloud, "start", "bert", *pod[1:]) == (0, "")
    until_told(cloud, "bert/0 stopped\n")
    assert not cloud.trained()
    assert run(cloud, "allow") == (0, "")
    assert run(cloud, "start", "bert", *pod[1:]) == (0, "")
    until_told(cloud, "bert/0 exited 0 this is the end with 0\n")
    assert len(cloud.trained()) == 1


@pytest.mark.parametrize("arguments", [[], ["fly"]])
def test_bad_usage_of_a_host(cloud: Cloud, arguments: list[str]):
    assert run(cloud, *arguments)[0] == 2
