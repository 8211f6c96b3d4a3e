"""A grid of fine-tuning runs with several seeds each, one after the other, and their table.

The paper chose among its grid by the dev score (Devlin et al., 2019, A.3); small training sets
vary so much with the seed that means over seeds are what can be compared.
"""

import dataclasses
import hashlib
import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_report import SCORES
from bert_jax.flags import override
from bert_jax.interop import load_weights
from bert_jax.interop.runs import MODEL
from bert_jax.report import REPORT_FILE, write_report
from bert_jax.training.run_files import read_json, write_json
from bert_jax.training.stopping import STOPPED, StopRequest

SWEEP = "sweep.json"
PAPER_GRID = {
    "batch_size": ("16", "32"),
    "optimizer.learning_rate": ("5e-5", "3e-5", "2e-5"),
    "epochs": ("2", "3", "4"),
}


class Trial(NamedTuple):
    """A run of the sweep: the values that it changes, its seed, and its directory."""

    values: dict[str, str]
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        """Its values, as a person reads them."""
        values = [f"{field.split('.')[-1]}={value}" for field, value in self.values.items()]
        return ", ".join(values) or "as given"

    @property
    def done(self) -> bool:
        """Whether it has its scores."""
        return (self.directory / SCORES).exists()


class Setting(NamedTuple):
    """The scores of the runs that differ in their seed alone."""

    name: str
    scores: list[float]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float:
        """Over the seeds, of a sample; 0 for one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0


def parse_grid(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values of each field, from FIELD=VALUE,VALUE,...; the paper's grid from nothing.

    Raises:
      UserError: an argument without values, a field or one of its values twice, or a field that
        makes no runs to compare.
    """
    grid: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        field, equals, listed = argument.removeprefix("--config.").partition("=")
        values = tuple(listed.split(","))
        # Runs of a value that is there twice would be counted as seeds of one setting.
        once = field not in grid and len(set(values)) == len(values)
        if not (equals and all(values) and once):
            raise UserError(
                f"--sweep {argument}: give each field once, with its values, each once, as "
                "optimizer.learning_rate=5e-5,3e-5"
            )
        if field == "seed":
            raise UserError("--sweep seed: give the number of seeds by --seeds")
        if field == "task.score":
            raise UserError("--sweep task.score: it is what runs are compared by; give it once")
        grid[field] = values
    return grid or dict(PAPER_GRID)


def sweep(
    config: FinetuneConfig, grid: Mapping[str, Sequence[str]], seeds: int, directory: Path
) -> bool:
    """Run the grid, each point with `seeds` seeds from `config.seed` on, and print the table.

    Runs that are done are not run again. A run's checkpoints are removed when it is done, and of
    the models only that of the best run stays.

    Args:
      config: what the runs have in common.
      grid: values of fields, by their dotted names.
      seeds: runs a point of the grid, at least 1.
      directory: of the sweep; a folder in it for each run.

    Returns:
      Whether all are done; False where a signal stopped it, and it can be resumed.

    Raises:
      UserError: a field or value that does not exist; another sweep is in the directory, or one
        of more seeds, other data or another model to begin with; these change meanwhile; and as
        `finetune`.
    """
    from bert_jax.finetuning import finetune

    trials = _trials(grid, range(config.seed, config.seed + seeds), directory)
    configs = [_configured(config, trial) for trial in trials]
    _check_weights(trials, configs)
    begun = _open(directory, config, grid, configs)
    _check_none_left_out(directory, trials)
    best: tuple[float, Trial] | None = None
    scores: dict[str, list[float]] = {}
    # One for all runs: a signal that comes as a run ends, or between two, stops the sweep too.
    with StopRequest() as stop:
        for number, (trial, of_trial) in enumerate(zip(trials, configs, strict=True), 1):
            if stop.pending:
                print(STOPPED, file=sys.stderr)
                return False
            print(f"run {number} of {len(trials)}: {trial.name}, seed {trial.seed}")
            if not trial.done:
                _check_same_data(directory, begun["data"], _digests(configs))
                if not finetune(of_trial, trial.directory, stop=stop):
                    return False
            if not (trial.directory / REPORT_FILE).exists():  # it was killed before
                write_report(trial.directory)
            score = _score(trial.directory)
            shutil.rmtree(trial.directory / "checkpoints", ignore_errors=True)
            scores.setdefault(trial.name, []).append(score)
            if best is None or score > best[0]:
                if best:
                    shutil.rmtree(best[1].directory / MODEL, ignore_errors=True)
                best = score, trial
            else:
                shutil.rmtree(trial.directory / MODEL, ignore_errors=True)
            _write(directory, begun, config.task.score, scores, best)
    assert best
    print(text_table(config.task.score, [Setting(*item) for item in scores.items()]))
    print(f"best run: {best[1].name}, seed {best[1].seed}: {best[0]:.4f}")
    print(f"model: {best[1].directory / MODEL}")
    return True


