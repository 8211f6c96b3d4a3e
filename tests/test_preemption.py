"""A run that is asked to stop saves one step on all processes, and says that it can be resumed."""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from small_run import LONG, Processes, command, write_books

from bert_jax.training.metrics import read_metrics

RESUME = 75
STOPPED = "stopped; run it again to go on from here"
# What a run of BERT-tiny's size is promised to need; several times that on a busy machine.
SECONDS = 5
FLAGS = [
    *("--config.phases[0].steps=1000000", "--config.eval_every=40"),
    *("--config.eval_examples=100000", "--config.checkpoint_every=70"),
]


def steps_saved(directory: Path) -> list[int]:
    found = (directory / "checkpoints").glob("*")
    return sorted(int(path.name) for path in found if path.name.isdigit())


def last_step(directory: Path) -> int:
    steps = [record["step"] for record in read_metrics(directory) if record["kind"] == "train"]
    return steps[-1] if steps else 0


def send(processes: Processes, draw: random.Random, number: signal.Signals, rank: int) -> float:
    """One signal, and in half of the cases a second or third, to any; gives the time."""
    processes.processes[rank].send_signal(number)
    sent = time.monotonic()
    for _ in range(draw.choice((0, 0, 1, 2))):
        time.sleep(draw.uniform(0, 0.5))
        for process in draw.sample(processes.processes, len(processes.processes)):
            if process.poll() is None:
                process.send_signal(draw.choice((signal.SIGTERM, signal.SIGINT)))
    return sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "stops"),
    [
        (2, 4),
        pytest.param(2, 10, marks=pytest.mark.exhaustive),
        pytest.param(1, 10, marks=pytest.mark.exhaustive),
    ],
)
def test_every_stop_saves_the_step_that_is_told(shards, tmp_path, count, stops):
    """One run, stopped again and again: it starts, compiles, trains, evaluates, saves."""
    directory, draw = tmp_path / "run", random.Random(count)
    slowest = 0.0
    for stop in range(stops):
        number = (signal.SIGTERM, signal.SIGINT)[stop % 2]
        rank = stop // 2 % count
        before = last_step(directory)
        commands = [command(shards, directory, *FLAGS)] * count
        with Processes(tmp_path / f"logs{stop}", commands) as processes:
            if stop % 5 == 0:
                time.sleep(draw.uniform(0.5, 8))
                started = False
            else:
                processes.until(lambda then=before: last_step(directory) > then, LONG)
                time.sleep(draw.uniform(0, 2))
                started = True
            sent = send(processes, draw, number, rank)
            assert processes.wait(LONG) == [RESUME] * count, processes.output(0)
            slowest = max(slowest, started * (time.monotonic() - sent))
            for index in range(count):
                assert "Traceback" not in processes.output(index), processes.output(index)
        if started:
            saved = steps_saved(directory)
            assert saved[-1] == last_step(directory) > before
            evaluated = [r["step"] for r in read_metrics(directory) if r["kind"] == "eval"]
            due = list(range(40, saved[-1] + 1, 40))
            assert evaluated in (due, due[:-1])  # one that was broken off left no record
            print(stop, number.name, rank, saved[-1], f"{time.monotonic() - sent:.1f} s")
    print(f"the slowest of {count} processes took {slowest:.1f} s")
    assert slowest < 4 * SECONDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rank", "number"),
    [
        pytest.param(1, 0, 15, marks=pytest.mark.exhaustive),
        pytest.param(2, 0, 2, marks=pytest.mark.exhaustive),
        (2, 1, 15),
    ],
)
def test_a_stop_while_data_are_prepared(tmp_path, monkeypatch, count, rank, number):
    """Nothing is there to save yet: one line, and no process is left behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_books(tmp_path / "books", count=20_000)
    corpus = [
        f"--config.corpus.source=text:{tmp_path}/books/*.txt",
        "--config.corpus.sentences=lines",
    ]
    commands = [command(Path(), tmp_path / "run", *corpus)] * count
    commands = [[part for part in line if "data.dir" not in part] for line in commands]
    with Processes(tmp_path / "logs", commands) as processes:
        processes.until(lambda: len(list(tmp_path.glob("cache/bert_jax/*.partial/text/*"))) > 2)
        processes.processes[rank].send_signal(signal.Signals(number))
        time.sleep(0.3)
        processes.processes[-1].send_signal(signal.SIGINT)
        assert processes.wait(60) == [RESUME] * count, processes.output(0)
        assert processes.output(0).strip().splitlines()[-1] == STOPPED
        for index in range(count):
            assert "Traceback" not in processes.output(index)
        assert not workers_of(tmp_path)


def workers_of(folder: Path) -> list[str]:
    """Processes that still have files of the folder open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()).startswith(f"{folder}/cache"):
                found.append(str(link))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_stop_at_any_moment_of_the_start(shards, tmp_path):
    """From the first imports to the first step: it ends at once, and says so in a line."""
    for stop in range(6):
        with Processes(tmp_path / f"{stop}", [command(shards, tmp_path / "run", *FLAGS)]) as one:
            time.sleep(0.4 + 0.6 * stop)
            one.processes[0].send_signal((signal.SIGTERM, signal.SIGINT)[stop % 2])
            assert one.wait(LONG) == [RESUME], one.output(0)
            assert "Traceback" not in one.output(0)
            assert re.search(STOPPED, one.output(0)) or steps_saved(tmp_path / "run")
