"""Pretraining from end to end: text in, a resumable run and its report out."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from small_run import WORDS, command, history, parameters, small_config, write_books

from bert_jax.config import Config, Phase
from bert_jax.data.pipeline import phase_examples
from bert_jax.data.tokenization import load_tokenizer, train_tokenizer
from bert_jax.errors import TrainingFailure, UserError
from bert_jax.interop import load_weights
from bert_jax.models import BertForPreTraining
from bert_jax.prediction.predictor import needed_params, unrolled
from bert_jax.prepare import prepare
from bert_jax.pretraining import train, with_token_shards
from bert_jax.training.checkpoints import saved_steps
from bert_jax.training.console import Progress
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stopping import RESUME_EXIT_CODE, STOPPED
from bert_jax.training.window import Window

_STOPPED_AS_IT_COMPILES = """
import os, signal, sys
import jax
from bert_jax.errors import run_main
from bert_jax.train import main
left, compile = int(sys.argv.pop(1)), jax.stages.Lowered.compile
def stopped(lowered):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGINT)
    return compile(lowered)
jax.stages.Lowered.compile = stopped
run_main(main)
"""


@pytest.fixture(scope="module")
def finished_run(shards, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    assert train(small_config(shards), directory)
    return directory


def test_a_run_leaves_all_that_it_promises(finished_run):
    records = read_metrics(finished_run)
    evaluations = [r for r in records if r["kind"] == "eval"]
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(1, 13))
    assert [(r["step"], r["phase"]) for r in evaluations] == [(4, 0), (8, 0), (12, 1)]
    assert evaluations[-1]["mlm_perplexity"] == pytest.approx(np.exp(evaluations[-1]["mlm_loss"]))
    assert {r["kind"] for r in records} == {"train", "eval", "baseline", "time"}
    for name in ("environment.json", "tokenizer/tokenizer.json", "tokenizer/vocab.txt"):
        assert (finished_run / name).is_file()
    assert list((finished_run / "tensorboard").iterdir())
    config = json.loads((finished_run / "config.json").read_text())
    assert config["phases"][1]["seq_len"] == 64
    examples = json.loads((finished_run / "predictions.json").read_text())["examples"]
    assert all("[MASK]" in example["text_with_mask"] for example in examples)
    page = (finished_run / "report.html").read_text()
    assert f"{evaluations[-1]['mlm_accuracy']:.1%}" in page


def test_a_run_learns(finished_run):
    losses = [r["mlm_loss"] for r in history(finished_run) if "grad_norm" in r]
    assert losses[-1] < losses[0] - 0.5


def test_the_learning_rate_runs_over_both_phases(finished_run):
    rates = [r["learning_rate"] for r in history(finished_run) if "learning_rate" in r]
    expected = [0.0, 0.5] + [1 - step / 12 for step in range(2, 12)]
    np.testing.assert_allclose(rates, 5e-3 * np.array(expected), rtol=1e-5)


def test_evaluations_are_of_held_out_examples_without_dropout(shards, finished_run):
    """The last one, done again by `predict`'s way to a run's model."""
    config, run = small_config(shards), load_weights(str(finished_run))
    model = BertForPreTraining(unrolled(run.config))
    params = needed_params(run, model, np.zeros((1, 1), np.int32))
    heldout = phase_examples(config, 1, "heldout", load_tokenizer(shards / "tokenizer"))
    (batch,) = heldout.evaluation_batches(config.eval_examples, config.eval_examples)
    model_reads = ("input_ids", "token_type_ids", "attention_mask", "masked_lm_positions")
    outputs: Any = model.apply({"params": params}, *(batch[name] for name in model_reads))
    evaluation, baseline = (
        [r for r in read_metrics(finished_run) if r["kind"] == kind][-1]
        for kind in ("eval", "baseline")
    )
    for name, labels, weights in (
        ("mlm", batch["masked_lm_ids"], batch["masked_lm_weights"]),
        ("nsp", batch["next_sentence_labels"], batch["next_sentence_weights"]),
    ):
        of_label, logits = (x[weights > 0] for x in (labels, np.asarray(outputs[f"{name}_logits"])))
        likelihoods = softmax(logits, axis=-1)[np.arange(len(of_label)), of_label]
        assert evaluation[f"{name}_loss"] == pytest.approx(-np.log(likelihoods).mean(), rel=1e-5)
        hits = logits.argmax(axis=-1) == of_label
        assert evaluation[f"{name}_accuracy"] == pytest.approx(hits.mean())
        most = np.bincount(of_label).max() / len(of_label)
        assert baseline[f"{name}_accuracy"] == pytest.approx(most)


def stop_after(stop_at: int, patch: pytest.MonkeyPatch) -> None:
    """Let a run get SIGTERM after a step."""
    update = Progress.update

    def stop(self, step, record=None):
        update(self, step, record)
        if step == stop_at:
            signal.raise_signal(signal.SIGTERM)

    patch.setattr(Progress, "update", stop)


@pytest.mark.parametrize(
    "stop_at",
    [
        5,
        8,
        pytest.param(12, marks=pytest.mark.slow),
        pytest.param(10, marks=[pytest.mark.slow, pytest.mark.exhaustive]),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(shards, finished_run, tmp_path, monkeypatch, stop_at):
    """SIGTERM in the first phase, at its end, in the second and at the end: the same history.

    It goes on in a thread of the caller's: there a run is the same, and Ctrl-C not for it.
    """
    with monkeypatch.context() as patch:
        stop_after(stop_at, patch)
        assert not train(small_config(shards), tmp_path / "run")
    stopped = history(tmp_path / "run")
    assert max(r["step"] for r in stopped) == stop_at
    with ThreadPoolExecutor() as thread:
        assert thread.submit(train, small_config(shards), tmp_path / "run").result()
    assert history(tmp_path / "run") == history(finished_run)
    whole, resumed = parameters(finished_run, 12), parameters(tmp_path / "run", 12)
    assert_equal_trees(whole, resumed)


# Before them comes one by which the compiler's options are checked.
@pytest.mark.parametrize(("program", "step"), [(2, 0), pytest.param(3, 9, marks=pytest.mark.slow)])
def test_a_stop_does_not_wait_for_the_compiler_where_nothing_would_be_lost(
    shards, tmp_path, program, step
):
    """A signal that comes while the first or the second phase's step is compiled."""
    stopped = [sys.executable, "-c", _STOPPED_AS_IT_COMPILES, f"{program}"]
    done = subprocess.run(
        [*stopped, *command(shards, tmp_path / "run")[3:]], capture_output=True, text=True
    )
    assert done.returncode == RESUME_EXIT_CODE, done.stderr
    assert max(saved_steps(tmp_path / "run" / "checkpoints"), default=0) == step
    assert (STOPPED in done.stderr) == (step == 0)


