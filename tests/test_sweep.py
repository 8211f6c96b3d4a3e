"""A sweep runs all points of a grid, goes on where it was stopped, and keeps the best model."""

import dataclasses
import json
import re
import signal
from pathlib import Path

import pytest
from small_finetune import small_config, write_model, write_table

from bert_jax import finetuning
from bert_jax import sweep as sweep_module
from bert_jax.errors import UserError
from bert_jax.finetune_results import write_results
from bert_jax.interop import load_weights
from bert_jax.sweep import PAPER_GRID, Setting, _trials, parse_grid, sweep, text_table
from bert_jax.training.console import Progress
from bert_jax.training.stopping import STOPPED


def test_a_grid_is_read_from_the_command_line():
    assert parse_grid([]) == PAPER_GRID
    assert parse_grid(["epochs=2,3", "--config.optimizer.learning_rate=1e-4"]) == {
        "epochs": ("2", "3"),
        "optimizer.learning_rate": ("1e-4",),
    }


@pytest.mark.parametrize(
    "arguments", [["epochs"], ["epochs=1,,2"], ["epochs=1", "epochs=2"], ["epochs=2,3,2"]]
)
def test_a_grid_without_values_is_refused(arguments):
    with pytest.raises(UserError, match="give each field once, with its values"):
        parse_grid(arguments)


def test_seeds_are_a_number():
    with pytest.raises(UserError, match="by --seeds"):
        parse_grid(["seed=1,2"])
    with pytest.raises(UserError, match=r"task\.score: it is what runs are compared by"):
        parse_grid(["task.score=accuracy,macro_f1"])


def test_the_table_has_means_and_deviations_the_best_first():
    table = text_table("f1", [Setting("epochs=2", [0.5, 0.6]), Setting("epochs=3", [0.7, 0.9])])
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows == [
        ["epochs=3", "0.8000", "0.1414", "0.9000", "2"],
        ["epochs=2", "0.5500", "0.0707", "0.6000", "2"],
    ]


def test_runs_of_no_grid_are_of_the_settings_as_given(tmp_path):
    assert [trial.name for trial in _trials({}, range(2), tmp_path)] == ["as given"] * 2


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A run of a step."""
    folder = tmp_path_factory.mktemp("sweep")
    write_model(folder / "model")
    tables = (write_table(folder / f"{name}.tsv", 16) for name in ("train", "dev"))
    return dataclasses.replace(small_config(folder / "model", *tables), epochs=1)


GRID = {"epochs": ("1",)}


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The directory of a sweep of two seeds."""
    directory = tmp_path_factory.mktemp("finished") / "sweep"
    assert sweep(config, GRID, 2, directory)
    return directory


@pytest.mark.parametrize(
    ("name", "told"), [("file", "File exists"), ("file/sweep", "Not a directory")]
)
def test_a_directory_that_cannot_be_made_is_told(config, tmp_path, name, told):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^--workdir={tmp_path / name}: {told}$"):
        sweep(config, {}, 1, tmp_path / name)


def test_a_run_that_was_killed_before_its_report_gets_one(config, finished):
    for report in finished.glob("*/report.html"):
        report.unlink()
    assert sweep(config, GRID, 2, finished)
    assert len(list(finished.glob("*/report.html"))) == 2


def test_fewer_seeds_than_were_run_are_refused(config, finished):
    before = (finished / "sweep.json").read_bytes()
    with pytest.raises(UserError, match=r"--seeds: .*/000-seed1 is done and would be left out"):
        sweep(config, GRID, 1, finished)
    assert (finished / "sweep.json").read_bytes() == before
    assert (Path(json.loads(before)["best"]["run"]) / "model").exists()


@pytest.mark.parametrize("name", ["train", "dev"])
def test_data_that_have_changed_since_are_refused(config, finished, name):
    path = Path(getattr(config.task, name))
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1])
    with pytest.raises(UserError, match=rf"sweep: {re.escape(str(path))} has changed since"):
        sweep(config, GRID, 3, finished)
    path.write_text(text)
    assert not (finished / "000-seed2").exists()
    assert sweep(config, GRID, 2, finished)


