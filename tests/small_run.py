"""A pretraining run of seconds, for tests: text, recipe, command and what it leaves.

As a recipe: `--config=tests/small_run.py --config.data.dir=SHARDS`.
"""

import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import orbax.checkpoint as ocp

from bert_jax.config import BertConfig, Config, DataConfig, OptimizerConfig, Phase
from bert_jax.data.packing import PackedExamples
from bert_jax.data.pipeline import PairExamples, open_examples
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.prepare import prepare
from bert_jax.training.metrics import read_metrics
from bert_jax.training.seal import read_seal

ROOT = Path(__file__).parent.parent
WORDS = ("river", "stone", "light", "walks", "under", "small", "green", "bird", "house", "sees")
STEPS = (8, 4)
# Seconds after which a run of one's own is a hang, on a machine that others keep busy too.
LONG = 500


def get_config(arg: str | None = None) -> Config:
    """Two layers of width 32, both phases: 12 steps."""
    return Config(
        model=BertConfig(
            vocab_size=120,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            vocab_multiple=8,
        ),
        phases=(
            Phase(seq_len=32, steps=STEPS[0], batch_size=16, max_predictions=5),
            Phase(seq_len=64, steps=STEPS[1], batch_size=8, max_predictions=10),
        ),
        optimizer=OptimizerConfig(name="adamw", learning_rate=5e-3, warmup_steps=2),
        log_every=1,
        eval_every=4,
        eval_examples=10,  # fewer than are held out
        checkpoint_every=3,
    )


def xla_flags(devices: int) -> str:
    """What XLA is told in all tests, with another number of virtual CPU devices."""
    return re.sub(r"(?<=device_count=)\d+", str(devices), os.environ["XLA_FLAGS"])


def small_config(shards: Path) -> Config:
    config = get_config()
    config.data.dir = str(shards)
    return config


def write_books(folder: Path, count: int = 40) -> None:
    """Documents that keep to a few words each, so that there is something to learn."""
    folder.mkdir()
    for index in range(count):
        draw = random.Random(index)
        words = draw.sample(WORDS, 5)
        sentences = [" ".join(draw.choices(words, k=draw.randint(4, 9))) for _ in range(30)]
        (folder / f"{index}.txt").write_text("\n".join(sentences) + "\n")


def write_shards(folder: Path) -> Path:
    """Token shards of such documents, in a folder of `folder`."""
    write_books(folder / "books")
    corpus = Config().corpus
    corpus.source, corpus.sentences = f"text:{folder}/books/*.txt", "lines"
    corpus.heldout_fraction = 0.15
    prepare(corpus, 120, folder / "shards", workers=1, progress=False)
    return folder / "shards"


def packed_examples(
    shards: Path, phase: Phase, *, next_sentence: bool = True, multiple: int = 1
) -> tuple[PairExamples, PackedExamples]:
    """The same training examples, many of them short, unpacked and packed."""
    data = DataConfig(packing=True, short_seq_prob=0.8, next_sentence=next_sentence)
    tokenizer = load_tokenizer(shards / "tokenizer")
    examples = open_examples(
        shards,
        "train",
        tokenizer,
        data,
        seq_len=phase.seq_len,
        max_predictions=phase.max_predictions,
        seed=0,
    )
    packed = PackedExamples(examples, phase, data, pad_id=tokenizer.pad_id, multiple=multiple)
    return examples, packed


def command(shards: Path, directory: Path, *flags: str) -> list[str]:
    """The command line of such a run."""
    return [
        *(sys.executable, "-m", "bert_jax.train", f"--config={__file__}"),
        *(f"--config.data.dir={shards}", f"--workdir={directory}", *flags),
    ]


def start(shards: Path, directory: Path, *flags: str, devices: int = 1) -> subprocess.Popen[str]:
    """Start it on so many virtual CPU devices; its output, both streams, is in `stdout`."""
    environment = os.environ | {
        "XLA_FLAGS": xla_flags(devices),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        command(shards, directory, *flags),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def history(directory: Path) -> list[dict[str, Any]]:
    """Train and eval records without what differs from run to run: time and speed."""
    noise = {"time", "steps_per_second", "tokens_per_second", "mfu", "input_wait"}
    records = [r for r in read_metrics(directory) if r["kind"] in ("train", "eval")]
    return [{name: r[name] for name in r.keys() - noise} for r in records]


def parameters(directory: Path, step: int) -> dict[str, Any]:
    path = (directory / "checkpoints" / str(step)).absolute()
    restored: Any = ocp.StandardCheckpointer().restore(path)
    return restored["params"]


def wait_until(
    condition: Callable[[], bool],
    processes: Sequence[subprocess.Popen],
    output: Callable[[], str],
    seconds: float = LONG,
) -> None:
    """Wait for a condition while processes run, of which `output` tells where it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, output()
        assert all(process.poll() is None for process in processes), output()
        time.sleep(0.02)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


class Processes:
    """Such a run on several processes; ends those that are left where its block ends."""

    def __init__(self, logs: Path, commands: list[list[str]], devices: int = 1) -> None:
        """Start the processes, the output of each in a file of the folder `logs`."""
        logs.mkdir(parents=True, exist_ok=True)
        address = f"localhost:{free_port()}"
        self._logs = [logs / f"{index}.log" for index in range(len(commands))]
        self.processes = []
        for index, (arguments, log) in enumerate(zip(commands, self._logs, strict=True)):
            environment = os.environ | {
                "XLA_FLAGS": xla_flags(devices),
                "PYTHONUNBUFFERED": "1",
            }
            if len(commands) > 1:
                environment |= {
                    "JAX_COORDINATOR_ADDRESS": address,
                    "JAX_NUM_PROCESSES": str(len(commands)),
                    "JAX_PROCESS_ID": str(index),
                }
            with log.open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        arguments,
                        cwd=ROOT,
                        env=environment,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,  # a group of its own, for signals to all of it
                    )
                )

    def output(self, index: int) -> str:
        """All that a process has printed so far."""
        return self._logs[index].read_text()

    def wait(self, seconds: float) -> list[int]:
        """The exit codes; what still runs after so many seconds is killed, and fails the test."""
        end = time.monotonic() + seconds
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def until(self, condition: Callable[[], bool], seconds: float = LONG) -> None:
        """Wait for a condition while the processes run."""
        wait_until(condition, self.processes, lambda: self.output(0), seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def assert_equal_runs(directory: Path, undisturbed: Path, step: int) -> None:
    """Every train and eval record, and the hash of all bits of each array at `step`, the last."""
    assert history(directory) == history(undisturbed)
    left, right = (read_seal(run / f"checkpoints/{step}") for run in (directory, undisturbed))
    assert left["arrays"] == right["arrays"]
