"""A fine-tuning run as a user starts it: learns, stops, goes on, is refused, and is loaded."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from peer_models import peer, save_peer
from small_finetune import EPOCHS, STEPS_AN_EPOCH, small_config, write_model, write_table
from small_run import LONG, ROOT, Processes, assert_equal_runs, history, parameters

from bert_jax import finetune as command
from bert_jax.convert import convert
from bert_jax.errors import TrainingFailure, UserError
from bert_jax.finetune_data import read_data
from bert_jax.finetuning import finetune
from bert_jax.flags import override
from bert_jax.interop import load_weights
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.registry import load_task
from bert_jax.training import console
from bert_jax.training.console import Progress
from bert_jax.training.metrics import read_metrics
from bert_jax.training.watchdog import Watchdog
from bert_jax.training.window import Window

LAST = STEPS_AN_EPOCH * EPOCHS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a training and a dev table."""
    folder = tmp_path_factory.mktemp("finetune")
    write_model(folder / "model")
    write_table(folder / "train.tsv", 100)
    write_table(folder / "dev.tsv", 40, seed=1)
    write_table(folder / "test.tsv", 20, seed=2)
    (folder / "more").mkdir()
    write_table(folder / "more/train.tsv", 30, seed=3)
    return folder


def config_of(folder: Path, **changes):
    config = small_config(folder / "model", folder / "train.tsv", folder / "dev.tsv")
    return dataclasses.replace(config, **changes)


def scoring_config(folder: Path):
    """With two more sets to score, one of them named as the training file is."""
    config = config_of(folder)
    config.task.test = str(folder / "test.tsv")
    config.task.also = (str(folder / "more/train.tsv"),)
    return config


@pytest.fixture(scope="module")
def finished_run(folder) -> Path:
    config = scoring_config(folder)
    assert finetune(config, folder / "run")
    return folder / "run"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_learns_and_leaves_its_scores(finished_run):
    told = json.loads((finished_run / "metrics.json").read_text())
    assert told["scores"]["dev"]["accuracy"] > 0.9
    assert told["score"] == {"name": "accuracy", "value": told["scores"]["dev"]["accuracy"]}
    assert told["examples"] == {"dev": 40, "test": 20, "train": 30}
    assert told["training_examples"] == 100, "though a scored set is called train"
    said = rows(finished_run / "predictions/dev.jsonl")
    assert np.mean([row["label"] == row["predicted"] for row in said]) == told["score"]["value"]
    evaluations = [r for r in read_metrics(finished_run) if r["kind"] == "eval"]
    assert [r["step"] for r in evaluations] == [STEPS_AN_EPOCH * e for e in range(1, EPOCHS + 1)]
    assert max(r["accuracy"] for r in evaluations) == told["score"]["value"]
    assert told["best_step"] in [r["step"] for r in evaluations]
    classes = told["figures"]["dev"]["classes"]
    assert sum(of_class["support"] for of_class in classes.values()) == 40
    page = (finished_run / "report.html").read_text()
    assert "Confusion matrix, dev" in page
    assert "Confusion matrix, test" in page
    assert "100 training examples" in page


def test_a_packed_run_learns_and_shows_each_step_where_a_step_is_long(
    folder, tmp_path, capsys, monkeypatch
):
    for seconds in ("_SECONDS_BETWEEN_LINES", "_SECONDS_OF_SILENCE"):
        monkeypatch.setattr(console, seconds, 0.0)  # as if a step took longer than that
    config = config_of(folder, packing=True)
    config.log_every = 100
    assert finetune(config, tmp_path / "run")
    told = json.loads((tmp_path / "run/metrics.json").read_text())
    assert told["scores"]["dev"]["accuracy"] > 0.9
    shown = capsys.readouterr()
    assert "in batches of 16, packed" in shown.out
    records = [r["step"] for r in read_metrics(tmp_path / "run") if r["kind"] == "train"]
    assert "step 1/" in shown.err
    assert "scoring: 32 of 40 sequences" in shown.err
    assert 1 not in records