def test_another_model_of_the_same_name_is_refused(config, finished):
    path = Path(config.init_from) / "model.safetensors"
    weights = path.read_bytes()
    path.write_bytes(weights[:-4] + b"\0\0\0\1")  # a weight
    with pytest.raises(UserError, match=rf"sweep: {re.escape(config.init_from)} has changed since"):
        sweep(config, GRID, 3, finished)
    assert not (finished / "000-seed2").exists()
    path.unlink()  # not needed where all is done
    assert sweep(config, GRID, 2, finished)
    path.write_bytes(weights)
    assert sweep(config, GRID, 2, finished)


def test_a_model_that_is_not_there_is_told_before_any_run(config, tmp_path):
    """And nothing is begun: the grid with the right name is no other sweep."""
    grid = {"init_from": (config.init_from, str(tmp_path / "typo"))}
    with pytest.raises(UserError, match="typo: no such"):
        sweep(config, grid, 1, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_data_that_change_between_two_runs_are_refused(config, tmp_path, monkeypatch):
    ran = []

    def finetune(of_trial, directory, stop):
        ran.append(directory.name)
        directory.mkdir()
        (directory / "metrics.json").write_text('{"score": {"value": 1}}')
        write_table(Path(of_trial.task.train), 17)
        return True

    config = dataclasses.replace(config, task=dataclasses.replace(config.task))
    config.task.train = str(write_table(tmp_path / "train.tsv", 16))
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "finetune", finetune)
        patch.setattr(sweep_module, "write_report", lambda directory: None)
        with pytest.raises(UserError, match=r"train\.tsv has changed since the sweep began"):
            sweep(config, GRID, 2, tmp_path / "sweep")
    assert ran == ["000-seed0"]


def test_a_signal_as_a_run_ends_stops_the_sweep(config, tmp_path, monkeypatch, capsys):
    def stop(*arguments):
        write_results(*arguments)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "write_results", stop)
        assert not sweep(config, GRID, 2, tmp_path / "sweep")
    assert [path.parent.name for path in tmp_path.glob("sweep/*/metrics.json")] == ["000-seed0"]
    assert capsys.readouterr().err.splitlines()[-1] == STOPPED
    assert sweep(config, GRID, 2, tmp_path / "sweep")
    assert len(list(tmp_path.glob("sweep/*/metrics.json"))) == 2


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_and_keeps_the_best_model(tmp_path, monkeypatch, capsys):
    write_model(tmp_path / "model")
    config = small_config(
        tmp_path / "model",
        write_table(tmp_path / "train.tsv", 60),
        write_table(tmp_path / "dev.tsv", 30, seed=1),
    )
    grid = {"optimizer.learning_rate": ("1e-30", "1e-2"), "epochs": ("5",)}
    directory, update, updates = tmp_path / "sweep", Progress.update, []

    def stop(self, step, record=None):
        update(self, step, record)
        updates.append(step)
        if len(updates) == 23:  # in the second run
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", stop)
        assert not sweep(config, grid, 2, directory)
    done = (directory / "000-seed0/metrics.json").stat().st_mtime_ns
    assert sweep(config, grid, 2, directory)
    assert (directory / "000-seed0/metrics.json").stat().st_mtime_ns == done

    told = json.loads((directory / "sweep.json").read_text())
    assert [len(setting["scores"]) for setting in told["settings"]] == [2, 2]
    best = max(told["settings"], key=lambda setting: setting["mean"])
    assert best["name"] == "learning_rate=1e-2, epochs=5"
    models = list(directory.glob("*/model"))
    assert [str(path.parent) for path in models] == [told["best"]["run"]]
    assert load_weights(models[0]).architecture == "BertForSequenceClassification"
    assert not list(directory.glob("*/checkpoints"))
    assert f"model: {models[0]}" in capsys.readouterr().out

    with pytest.raises(UserError, match="holds another sweep"):
        sweep(config, {"epochs": ("1",)}, 2, directory)
    with pytest.raises(UserError, match=r"no such field.*did you mean epochs"):
        sweep(config, {"epoch": ("1",)}, 1, tmp_path / "other")
