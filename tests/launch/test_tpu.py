"""launch/tpu.sh against a fake gcloud that plays preemptions."""

import os
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from fake_cloud import ACTIVE, LIMIT, PLACE, RUN, Cloud, finish

TAKEN = [*ACTIVE * 3, "SUSPENDING", "SUSPENDED"]
CONFIG = ["--", "--config=base"]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_from_nothing_to_its_end(cloud: Cloud):
    cloud.plan([["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]], [0])
    done = cloud.run("tpu.sh", "run", *RUN, *CONFIG)
    assert done.returncode == 0, done.stderr
    assert "bert_jax: the run is done" in done.stderr
    trained = cloud.trained()
    assert trained.keys() == {"bert-0.0", "bert-1.0"}
    home = cloud.folder / "hosts/bert-0"
    assert trained["bert-0.0"] == [
        "--distributed",
        f"--config.data.dir={home}/staged/books",
        "--workdir=gcs/runs/books",
        "--config=base",
    ]
    assert not cloud.has_tpus
    logs = sorted((cloud.folder / "buckets/my-bucket/runs/books/logs").iterdir())
    assert [path.name[:7] for path in logs] == ["bert-0-", "bert-1-"]
    assert "this is the end with 0" in logs[0].read_text()


def test_arguments_arrive_as_they_were_given(cloud: Cloud):
    given = ["--config=base", '--config.a=it\'s "so"', "$HOME `id` \\ ; * & é", "", "a\nb", "-"]
    done = cloud.run("tpu.sh", "run", *RUN, "--", *given)
    assert done.returncode == 0, done.stderr
    for arguments in cloud.trained().values():
        assert arguments[3:] == given


@pytest.mark.parametrize(
    ("lives", "trains", "asked"),
    [
        ([TAKEN, ACTIVE], ["hang", 0], 2),  # in the middle of a run
        ([["PROVISIONING", "FAILED"], ACTIVE], [0], 2),  # before there was anything
        ([["WAITING_FOR_RESOURCES", "SUSPENDED"], TAKEN, ACTIVE], ["hang", 0], 3),
        ([TAKEN, [*ACTIVE * 4, "SUSPENDED"], ACTIVE], ["hang", "hang", 0], 3),  # twice
    ],
)
def test_tpus_that_are_taken_away_are_asked_for_again(cloud: Cloud, lives, trains, asked):
    cloud.plan(lives, trains, workers=1)
    done = cloud.run("tpu.sh", "run", *RUN, "--spot", *CONFIG)
    assert done.returncode == 0, done.stderr
    assert len(cloud.calls("create", "--spot")) == len(cloud.calls("delete")) == asked
    assert len(cloud.trained()) == len(trains)
    assert not cloud.has_tpus


def test_hosts_that_end_with_start_again_are_started_again(cloud: Cloud):
    cloud.plan([ACTIVE], [75, [75, 137], 0])
    done = cloud.run("tpu.sh", "run", *RUN, *CONFIG)
    assert done.returncode == 0, done.stderr
    assert len(cloud.calls("create")) == 1
    assert len(cloud.trained()) == 2 * 3


def test_all_are_started_again_where_one_host_stands_still(cloud: Cloud):
    """Its peers have gone, and it does not notice."""
    cloud.plan([ACTIVE], [[75, "hang"], 0])
    done = cloud.run("tpu.sh", "run", *RUN, *CONFIG)
    assert done.returncode == 0, done.stderr
    assert len(cloud.trained()) == 2 * 2


@pytest.mark.parametrize(("codes", "code"), [([1, 75], 1), ([75, 1], 1), ([2, 2], 2)])
def test_what_fails_is_not_started_again(cloud: Cloud, codes, code):
    cloud.plan([ACTIVE], [codes])
    done = cloud.run("tpu.sh", "run", *RUN, *CONFIG)
    assert done.returncode == code
    failing = codes.index(code)
    assert f"bert/{failing} exited {code} this is the end with {code}" in done.stderr
    assert len(cloud.trained()) == 2
    assert not cloud.has_tpus


def test_starts_that_bring_no_checkpoint_are_bounded(cloud: Cloud):
    cloud.plan([ACTIVE], [75], workers=1, checkpoints=2)
    done = cloud.run("tpu.sh", "run", *RUN, "--max_starts=3", *CONFIG)
    assert done.returncode == 75
    assert "3 starts without a new checkpoint: giving up" in done.stderr
    # The second leaves the last checkpoint, and counts as the first of three.
    assert len(cloud.trained()) == 1 + 3 + 1
    assert not cloud.has_tpus


def test_tpus_that_are_never_given_are_not_asked_for_forever(cloud: Cloud):
    cloud.plan([["FAILED"]], [0])
    done = cloud.run("tpu.sh", "run", *RUN, "--max_starts=2", *CONFIG)
    assert done.returncode == 75
    assert len(cloud.calls("create")) == 2


def test_a_request_that_is_refused_at_once_ends_it(cloud: Cloud):
    done = cloud.run("tpu.sh", "run", *RUN, "--create_flag=--no-such-flag", *CONFIG)
    assert done.returncode == 1
    assert "unrecognized arguments: --no-such-flag" in done.stderr
    assert len(cloud.calls("create")) == 1
    assert not cloud.calls("delete")


def test_hosts_out_of_reach_for_long_are_given_up(cloud: Cloud):
    cloud.plan([ACTIVE], [0], workers=1, unreachable=3)
    done = cloud.run("tpu.sh", "run", *RUN, *CONFIG)
    # Nothing had been started on the first ones.
    assert "the TPUs are ACTIVE, the run is unreachable" in done.stderr
    assert len(cloud.calls("create")) == 2


def test_the_service_out_of_reach(cloud: Cloud):
    cloud.plan([ACTIVE], [0], workers=1, failing=2)
    assert cloud.run("tpu.sh", "run", *RUN, *CONFIG).returncode == 0
    cloud.plan([ACTIVE], [0], workers=1, failing=3)
    done = cloud.run("tpu.sh", "run", *RUN, *CONFIG)
    assert done.returncode == 1
    assert "gcloud fails, see above" in done.stderr
    cloud.plan([ACTIVE], [0], failing=3)
    assert cloud.run("tpu.sh", "watch", *PLACE, "--name=bert").returncode == 1


def test_the_watcher_may_go_and_come_back(cloud: Cloud):
    cloud.plan([ACTIVE], ["hang"])
    watcher = cloud.start("tpu.sh", "run", *RUN, *CONFIG)
    until(lambda: len(cloud.trained()) == 2)
    watcher.send_signal(signal.SIGINT)
    gone = finish(watcher)
    assert gone.returncode == 130
    assert "the run goes on" in gone.stderr
    again = cloud.start("tpu.sh", "resume", *RUN, *CONFIG)
    looks = len(cloud.calls("list"))
    until(lambda: len(cloud.calls("list")) > looks + 2)
    # Somebody stops it.
    assert cloud.run("tpu.sh", "stop", *PLACE, "--name=bert").returncode == 0
    done = finish(again)
    assert done.returncode == 75, done.stderr
    assert "the run is stopped" in done.stderr
    assert len(cloud.trained()) == 2
    assert len(cloud.calls("create")) == 1
    assert not cloud.has_tpus


def test_stopped_and_resumed(cloud: Cloud):
    cloud.plan([ACTIVE], ["hang", 0], workers=1)
    run = cloud.start("tpu.sh", "run", *RUN, "--keep", *CONFIG)
    until(cloud.trained)
    cloud.run("tpu.sh", "stop", *PLACE, "--name=bert")
    assert finish(run).returncode == 75
    assert cloud.has_tpus
    assert cloud.run("tpu.sh", "resume", *RUN, *CONFIG).returncode == 0
    assert len(cloud.calls("create")) == 1
    assert len(cloud.trained()) == 2


def test_several_slices(cloud: Cloud):
    cloud.plan([ACTIVE], [0])
    done = cloud.run("tpu.sh", "run", *RUN, "--slices=2", "--keep", *CONFIG)
    assert done.returncode == 0, done.stderr
    assert cloud.calls("create", "--node-count=2", "--node-prefix=bert")
    assert cloud.trained().keys() == {f"bert-{node}-{host}.0" for node in (0, 1) for host in (0, 1)}
    told = cloud.run("tpu.sh", "logs", *PLACE, "--name=bert", "--slices=2").stdout.splitlines()
    for host in ("bert-0/0", "bert-0/1", "bert-1/0", "bert-1/1"):
        assert f"[{host}] this is the end with 0" in told
    assert all(line.startswith("[bert-") for line in told)


def test_a_log_is_followed_from_its_first_line_until_ctrl_c(cloud: Cloud):
    cloud.plan([ACTIVE], [0])
    cloud.run("tpu.sh", "run", *RUN, "--keep", *CONFIG)
    following = cloud.start("tpu.sh", "logs", *PLACE, "--name=bert", "--follow")
    assert following.stdout
    logs = [cloud.folder / f"hosts/bert-{index}/bert_jax_run/log" for index in (0, 1)]
    try:
        # Only then more is written: it is told as it comes.
        told = [following.stdout.readline() for log in logs for _ in log.open()]
        for host in ("bert/0", "bert/1"):
            assert f"[{host}] this is the end with 0\n" in told
        with logs[1].open("a") as log:
            log.write("and on\n")
        assert following.stdout.readline() == "[bert/1] and on\n"
        os.killpg(following.pid, signal.SIGINT)  # as a terminal sends it
        assert finish(following).returncode == -signal.SIGINT
    finally:
        with suppress(ProcessLookupError):
            os.killpg(following.pid, signal.SIGKILL)


def test_asking_twice_and_deleting_twice(cloud: Cloud):
    flags = [*PLACE, "--name=bert", "--accelerator=v5litepod-16"]
    for _ in range(2):
        assert cloud.run("tpu.sh", "create", *flags).returncode == 0
    assert len(cloud.calls("create")) == 1
    # One whose name ends in the same is another.
    assert cloud.run("tpu.sh", "delete", *PLACE, "--name=rt").returncode == 0
    assert cloud.has_tpus
    for _ in range(2):
        assert cloud.run("tpu.sh", "delete", *PLACE, "--name=bert").returncode == 0
    assert not cloud.has_tpus


def test_watching_changes_nothing(cloud: Cloud):
    flags = [*PLACE, "--name=bert"]
    nothing = cloud.run("tpu.sh", "watch", *flags)
    assert nothing.returncode == 75
    assert "nothing trains" in nothing.stderr
    cloud.plan([ACTIVE], [0])
    cloud.run("tpu.sh", "run", *RUN, "--keep", *CONFIG)
    calls = len(cloud.calls("ssh"))
    assert cloud.run("tpu.sh", "watch", *flags).returncode == 0
    assert len(cloud.calls("ssh")) == calls + 1
    assert cloud.has_tpus


@pytest.mark.parametrize(
    ("accelerator", "runtime"),
    [
        ("v4-32", "tpu-ubuntu2204-base"),
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-32", "v2-alpha-tpuv5"),
        ("v6e-16", "v2-alpha-tpuv6e"),
    ],
)
def test_settings_from_the_environment(cloud: Cloud, accelerator, runtime):
    done = cloud.run(
        "tpu.sh",
        "create",
        "--spot",
        "--create_flag=--network=mine",
        BERT_JAX_NAME="bert",
        CLOUDSDK_CORE_PROJECT="my-project",
        CLOUDSDK_COMPUTE_ZONE="us-west4-a",
        BERT_JAX_ACCELERATOR=accelerator,
    )
    assert done.returncode == 0, done.stderr
    assert cloud.calls("create") == [
        [
            *("gcloud", "compute", "tpus", "queued-resources", "create", "bert", *PLACE),
            *(
                "--node-id=bert",
                f"--accelerator-type={accelerator}",
                f"--runtime-version={runtime}",
            ),
            *("--async", "--quiet", "--spot", "--network=mine"),
        ]
    ]


def test_no_shards_no_tpus(cloud: Cloud):
    done = cloud.run("tpu.sh", "run", *RUN, "--data=data/other", *CONFIG)
    assert done.returncode == 2
    assert "gs://my-bucket/data/other: no token shards there" in done.stderr
    assert not cloud.calls("create")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing: must be create, run"),
        (["fly"], "fly: must be create, run"),
        (["create", *PLACE], "give --name"),
        (["run", *RUN, "--zone=mars", *CONFIG], "--zone=mars: must be a zone"),
        (["run", *RUN, "--accelerator=v9-8", *CONFIG], "--accelerator=v9-8: not known here"),
        (["run", *RUN, "--bucket=gs://mine", *CONFIG], "without gs://"),
        (["run", *RUN, "--workdir=../x", *CONFIG], "--workdir=../x: must be where"),
        (["run", *RUN, "--slices=0", *CONFIG], "--slices=0: must be a number"),
        (["run", *RUN, "--name=Bert", *CONFIG], "--name=Bert: must be"),
        (["run", *RUN, "--colour=red", *CONFIG], "--colour=red: no flag"),
        (["run", *RUN], "give the arguments of train"),
        (["run", *RUN, "--", "--workdir=x"], "--workdir=x: set by this launcher"),
        (["run", *RUN, "--", "--config.data.dir", "x"], "--config.data.dir: set by this"),
    ],
)
def test_bad_usage_is_told_in_a_line(cloud: Cloud, arguments, told):
    done = cloud.run("tpu.sh", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not cloud.calls()


def test_a_dry_run_shows_what_a_run_calls(cloud: Cloud):
    cloud.plan([ACTIVE], [0], workers=1)
    given = [*RUN, "--spot", "--", "--config=base", '--config.a=it\'s "so" $HOME']
    dry = cloud.run("tpu.sh", "run", "--dry_run", *given)
    assert dry.returncode == 0, dry.stderr
    assert not cloud.calls()
    shown = [shlex.split(line) for line in dry.stdout.splitlines()]
    real = cloud.run("tpu.sh", "run", *given)
    assert real.returncode == 0, real.stderr
    called = cloud.calls()
    for call in called:
        call[:] = [
            word if not word.endswith("/bert_jax.tar.gz") else "bert_jax.tar.gz" for word in call
        ]

    def distinct(calls: list[list[str]]) -> list[str]:
        return list(dict.fromkeys(map(shlex.join, calls)))

    assert distinct([call for call in shown if call[0] == "gcloud"]) == distinct(called)