def test_packing_leaves_less_padding(folder):
    tokenizer = load_weights(folder / "model").needed_tokenizer()
    packed, padded = (
        read_data(config_of(folder, packing=packing), tokenizer, 1).computed
        for packing in (True, False)
    )
    assert 0 < packed.padding < padded.padding
    assert packed.saved > padded.saved > 0


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ({"also": ("v2/dev.tsv",)}, r"dev\.tsv and v2/dev\.tsv .* 'dev'"),
        (
            {"dev": "", "also": ("v2/dev.tsv",)},
            r"held out of .*train\.tsv and v2/dev\.tsv .* 'dev'",
        ),
        ({"test": "a/test.tsv", "also": ("b/test.v2.tsv",)}, r"a/test\.tsv and b/test\.v2"),
    ],
)
def test_two_sets_of_one_name_are_refused_in_a_line(folder, sets, told):
    config = config_of(folder)
    config.task = dataclasses.replace(config.task, **sets)
    tokenizer = load_weights(folder / "model").needed_tokenizer()
    with pytest.raises(UserError, match=told) as refused:
        read_data(config, tokenizer, 1)
    assert len(str(refused.value).splitlines()) == 1


def test_a_file_that_is_given_twice_is_one_set(folder):
    config = config_of(folder)
    test = str(folder / "test.tsv")
    config.task = dataclasses.replace(config.task, test=test, also=(test, config.task.dev))
    tokenizer = load_weights(folder / "model").needed_tokenizer()
    assert list(read_data(config, tokenizer, 1).others) == [test, config.task.dev]


def test_questions_are_not_packed(folder):
    task = QuestionAnswering(train=str(folder / "train.tsv"))
    with pytest.raises(UserError, match=r"config\.packing=True: question_answering cannot be"):
        config_of(folder, task=task, packing=True).validate()


def test_the_model_is_that_of_transformers(finished_run):
    """Every probability, from the files that the run leaves."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(finished_run / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished_run / "model")
    for row in rows(finished_run / "predictions/test.jsonl"):
        inputs = tokenizer(row["text"], return_tensors="pt", truncation=True, max_length=24)
        shares = torch.softmax(model(**inputs).logits, -1)[0]
        for index, label in model.config.id2label.items():
            assert abs(shares[index].item() - row["probabilities"][label]) < 1e-5


@pytest.mark.parametrize("place", ["model", ""])
def test_the_model_and_the_run_tell_their_task(finished_run, place):
    """The run's newest checkpoint may be worse than its model, and knows no max_length."""
    weights = load_weights(finished_run / place)
    assert weights.source == str(finished_run / "model")
    task = load_task(Path(weights.source), weights)
    assert (task.kind, task.max_length) == ("classification", 24)
    assert weights.architecture == "BertForSequenceClassification"
    assert weights.head_fields["id2label"] == {"0": "bird", "1": "stone"}


def test_a_run_that_is_converted_keeps_its_task(finished_run, tmp_path):
    convert(load_weights(finished_run), tmp_path / "out", "hf")
    for name in ("task.json", "model.safetensors"):
        ours, theirs = (place / name for place in (tmp_path / "out", finished_run / "model"))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    "stop_at",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        STEPS_AN_EPOCH,
        pytest.param(38, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(folder, finished_run, tmp_path, monkeypatch, stop_at):
    config = scoring_config(folder)
    update = Progress.update

    def stop(self, step, record=None):
        update(self, step, record)
        if step == stop_at:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", stop)
        assert not finetune(config, tmp_path / "run")
    assert not (tmp_path / "run/model").exists()
    with pytest.raises(
        UserError, match=r"is not finished .* bert_jax\.finetune .*--workdir=.*/run"
    ):
        load_weights(tmp_path / "run")
    assert finetune(config, tmp_path / "run")
    assert_equal_runs(tmp_path / "run", finished_run, LAST)
    names = ("metrics.json", "model/model.safetensors", "predictions/dev.jsonl")
    for name in names:
        assert (tmp_path / "run" / name).read_bytes() == (finished_run / name).read_bytes(), name


def test_the_best_state_is_kept_though_the_step_before_it_was_skipped(
    folder, tmp_path, monkeypatch
):
    config = config_of(folder, epochs=2)
    config.optimizer.learning_rate = 1e-30  # the first score is never passed
    settle = Window.settle

    def skipped(self):
        settle(self)
        self.in_row = 1

    monkeypatch.setattr(Window, "settle", skipped)
    assert finetune(config, tmp_path / "run")
    assert (tmp_path / "run/model").exists()


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("steps=100", "set epochs"),
        ("optimizer.warmup_steps=5", "set config.warmup_fraction"),
        ("model.scan_layers=True", "are arrays of their own; leave it out"),
        ("model.hidden_size=128", r"config\.model\.hidden_size=128: the architecture is that of"),
    ],
)
def test_what_is_not_to_be_chosen_is_refused(folder, flag, told):
    config = override(config_of(folder), [f"--config.{flag}"])
    with pytest.raises(UserError, match=told):
        config.validate()


