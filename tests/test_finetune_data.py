"""The batches of a fine-tuning run, trained on and scored: of how many lengths they are."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small_finetune import small_config, write_model

from bert_jax import finetune_data
from bert_jax.data.buckets import collate
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_data import Data, epoch_plan, host_batches, read_data
from bert_jax.finetuning import finetune
from bert_jax.interop import load_weights
from bert_jax.tasks import inference
from bert_jax.training import loop
from bert_jax.training.metrics import read_metrics
from bert_jax.training.run_sections import of_kind
from bert_jax.training.state import TrainState


def write_texts(path: Path, longest: int) -> None:
    """300 texts of 1 to `longest` words."""
    lines = [f"{'river ' * (1 + index % longest)}\t{index % 2}" for index in range(300)]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """Texts of 1 to 60 words."""
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "table.tsv", longest=60)
    config = small_config(write_model(folder / "model"), folder / "table.tsv", folder / "table.tsv")
    config.task.max_length = 64
    return config


def read(config: FinetuneConfig, program: int, monkeypatch: pytest.MonkeyPatch) -> Data:
    """The data where to compile a length takes as long as so many positions."""
    monkeypatch.setattr(finetune_data, "_PROGRAM", {"cpu": program})
    tokenizer = load_weights(Path(config.init_from)).needed_tokenizer()
    return read_data(config, tokenizer, 1)


@pytest.mark.parametrize(("program", "sizes"), [(0, (8, 16, 24, 32, 48, 64)), (10**9, (64,))])
def test_batches_are_padded_to_the_sizes_that_pay(program, sizes, config, monkeypatch):
    data = read(config, program, monkeypatch)
    assert data.computed.sizes == sizes
    rows = np.arange(config.batch_size)
    for epoch in range(2):
        plan = epoch_plan(data.train, config, epoch)
        batches = host_batches(data.train, plan, config, sizes, rows, 1, 0)
        shapes = [batch["input_ids"].shape for batch in batches]
        assert {length for _, length in shapes} == set(sizes)
    mean = sum(count * length for count, length in shapes) / sum(count for count, _ in shapes)
    assert data.computed.length == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(("program", "sizes"), [(0, (8, 16, 24, 32, 48, 64)), (10**9, (64,))])
def test_what_is_scored_is_padded_to_the_sizes_that_pay(program, sizes, config, monkeypatch):
    assert read(config, program, monkeypatch).scored_sizes(config) == sizes


def test_a_run_scores_by_these_sizes(config, monkeypatch, tmp_path):
    lengths = []

    def collated(*inputs: Any, **sizes: Any) -> dict[str, np.ndarray]:
        batch = collate(*inputs, **sizes)
        lengths.append(batch["input_ids"].shape[-1])
        return batch

    monkeypatch.setattr(finetune_data, "_PROGRAM", {"cpu": 10**9})
    monkeypatch.setattr(inference, "collate", collated)
    task = dataclasses.replace(config.task, max_length=32)
    assert finetune(dataclasses.replace(config, task=task, epochs=1), tmp_path / "run")
    assert set(lengths) == {32}


@pytest.mark.parametrize("packing", [False, True])
def test_a_runs_speed_is_of_the_positions_that_each_batch_has(
    packing, config, monkeypatch, tmp_path
):
    write_texts(tmp_path / "table.tsv", longest=20)
    task = dataclasses.replace(config.task, max_length=32, train=str(tmp_path / "table.tsv"))
    config = dataclasses.replace(config, task=task, packing=packing, epochs=1, batch_size=32)
    data = read(config, 0, monkeypatch)
    plan, rows = epoch_plan(data.train, config, 0), np.arange(config.batch_size)
    parts = jax.device_count()
    batches = host_batches(data.train, plan, config, data.computed.sizes, rows, parts, 0)
    positions = [batch["places" if packing else "input_ids"].size for batch in batches]
    assert len(set(positions)) > 1

    assert finetune(config, tmp_path / "run")
    records = of_kind(read_metrics(tmp_path / "run"), "train")
    a_step = [record["tokens_per_second"] / record["steps_per_second"] for record in records]
    assert a_step == pytest.approx(positions)


def test_no_step_is_under_way_while_a_program_is_compiled(config, monkeypatch, tmp_path):
    """Else its time counts as the compiler's, and the run's speed is too high."""
    done, taken = [], []

    def compiled(run: loop.Run, state: TrainState, *batch: Any) -> Any:
        known = len(run.compiled)
        program = step_of(run, state, *batch)
        if len(run.compiled) > known:
            done.append(run.window.state()["steps"])
            taken.append(int(state.step))
        return program

    step_of = loop._compiled
    monkeypatch.setattr(loop, "_compiled", compiled)
    monkeypatch.setattr(finetune_data, "_PROGRAM", {"cpu": 0})
    task = dataclasses.replace(config.task, max_length=32)
    assert finetune(
        dataclasses.replace(config, task=task, epochs=1, log_every=100), tmp_path / "run"
    )
    assert len(taken) > 1
    assert done == taken


def test_all_that_is_scored_counts_each_time_that_it_is(config, monkeypatch, tmp_path):
    """What pays for another length: more epochs, each of which ends with dev, or a large test."""
    table = Path(config.task.train).read_text()
    (tmp_path / "large.tsv").write_text(table + table.partition("\n")[2] * 6)

    def lengths(epochs: int, test: str = "") -> int:
        task = dataclasses.replace(config.task, test=test)
        scored = dataclasses.replace(config, task=task, epochs=epochs)
        return len(read(scored, 20_000, monkeypatch).scored_sizes(scored))

    assert lengths(epochs=1) < lengths(epochs=8)
    assert lengths(epochs=1) < lengths(epochs=1, test=str(tmp_path / "large.tsv"))


def test_a_length_that_saves_much_has_a_program_of_its_own(config, monkeypatch):
    cheap, dear = (read(config, program, monkeypatch).computed for program in (5_000, 20_000))
    assert len(cheap.sizes) > len(dear.sizes) > 1
    assert cheap.padding < dear.padding