def test_a_run_stopped_in_a_row_of_skipped_steps_keeps_the_last_good_state(
    shards, tmp_path, monkeypatch
):
    """Whoever reads of NaN presses Ctrl-C: what is ruined by then must not be the newest."""
    config = small_config(shards)
    config.optimizer.learning_rate, config.optimizer.max_skipped = 1e30, 4  # ruined by step 2
    config.checkpoint_every = 1
    with monkeypatch.context() as patch:
        stop_after(4, patch)
        assert not train(config, tmp_path / "run")
    assert max(saved_steps(tmp_path / "run/checkpoints")) == 2
    with pytest.raises(TrainingFailure, match="4 steps in a row were skipped, from step 3 on"):
        train(config, tmp_path / "run")


def assert_equal_trees(left, right) -> None:
    import jax

    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_a_finished_run_is_left_as_it_is(shards, finished_run):
    before = history(finished_run)
    assert train(small_config(shards), finished_run)
    assert history(finished_run) == before


def packing_config(shards: Path, packing: bool) -> Config:
    """Four steps, many of whose sequences are short; without dropout, whose draws go by place."""
    config = small_config(shards)
    config.phases = (Phase(seq_len=64, steps=4, batch_size=16, max_predictions=10),)
    config.model.num_hidden_layers = 1
    config.model.hidden_dropout_prob = config.model.attention_probs_dropout_prob = 0.0
    config.data.short_seq_prob, config.data.packing = 0.8, packing
    config.mesh.tensor = 2
    return config


@pytest.fixture(scope="module")
def packed_run(shards, tmp_path_factory) -> Path:
    """A run on packed batches, of two shapes and fewer rows than sequences."""
    directory, computed = tmp_path_factory.mktemp("packed") / "run", []
    add, config = Window.add, packing_config(shards, packing=True)

    def note(self, step, positions, metrics, outcome):
        computed.append(positions)
        add(self, step, positions, metrics, outcome)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Window, "add", note)
        assert train(config, directory)
    assert len(set(computed)) == 2
    (phase,) = config.phases
    assert max(computed) < phase.batch_size * phase.seq_len
    return directory


def test_a_packed_run_goes_on_bit_for_bit(shards, packed_run, tmp_path, monkeypatch):
    config = packing_config(shards, packing=True)
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        assert not train(config, tmp_path / "run")
    assert train(config, tmp_path / "run")
    assert history(tmp_path / "run") == history(packed_run)
    assert_equal_trees(parameters(packed_run, 4), parameters(tmp_path / "run", 4))


@pytest.mark.slow
def test_a_packed_run_is_the_unpacked_one(shards, packed_run, tmp_path):
    assert train(packing_config(shards, packing=False), tmp_path / "run")
    for loss in ("mlm_loss", "nsp_loss"):
        packed, unpacked = (
            [record[loss] for record in history(run)] for run in (packed_run, tmp_path / "run")
        )
        np.testing.assert_allclose(packed, unpacked, rtol=1e-5)