def test_pretraining_weights_are_taken_and_scratch_is_not(folder, tmp_path):
    """After no step at all the encoder is the one given, unless it is to be from scratch."""
    config = config_of(folder, epochs=1)
    config.optimizer.learning_rate = 1e-30
    assert finetune(config, tmp_path / "given")
    assert finetune(dataclasses.replace(config, scratch=True), tmp_path / "scratch")
    theirs = load_weights(folder / "model").tensors
    for run, same in (("given", True), ("scratch", False)):
        ours = load_weights(tmp_path / run / "model").tensors
        name = "bert/encoder/layer_1/output/dense/kernel"
        assert np.allclose(ours[name].read(), theirs[name].read(), atol=1e-6) == same


def test_a_vocabulary_of_fewer_pieces_than_the_model_has_is_told(folder, tmp_path, capsys):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    pieces = (model / "vocab.txt").read_text().split("\n")
    (model / "vocab.txt").write_text("\n".join(pieces[:-4]) + "\n")
    config = config_of(folder, epochs=1, init_from=str(model))
    assert finetune(config, tmp_path / "run")
    told = "note: 3 rows of the embedding have no piece in the vocabulary"
    assert told in capsys.readouterr().out


def test_frozen_layers_stay_bit_for_bit_and_lower_layers_learn_slower(folder, tmp_path):
    before = load_weights(folder / "model").tensors

    def moved(run: str) -> dict[str, float]:
        after = load_weights(tmp_path / run / "model").tensors
        return {
            name: float(np.abs(after[name].read() - before[name].read()).max())
            for name in after
            if name in before
        }

    assert finetune(config_of(folder, epochs=1, freeze_layers=1), tmp_path / "frozen")
    for name, distance in moved("frozen").items():
        fixed = name.startswith(("bert/embeddings", "bert/encoder/layer_0"))
        assert (distance == 0) == fixed, name
    stored = parameters(tmp_path / "frozen", STEPS_AN_EPOCH)
    assert "classifier" in stored
    assert finetune(config_of(folder, epochs=1, layer_decay=0.1), tmp_path / "decayed")
    distances = moved("decayed")
    kernel = "bert/encoder/layer_{}/intermediate/dense/kernel"
    assert distances[kernel.format(0)] < 0.3 * distances[kernel.format(1)]


def test_training_ends_when_dev_gets_no_better(folder, tmp_path):
    config = config_of(folder, epochs=8, patience=1)
    config.optimizer.learning_rate = 1e-30  # nothing ever changes: the first epoch is the best
    assert finetune(config, tmp_path / "run")
    assert len([r for r in read_metrics(tmp_path / "run") if r["kind"] == "eval"]) == 2
    assert json.loads((tmp_path / "run/metrics.json").read_text())["best_step"] == STEPS_AN_EPOCH
    assert finetune(config, tmp_path / "run"), "a finished run is left as it is"


def test_a_run_that_was_killed_as_its_model_was_replaced_goes_on(folder, tmp_path):
    config, run = config_of(folder, epochs=1), tmp_path / "run"
    assert finetune(config, run)
    shutil.copytree(run / "model", run / "model.old")
    assert finetune(config, run)
    assert load_weights(run / "model").architecture == "BertForSequenceClassification"
    assert not (run / "model.old").exists()


def test_the_model_has_the_time_of_a_save_to_be_written(folder, tmp_path, monkeypatch):
    """And not that of the step that was scored last."""
    begun: list[str] = []

    def write(*arguments) -> None:
        begun.append("the model")

    monkeypatch.setattr(Watchdog, "begin", lambda self, what: begun.append(what))
    monkeypatch.setattr("bert_jax.finetuning.write_model", write)
    assert finetune(config_of(folder, epochs=1), tmp_path / "run")
    assert begun[begun.index("the model") - 1] == "save"