def text_table(score: str, settings: Sequence[Setting]) -> str:
    """The settings by their mean score, the best first."""
    width = max(len("setting"), *(len(setting.name) for setting in settings))
    lines = [f"{'setting':<{width}}  {score}: mean  deviation  best    runs"]
    gap = " " * len(score)
    lines += [
        f"{setting.name:<{width}}  {gap}{setting.mean:6.4f}  {setting.deviation:9.4f}  "
        f"{max(setting.scores):6.4f}  {len(setting.scores):4}"
        for setting in sorted(settings, key=lambda setting: -setting.mean)
    ]
    return "\n".join(lines)


def _trials(grid: Mapping[str, Sequence[str]], seeds: range, directory: Path) -> list[Trial]:
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [
        Trial(values, seed, directory / f"{number:03}-seed{seed}")
        for number, values in enumerate(points)
        for seed in seeds
    ]


def _configured(config: FinetuneConfig, trial: Trial) -> FinetuneConfig:
    changes = [f"--config.{field}={value}" for field, value in trial.values.items()]
    changed = override(config, [*changes, f"--config.seed={trial.seed}"])
    changed.validate()
    return changed


def _check_weights(trials: Sequence[Trial], configs: Sequence[FinetuneConfig]) -> None:
    """Check that what each run will begin with is there: its turn may come after hours of others.

    Raises:
      UserError: as `load_weights`.
    """
    waiting = (each for trial, each in zip(trials, configs, strict=True) if not trial.done)
    for source in sorted({each.init_from for each in waiting}):
        load_weights(source)


def _open(
    directory: Path,
    config: FinetuneConfig,
    grid: Mapping[str, Sequence[str]],
    configs: Sequence[FinetuneConfig],
) -> dict[str, Any]:
    """Begin a sweep in its directory, or check that it is this one's.

    Returns:
      What tells this sweep from others: its settings, and digests of its data and its models.
    """
    stored = read_json(directory / SWEEP)
    identity, digests = _identity(config, grid), _digests(configs)
    if stored is not None and stored.get("sweep") != identity:
        raise UserError(
            f"--workdir={directory}: holds another sweep; choose another --workdir, or give the "
            "same settings to go on with it"
        )
    stored = stored or {}
    known = stored.get("data")
    if isinstance(known, dict):  # an earlier version did not tell them
        _check_same_data(directory, known, digests)
        digests |= known
    begun = {"sweep": identity, "data": digests}
    _store(directory, stored | begun)
    return begun


def _store(directory: Path, content: dict[str, Any]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / SWEEP, content)
    except OSError as error:
        raise UserError(f"--workdir={directory}: {error.strerror}") from error


def _digests(configs: Sequence[FinetuneConfig]) -> dict[str, str]:
    """Of the files that are trained on and scored, and of the models that runs begin with.

    What TFDS has does not change.
    """
    digests = {}
    for path in sorted({path for each in configs for path in (each.task.train, each.task.dev)}):
        # A file that is missing is the task's to tell, and only where it is read again.
        with suppress(OSError):
            if Path(path).is_file():
                with Path(path).open("rb") as file:
                    digests[path] = hashlib.file_digest(file, hashlib.blake2b).hexdigest()
    for source in sorted({each.init_from for each in configs}):
        with suppress(UserError):  # likewise
            digests[source] = load_weights(source).digest()
    return digests


def _check_same_data(directory: Path, known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse data or a model that have changed: scores of runs with others do not compare."""
    changed = [path for path, digest in now.items() if known.get(path, digest) != digest]
    if changed:
        raise UserError(
            f"--workdir={directory}: {changed[0]} has changed since the sweep began; restore it to "
            "go on, or choose another --workdir"
        )


def _check_none_left_out(directory: Path, trials: Sequence[Trial]) -> None:
    """Refuse fewer seeds than were run: the one model that is kept may be of a run left out."""
    done = {path.parent for path in directory.glob(f"*-seed*/{SCORES}")}
    if left_out := sorted(done - {trial.directory for trial in trials}):
        raise UserError(
            f"--seeds: {left_out[0]} is done and would be left out; give as many seeds as before, "
            "or choose another --workdir"
        )


def _identity(config: FinetuneConfig, grid: Mapping[str, Sequence[str]]) -> dict:
    content = {"config": dataclasses.asdict(config), "grid": dict(grid)}
    return json.loads(json.dumps(content))


def _score(directory: Path) -> float:
    told = read_json(directory / SCORES) or {}
    try:
        return float(told["score"]["value"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{directory / SCORES}: has no score; remove {directory}") from error


def _write(
    directory: Path,
    begun: Mapping[str, Any],
    score: str,
    scores: Mapping[str, list[float]],
    best: tuple[float, Trial],
) -> None:
    settings = [Setting(*item) for item in scores.items()]
    _store(
        directory,
        {
            **begun,
            "score": score,
            "settings": [
                {"name": s.name, "mean": s.mean, "deviation": s.deviation, "scores": s.scores}
                for s in settings
            ],
            "best": {"run": str(best[1].directory), "score": best[0]},
        },
    )
