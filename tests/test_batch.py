"""The batch of a step, rebuilt from a run's config and shards, is what the step was fed."""

import dataclasses
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import small_run

from bert_jax.batch import describe_step
from bert_jax.config import Config
from bert_jax.data.pipeline import open_examples, phase_examples, train_dataset
from bert_jax.data.shards import read_manifest
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.prepare import prepare
from bert_jax.training.run_directory import open_run_directory


@pytest.fixture
def run(shards: Path, tmp_path: Path) -> Path:
    """The directory of a run that is about to take its first step."""
    config = small_run.small_config(shards)
    manifest = read_manifest(shards)
    config.model.vocab_size = manifest.vocab_size
    directory = tmp_path / "run"
    directory.mkdir()
    open_run_directory(directory, config, config.data.dir, manifest.fingerprint)
    shutil.copytree(shards / "tokenizer", directory / "tokenizer")
    return directory


def fed(config: Config, shards: Path, phase: int, place: int) -> dict[str, np.ndarray]:
    """The batch of a step of a phase, from the pipeline that training reads."""
    settings, tokenizer = config.phases[phase], load_tokenizer(shards / "tokenizer")
    examples = open_examples(
        shards,
        "train",
        tokenizer,
        config.data,
        seq_len=settings.seq_len,
        max_predictions=settings.max_predictions,
        seed=config.seed,
    )
    *_, last = train_dataset(examples, 0, place + 1, settings.batch_size)
    return last


def test_a_phase_goes_on_where_one_of_its_length_ended(shards):
    config = small_run.small_config(shards)
    whole, other = config.phases
    first, second = (dataclasses.replace(whole, steps=n) for n in (3, 5))
    config.phases = (first, other, dataclasses.replace(second, batch_size=8))
    tokenizer = load_tokenizer(shards / "tokenizer")
    batch = phase_examples(config, 2, "train", tokenizer).batch(1, 8)
    once = dataclasses.replace(config, phases=(whole,))
    wanted = phase_examples(once, 0, "train", tokenizer).batch(7, 8)  # after 3 * 16 + 1 * 8
    for name, values in wanted.items():
        np.testing.assert_array_equal(batch[name], values, err_msg=name)


@pytest.mark.parametrize(("step", "phase", "place"), [(1, 0, 0), (8, 0, 7), (9, 1, 0), (12, 1, 3)])
def test_the_rows_are_those_that_the_step_was_fed(run, shards, step, phase, place):
    batch = fed(small_run.small_config(shards), shards, phase, place)
    tokenizer = load_tokenizer(shards / "tokenizer")
    text = describe_step(run, step, slice(2, 4))
    assert text.startswith(f"step {step} of 12: phase {phase + 1}, batch {place} of it")
    assert f"all in the vocabulary of {tokenizer.vocab_size}" in text
    for row in (2, 3):
        length = batch["attention_mask"][row].sum()
        pieces = " ".join(tokenizer.pieces[i] for i in batch["input_ids"][row][:length])
        assert f"  {pieces}\n" in text
        count = int(batch["masked_lm_weights"][row].sum())
        answers = [
            f"{position}: {tokenizer.pieces[answer]}"
            for position, answer in zip(
                batch["masked_lm_positions"][row][:count],
                batch["masked_lm_ids"][row][:count],
                strict=True,
            )
        ]
        label = "random" if batch["next_sentence_labels"][row] else "next"
        assert f"row {row}, {length} pieces, B is {label}" in text
        assert f"  to predict: {', '.join(answers)}\n" in text
    assert "row 1," not in text
    assert "row 4," not in text


def test_a_packed_batch_is_shown_as_its_sequences(run):
    unpacked = describe_step(run, 9, slice(0, 8))
    settings = json.loads((run / "config.json").read_text())
    settings["data"]["packing"] = True
    (run / "config.json").write_text(json.dumps(settings))
    first, *rest = describe_step(run, 9, slice(0, 8)).splitlines()
    assert first == f"{unpacked.splitlines()[0]}, before packing"
    assert rest == unpacked.splitlines()[1:]


@pytest.mark.parametrize("step", [-1, 0, 13])
def test_a_step_that_the_run_has_not_is_told(run, step):
    with pytest.raises(UserError, match="steps 1 to 12"):
        describe_step(run, step, slice(0, 8))


def test_other_shards_are_told(run, tmp_path):
    small_run.write_books(tmp_path / "books", count=20)
    corpus = Config().corpus
    corpus.source, corpus.heldout_fraction = f"text:{tmp_path}/books/*.txt", 0.2
    other = tmp_path / "shards"
    prepare(corpus, 120, other, workers=1, progress=False)
    settings = json.loads((run / "config.json").read_text())
    settings["data"]["dir"] = str(other)
    (run / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"not the token shards .* \(fingerprint \w+, found \w+\)"):
        describe_step(run, 1, slice(0, 8))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "model, phases missing"),
        (asdict(Config()) | {"phases": 3}, "phases is 3"),
        (asdict(Config()) | {"data": {"dir": 1}}, "dir is 1"),
        (asdict(Config()) | {"optimizer": {"spikes": 1.0}}, "no setting is called 'spikes'"),
    ],
)
def test_a_config_that_no_run_wrote_is_told(run, settings, told):
    (run / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=f"not a run's config .*{told}"):
        describe_step(run, 1, slice(0, 8))


@pytest.mark.parametrize("rows", ["5", "4:2", "a:b", ":"])
def test_mistakes_on_the_command_line_take_one_line(tmp_path, rows):
    command = [sys.executable, "-m", "bert_jax.batch", str(tmp_path), "--step=1", f"--rows={rows}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=small_run.ROOT, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: argument --rows")
    assert done.stderr.count("\n") == 1


def test_whoever_reads_may_leave(run):
    command = [sys.executable, "-m", "bert_jax.batch", str(run), "--step=1"]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | true', "bash", *command],
        capture_output=True,
        text=True,
        cwd=small_run.ROOT,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
