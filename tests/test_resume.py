"""A run that is killed, and killed again, ends as if nothing had been: on its mesh to the bit."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_run import Processes, assert_equal_runs, command, history, small_config

from bert_jax.data.pipeline import open_examples, train_dataset
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.training.seal import read_seal

# As a time limit of a process, on a machine that does other things too.
LONG = 300
TOTAL = 100
# Both phases, and windows of records and evaluations that straddle the checkpoints.
FLAGS = [
    *("--config.phases[0].steps=40", "--config.phases[1].steps=60"),
    *("--config.checkpoint_every=4", "--config.log_every=3", "--config.eval_every=50"),
]


def run(shards: Path, directory: Path, *flags: str, count: int = 1, devices: int = 1) -> Path:
    """Run to the end, from wherever the directory stands; gives it."""
    commands = [command(shards, directory, *flags)] * count
    with Processes(directory.with_suffix(".logs"), commands, devices) as processes:
        assert processes.wait(LONG) == [0] * count, processes.output(0)
    return directory


def saved(directory: Path) -> int:
    """The step of the newest checkpoint, or 0."""
    steps = [path.name for path in (directory / "checkpoints").glob("*") if path.name.isdigit()]
    return max(map(int, steps), default=0)


def saving(directory: Path) -> bool:
    """Whether a checkpoint is being written, or was when the run was killed."""
    return any((directory / "checkpoints").glob("*.orbax-checkpoint-tmp*"))


def killed(processes: Processes, moment: Callable[[], bool], delay: float = 0) -> None:
    """SIGKILL all processes, a random one first, once the moment has come."""
    end = time.monotonic() + LONG
    while not moment():
        assert time.monotonic() < end, processes.output(0)
        assert processes.processes[0].poll() is None, processes.output(0)
        time.sleep(0.001)
    time.sleep(delay)
    for process in random.sample(processes.processes, len(processes.processes)):
        process.kill()
    for process in processes.processes:
        process.wait(LONG)


def kill_five_times(
    shards: Path, directory: Path, seed: int, count: int = 1, devices: int = 1
) -> int:
    """A run killed at five moments, two of them while it saves; gives how many of those it met."""
    draw, within_saves = random.Random(seed), 0
    commands = [command(shards, directory, *FLAGS)] * count
    for index, target in enumerate(sorted(draw.sample(range(1, 60), 5))):
        target = max(target, saved(directory) + 1)  # each start goes on for some steps
        with Processes(directory.with_suffix(f".{index}"), commands, devices) as processes:
            if index in (1, 3):
                killed(processes, lambda at=target: saved(directory) >= at and saving(directory))
                within_saves += saving(directory)
            elif index == 4:  # at any moment, the start of the program among them
                killed(processes, lambda: True, draw.uniform(0, 12))
            else:
                killed(processes, lambda at=target: saved(directory) >= at, draw.uniform(0, 0.5))
    return within_saves


@pytest.fixture(scope="module")
def undisturbed(shards, tmp_path_factory) -> Path:
    return run(shards, tmp_path_factory.mktemp("undisturbed") / "run", *FLAGS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2, 3, 4))]
)
def test_a_run_killed_five_times_ends_as_if_it_had_not_been(
    shards, undisturbed, tmp_path, monkeypatch, seed
):
    """And leaves no temporary file."""
    directory, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    within_saves = kill_five_times(shards, directory, seed)
    assert within_saves >= 1
    assert not list(temporary.iterdir())
    run(shards, directory, *FLAGS)
    assert_equal_runs(directory, undisturbed, TOTAL)
    print(f"5 kills, {within_saves} of them in the middle of a save")


@pytest.mark.slow
@pytest.mark.exhaustive  # test_cluster.py kills one of two in the launcher's hands
def test_two_processes_killed_five_times_end_as_if_they_had_not_been(shards, tmp_path):
    whole = run(shards, tmp_path / "whole", *FLAGS, count=2)
    within_saves = kill_five_times(shards, tmp_path / "run", seed=9, count=2)
    run(shards, tmp_path / "run", *FLAGS, count=2)
    assert_equal_runs(tmp_path / "run", whole, TOTAL)
    print(f"5 kills, {within_saves} of them in the middle of a save")


@pytest.fixture(scope="module")
def stopped_on_eight(shards, tmp_path_factory) -> Path:
    """A run on eight devices that has ended at step 50, with a checkpoint of it."""
    folder = tmp_path_factory.mktemp("eight")
    run(shards, folder / "whole", *SHAPE_FLAGS, devices=8)
    shutil.copytree(folder / "whole", folder / "stopped")
    for path in (folder / "stopped/checkpoints").glob("*"):
        if path.name != "50":
            shutil.rmtree(path)
    return folder


# Every checkpoint is kept, so that the run can be gone back to its step 50. At the learning rate
# of other tests, five times this, some steps' gradients make a difference of rounding thousands of
# times as large, on any mesh (docs/reliability.md).
SHAPE_FLAGS = [
    "--config.optimizer.learning_rate=1e-3",
    *("--config.phases[0].steps=150", "--config.phases[1].steps=100"),
    *("--config.checkpoint_every=50", "--config.keep_checkpoints=9", "--config.eval_every=50"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "devices", "mesh"),
    [
        (1, 4, ["fsdp=2", "tensor=2"]),
        pytest.param(1, 2, ["fsdp=2"], marks=pytest.mark.exhaustive),
        pytest.param(1, 1, [], marks=pytest.mark.exhaustive),
        (2, 2, ["fsdp=4"]),
    ],
)
def test_on_another_shape_the_next_200_losses_are_the_same(
    shards, stopped_on_eight, tmp_path, count, devices, mesh
):
    directory = tmp_path / "run"
    shutil.copytree(stopped_on_eight / "stopped", directory)
    flags = [f"--config.mesh.{setting}" for setting in mesh]
    run(shards, directory, *SHAPE_FLAGS, *flags, count=count, devices=devices)
    ours, theirs = history(directory), history(stopped_on_eight / "whole")
    losses = [[r["loss"] for r in records if "grad_norm" in r] for records in (ours, theirs)]
    assert len(losses[0]) == 250
    assert losses[0][:50] == losses[1][:50]
    relative = np.abs(np.array(losses[0]) / losses[1] - 1)[50:]
    print(f"{count} x {devices} {mesh}: the largest relative difference is {relative.max():.1e}")
    assert relative.max() < 1e-6


@pytest.mark.slow
def test_what_a_checkpoint_holds_of_the_data_is_under_a_kilobyte(undisturbed):
    """The step, and the sums since the last record: no iterator, no shuffle, no generator."""
    seal = read_seal(undisturbed / f"checkpoints/{TOTAL}")
    own = [name for name in seal["arrays"] if not name.startswith(("params", "opt_state"))]
    assert sorted(own) == ["grad_norms", "step"]
    assert len(json.dumps({"step": TOTAL, "window": seal["window"]})) < 1024


def test_the_first_batch_of_step_a_billion_comes_at_once(shards):
    config = small_config(shards)
    tokenizer = load_tokenizer(shards / "tokenizer")

    def first_batch() -> float:
        start = time.perf_counter()
        examples = open_examples(
            shards, "train", tokenizer, config.data, seq_len=32, max_predictions=5, seed=0
        )
        examples.batch(10**9, 16)
        return time.perf_counter() - start

    first_batch()  # makes the plan, as a run's first start does
    assert min(first_batch() for _ in range(5)) < 0.5


@pytest.mark.slow
def test_so_does_it_through_tf_data(shards):
    config = small_config(shards)
    tokenizer = load_tokenizer(shards / "tokenizer")
    examples = open_examples(
        shards, "train", tokenizer, config.data, seq_len=32, max_predictions=5, seed=0
    )
    next(train_dataset(examples, 0, 10, 16))  # imports TensorFlow
    seconds = []
    for step in (10**9, 10**9 + 1, 10**9 + 2):
        start = time.perf_counter()
        batches = train_dataset(examples, step, 2 * 10**9, 16)
        first = next(batches)
        seconds.append(time.perf_counter() - start)
        batches.close()
        for name, array in examples.batch(step, 16).items():
            np.testing.assert_array_equal(first[name], array)
    assert min(seconds) < 0.5