@pytest.mark.parametrize("packing", [False, True])
def test_accumulated_micro_batches_give_the_same_training(folder, tmp_path, packing):
    losses = []
    for accumulate in (1, 2):
        config = config_of(folder, epochs=1, packing=packing)
        config.optimizer.accumulate = accumulate
        assert finetune(config, tmp_path / f"{accumulate}")
        losses.append([r["loss"] for r in history(tmp_path / f"{accumulate}") if "grad_norm" in r])
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: setattr(c.task, "max_length", 41), "takes sequences of at most 40 pieces"),
        (lambda c: setattr(c.task, "train", "no.tsv"), r"no\.tsv"),
        (lambda c: setattr(c.task, "text_column", "words"), r"train\.tsv:2: no column 'words'"),
        (lambda c: setattr(c.task, "labels", ("bird", "cat")), r"train\.tsv:\d+: label 'stone'"),
        (lambda c: setattr(c, "init_from", "nowhere/at all"), "no such directory"),
        (lambda c: setattr(c, "freeze_layers", 3), r"config\.freeze_layers=3: .* has 2 layers"),
        (lambda c: setattr(c, "batch_size", 12), r"config\.batch_size=12 .* multiple of 8"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_line(folder, tmp_path, change, told):
    config = config_of(folder)
    config.task = dataclasses.replace(config.task)
    change(config)
    with pytest.raises(UserError, match=told):
        finetune(config, tmp_path / "run")


def test_a_failure_names_no_command_of_pretraining(folder, tmp_path):
    config = config_of(folder)
    config.optimizer.learning_rate, config.optimizer.max_skipped = 1e30, 2
    with pytest.raises(TrainingFailure, match="2 steps in a row were skipped") as told:
        finetune(config, tmp_path / "run")
    assert "bert_jax.batch" not in str(told.value)


def test_a_workdir_of_another_run_is_refused(folder, finished_run):
    with pytest.raises(UserError, match=r"config\.epochs=6, and this one 2"):
        finetune(config_of(folder, epochs=2), finished_run)


def test_a_dev_set_that_has_changed_is_refused(folder, tmp_path):
    """The best epoch so far was picked by the old one. Where the same rows lie does not matter."""
    dev = tmp_path / "dev.tsv"
    shutil.copy(folder / "dev.tsv", dev)
    config = config_of(folder, epochs=1)
    config.task.dev = str(dev)
    assert finetune(config, tmp_path / "run")
    head, first, *others = dev.read_text().splitlines()
    text, label = first.split("\t")
    other = {"bird": "stone", "stone": "bird"}[label]
    dev.write_text("\n".join([head, f"{text}\t{other}", *others]))
    with pytest.raises(UserError, match=r"was trained on .* of .*train\.tsv and .*dev\.tsv, and"):
        finetune(config, tmp_path / "run")
    shutil.copy(folder / "dev.tsv", tmp_path / "elsewhere.tsv")
    tokenizer = load_weights(folder / "model").needed_tokenizer()
    stored = json.loads((tmp_path / "run/data.json").read_text())
    config.task.dev = str(tmp_path / "elsewhere.tsv")
    assert read_data(config, tokenizer, 1).fingerprint == stored["fingerprint"]


def test_a_head_of_another_task_is_begun_anew_and_that_of_the_same_goes_on(
    folder, finished_run, tmp_path, capsys
):
    save_peer(peer("BertForTokenClassification", num_hidden_layers=2), tmp_path / "tagger")
    for source, told in ((tmp_path / "tagger", "at random: "), (finished_run / "model", "begun")):
        config = config_of(folder, epochs=1, init_from=str(source))
        assert finetune(config, tmp_path / f"run-{source.name}")
        begun = next(line for line in capsys.readouterr().out.splitlines() if "begun" in line)
        assert told in begun
        assert ("at random" in begun) == (source.name == "tagger")


def test_seeds_without_a_grid_are_runs_of_the_settings_as_they_are(monkeypatch, tmp_path):
    runs = []
    monkeypatch.setattr("bert_jax.sweep.sweep", lambda *arguments: runs.append(arguments) or True)
    for of_process in ("restart_with_allocator", "exit_at_signals", "ignore_signals"):
        monkeypatch.setattr(command, of_process, lambda: None)
    words = ["--config=classify", "--init_from=x", "--config.task.train=y", "--seeds=3"]
    monkeypatch.setattr(sys, "argv", ["finetune", *words, f"--workdir={tmp_path}"])
    command.main()
    [(_, grid, seeds, directory)] = runs
    assert (grid, seeds, directory) == ({}, 3, tmp_path)


def test_a_sweep_of_several_processes_is_refused(monkeypatch, tmp_path):
    """Before its first run, which they could train together: a second they could not begin."""
    monkeypatch.setattr("bert_jax.sweep.sweep", lambda *arguments: True)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    for of_process in ("restart_with_allocator", "exit_at_signals", "ignore_signals"):
        monkeypatch.setattr(command, of_process, lambda: None)
    words = ["--config=classify", "--init_from=x", "--config.task.train=y", "--seeds=3"]
    monkeypatch.setattr(sys, "argv", ["finetune", *words, f"--workdir={tmp_path}"])
    with pytest.raises(UserError, match="on one process: leave out --distributed and JAX_NUM_PROC"):
        command.main()


def test_the_command_says_what_it_wants():
    for arguments, told in (
        (["--config=classify"], "config.init_from is empty"),
        (["--config=nothing"], "--config=nothing: no such recipe; there are "),
        (["--config=classify", "--init_from=x"], "config.task.train is empty"),
        (["--config=classify", "--config.epoch=2"], "did you mean epochs?"),
        (
            ["--config=classify", "--init_from=x", "--config.task.train=y", "--sweep", "a"],
            "--sweep",
        ),
    ):
        words = [sys.executable, "-m", "bert_jax.finetune", *arguments]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_two_processes_train_and_score_as_one(folder, tmp_path):
    """Two devices of one process, or of two that hold half of the parameters each; packed."""
    command = [
        *(sys.executable, "-m", "bert_jax.finetune", "--config=classify", "--config.mesh.fsdp=2"),
        *(f"--init_from={folder}/model", f"--config.task.train={folder}/train.tsv"),
        *(f"--config.task.dev={folder}/dev.tsv", "--config.task.max_length=24"),
        *("--config.batch_size=16", "--config.epochs=2", "--config.log_every=1"),
        "--config.packing=True",
    ]
    for count in (1, 2):
        commands = [[*command, f"--workdir={tmp_path}/run{count}"]] * count
        with Processes(tmp_path / f"logs{count}", commands, devices=2 // count) as processes:
            assert processes.wait(LONG) == [0] * count, processes.output(0)
    for ours, theirs in zip(*(history(tmp_path / f"run{n}") for n in (1, 2)), strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert theirs[name] == (value if name == "kind" else pytest.approx(value, rel=1e-5))
    said = [rows(tmp_path / f"run{n}/predictions/dev.jsonl") for n in (1, 2)]
    for ours, theirs in zip(*said, strict=True):
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["model in --init_from", "set of examples"])
def test_processes_that_read_other_files_of_one_name_are_told(folder, tmp_path, what):
    """As hosts may: of other weights, parameters would differ; of another test set, batches."""
    commands = []
    for index in range(2):
        host = tmp_path / f"host{index}"
        shutil.copytree(folder, host)
        flags = [f"--config.task.{name}={name}.tsv" for name in ("train", "dev", "test")]
        flags += ["--config.task.max_length=24", "--config.batch_size=16", "--config.epochs=1"]
        flags += [f"--workdir={tmp_path}/run", "--init_from=model", "--config=classify"]
        there = f'cd "$0" && PYTHONPATH={ROOT} exec "$@"'
        run = [sys.executable, "-m", "bert_jax.finetune", *flags]
        commands.append(["bash", "-c", there, str(host), *run])
    if what == "set of examples":
        write_table(tmp_path / "host1/test.tsv", 16, seed=2)
    else:
        file = tmp_path / "host1/model/model.safetensors"
        tensors = safetensors.numpy.load_file(file)
        tensors["bert.pooler.dense.bias"][3] += 1
        safetensors.numpy.save_file(tensors, file)
    with Processes(tmp_path / "logs", commands) as processes:
        assert processes.wait(LONG) == [2, 2], processes.output(0)
        for index in range(2):
            told = f"error: process 1 of 2 has another {what} than process 0"
            assert told in processes.output(index)