def test_masks_are_filled_by_a_model_of_few_positions(shards, tmp_path):
    config = small_config(shards)
    config.model.max_position_embeddings = 16
    config.phases = (Phase(seq_len=16, steps=2, batch_size=8, max_predictions=3),)
    assert train(config, tmp_path / "run")
    assert json.loads((tmp_path / "run/predictions.json").read_text())["examples"]


def test_without_next_sentence_prediction(shards, tmp_path):
    config = small_config(shards)
    config.data.next_sentence, config.phases = False, config.phases[:1]
    assert train(config, tmp_path / "run")
    assert not any("nsp_loss" in record for record in read_metrics(tmp_path / "run"))
    assert "NSP loss" not in (tmp_path / "run/report.html").read_text()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: setattr(c.model, "hidden_size", 16), r"config\.model\.hidden_size=32"),
        (lambda c: setattr(c, "seed", 1), r"config\.seed=0, and this one 1"),
        (lambda c: setattr(c.model, "num_attention_heads", 4), r"num_attention_heads=2, .* 4"),
        (lambda c: setattr(c.model, "dtype", "bfloat16"), r"dtype='float32', .* 'bfloat16'"),
        (lambda c: setattr(c.phases[1], "seq_len", 32), r"phases\[1\]\.seq_len=64, .* 32"),
        (lambda c: setattr(c.optimizer, "spike_sigmas", 6.0), r"spike_sigmas=0\.0, .* 6\.0"),
        (lambda c: setattr(c, "phases", c.phases[:1]), "other phases"),
    ],
)
def test_a_workdir_of_another_config_is_refused(shards, finished_run, change, told):
    config = small_config(shards)
    change(config)
    with pytest.raises(UserError, match=told):
        train(config, finished_run)


def test_a_workdir_of_another_corpus_is_refused(finished_run, tmp_path):
    write_books(tmp_path / "books", count=20)
    corpus = Config().corpus
    corpus.source, corpus.heldout_fraction = f"text:{tmp_path}/books/*.txt", 0.2
    prepare(corpus, 120, tmp_path / "shards", workers=1, progress=False)
    config = small_config(tmp_path / "shards")
    stored = json.loads((finished_run / "config.json").read_text())
    config.model.vocab_size = stored["model"]["vocab_size"]
    with pytest.raises(UserError, match=r"its run was trained on the data \w+ of .*shards"):
        train(config, finished_run)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: setattr(c.phases[0], "batch_size", 12), "multiple of 8"),
        (lambda c: setattr(c.mesh, "fsdp", 3), "does not make 8 devices"),
        (lambda c: setattr(c.mesh, "tensor", 4), "num_attention_heads"),
        (lambda c: setattr(c.model, "vocab_size", 9), "config.model.vocab_size=9"),
        (lambda c: setattr(c.data, "dir", "/nowhere/at/all"), "no token shards"),
    ],
)
def test_what_cannot_run_is_told_before_it_starts(shards, tmp_path, change, told):
    config = small_config(shards)
    change(config)
    with pytest.raises(UserError, match=told):
        train(config, tmp_path / "run")


def test_new_tokens_that_given_shards_lack_are_no_secret(shards, tmp_path):
    config = small_config(shards)
    config.corpus.new_tokens = str(tmp_path / "words.txt")
    (tmp_path / "words.txt").write_text(f"{WORDS[0]}\nzebra\n")
    with pytest.raises(UserError, match=r"lacks 'zebra' of config.corpus.new_tokens=.*words.txt"):
        train(config, tmp_path / "run")
    (tmp_path / "words.txt").write_text(f"{WORDS[0]}\n")
    assert with_token_shards(config)[0].data.dir == str(shards)


def test_an_edited_shard_stops_the_run(shards, tmp_path):
    config = small_config(shards)
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    path = copy / "train-00000.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    config.data.dir = str(copy)
    with pytest.raises(UserError, match=r"train-00000\.tokens\.npy"):
        train(config, tmp_path / "run")


def test_shards_of_another_tokenizer_stop_the_run(shards, tmp_path):
    config = small_config(shards)
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    train_tokenizer("wordpiece", iter(WORDS * 20), 60, lowercase=True).save(copy / "tokenizer")
    config.data.dir = str(copy)
    with pytest.raises(UserError, match="not the tokenizer"):
        train(config, tmp_path / "run")


def test_a_full_disk_is_told_and_keeps_what_was_saved(shards, small_disk):
    """A disk that has room for one checkpoint and not for the next."""
    config = dataclasses.replace(small_config(shards), checkpoint_every=1)
    with pytest.raises(UserError, match=r"could not be written|No space"):
        train(config, small_disk("2m") / "run")


def test_the_command_tells_a_mistake_in_one_line(tmp_path):
    command = [sys.executable, "-m", "bert_jax.train", "--config=tiny", "--config.modle.dtype=x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --config.modle.dtype: no such field")
    assert done.stderr.count("\n") == 1
