"""The report of a fine-tuning run: scores, curves, and what its predictions show, in one page."""

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.reporting.findings import Findings, Row
from bert_jax.reporting.kinds import findings
from bert_jax.training.clock import account
from bert_jax.training.console import duration
from bert_jax.training.metrics import ENVIRONMENT_FILE, read_metrics
from bert_jax.training.page import charts, details, facts, page, section, shown, table
from bert_jax.training.run_directory import CONFIG_FILE
from bert_jax.training.run_files import read_json
from bert_jax.training.run_sections import (
    cell,
    environment_facts,
    last_step,
    metric_chart,
    number,
    of_kind,
    time_section,
)

PREDICTIONS, SCORES = "predictions", "metrics.json"
_MAX_LINE_BYTES = 1 << 24
_MOST_EXAMPLES = 100_000
_MOST_SETS = 10
_MOST_SCORES = 30
# What a record holds beside the task's own figures.
_NOT_OF_TASK = {"time", "kind", "step", "phase", "skipped"}
_SPEEDS: dict[str, tuple[str, dict[str, Any]]] = {
    "learning_rate": ("learning rate", {}),
    "grad_norm": ("gradient norm, before clipping", {}),
    "tokens_per_second": ("tokens per second", {"from_zero": True}),
    "mfu": ("model FLOPs utilisation (MFU)", {"percentages": True, "from_zero": True}),
    "input_wait": ("waiting for input", {"percentages": True, "from_zero": True}),
}


@dataclass(frozen=True)
class Set:
    """Predictions of a file: its name, how many there are, and what they show, if anything.

    What they show is that of the first 100,000.
    """

    name: str
    examples: int
    findings: Findings | None


@dataclass(frozen=True)
class FinetuneRun:
    """What the directory of a fine-tuning run holds, as far as the run has come."""

    name: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    told: dict[str, Any]
    sets: list[Set]

    def scores(self, name: str) -> Mapping[str, Any]:
        """The final scores of a set."""
        return _object(_object(self.told.get("scores")).get(name))

    @cached_property
    def baseline(self) -> Mapping[str, float]:
        """Scores on the first set, dev, of what needs no model: always `trivial`."""
        found = self.sets[0].findings if self.sets else None
        return found.baseline() if found else {}

    @property
    def trivial(self) -> str:
        """What the baseline always says."""
        found = self.sets[0].findings if self.sets else None
        return found.trivial if found else ""

    @property
    def boundaries(self) -> list[int]:
        """Steps of the last evaluations of epochs: where they end, but for one that goes on."""
        evaluations = of_kind(self.records, "eval")
        return sorted({number(each.get("phase")): each["step"] for each in evaluations}.values())


def read_run(directory: Path) -> FinetuneRun:
    """Read and check the directory of a fine-tuning run.

    Raises:
      UserError: one of its files is not what a run writes.
    """
    settings = read_json(directory / CONFIG_FILE) or {}
    told = read_json(directory / SCORES) or {}
    counts = _object(told.get("examples"))
    paths = (directory / PREDICTIONS).glob("*.jsonl")
    # Dev first, for it is what the best model is picked by.
    ordered = sorted(paths, key=lambda path: (path.stem != "dev", path.name))
    return FinetuneRun(
        name=directory.resolve().name,
        settings=settings,
        environment=read_json(directory / ENVIRONMENT_FILE) or {},
        records=read_metrics(directory),
        told=told,
        sets=[_read_set(path, counts.get(path.stem)) for path in ordered[:_MOST_SETS]],
    )


def _read_set(path: Path, told: Any) -> Set:
    """A set of as many examples as the run told, for not all of them need be read."""
    rows = read_predictions(path)
    count = number(told)
    return Set(path.stem, len(rows) if count is None else int(count), findings(rows, str(path)))


def read_predictions(path: Path) -> list[Row]:
    """The first 100,000 predictions of a file.

    Raises:
      UserError: it cannot be read, or a line is no JSON object.
    """
    rows: list[Row] = []
    try:
        if not path.is_file():  # to read a named pipe is to wait for its writer
            raise UserError(f"{path}: not a regular file; move it away")
        with path.open("rb") as file:
            while len(rows) < _MOST_EXAMPLES and (line := file.readline(_MAX_LINE_BYTES)):
                rows.append(_prediction(line, f"{path}:{len(rows) + 1}"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    return rows


def _prediction(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UserError(f"{where}: not a prediction; restore the file or remove it")
    return row


def render(run: FinetuneRun) -> str:
    """The report as an HTML page."""
    body = "\n".join(
        [
            _heading(run),
            _results(run),
            *(_set_sections(each, first=not index) for index, each in enumerate(run.sets)),
            _curves(run),
            time_section(run.records),
            details("Settings", run.settings),
            details("Environment", run.environment),
        ]
    )
    return page(f"{run.name}: fine-tuning report", body)


def _heading(run: FinetuneRun) -> str:
    settings, told = run.settings, run.told
    model = _object(settings.get("model"))
    step, steps = last_step(run.records), number(settings.get("steps"))
    layers, width = (cell(model.get(name), ".0f") for name in ("num_hidden_layers", "hidden_size"))
    begun = "from scratch, in the architecture of" if settings.get("scratch") is True else "from"
    seconds = sum(account(of_kind(run.records, "time")).values())
    texts = [
        f"{settings.get('task_kind')}".replace("_", " "),
        f"{begun} {settings.get('init_from')}",
        f"{layers} layers, {width} wide",
        f"{step:,} of {cell(steps, ',.0f')} steps",
        *_amounts(
            told,
            ("best_step", "best after step {:,.0f}"),
            ("training_examples", "{:,.0f} training examples"),
            ("padding", "{:.1%} of what is computed is padding"),
            ("padding_saved", "{:.1%} of what padding to the longest would compute is saved"),
        ),
    ]
    texts += environment_facts(run.environment)
    if seconds:
        texts.append(duration(seconds))
    return f"<h1>{html.escape(run.name)}</h1>\n{facts(texts)}"


def _amounts(content: Any, *wanted: tuple[str, str]) -> list[str]:
    """Texts of those values of an object that are numbers."""
    values = [(text, number(_object(content).get(name))) for name, text in wanted]
    return [text.format(value) for text, value in values if value is not None]


def _results(run: FinetuneRun) -> str:
    """Final scores of all sets; those of dev beside what needs no model."""
    scored = [each for each in run.sets if run.scores(each.name)]
    if not scored:
        return "<p>The run has no final scores yet; its curves show how far it has come.</p>"
    first, baseline = scored[0], run.baseline
    header = ["", first.name, *(["trivial baseline"] if baseline else [])]
    header += [each.name for each in scored[1:]]
    chosen = _object(run.told.get("score")).get("name")
    rows = []
    for name in list(dict.fromkeys(name for each in scored for name in run.scores(each.name))):
        values = [run.scores(each.name).get(name) for each in scored]
        if baseline:
            values.insert(1, baseline.get(name))
        title = shown(_title(name))
        title = f"<b>{title}</b>" if name == chosen else title
        rows.append([title, *("" if value is None else cell(value, ".4f") for value in values)])
    counts = [f"{each.examples:,}" for each in scored]
    if baseline:
        counts.insert(1, "")
    rows = [*rows[:_MOST_SCORES], ["examples", *counts]]
    notes = ["In bold the score that picked the best model, on the first of the sets."]
    if baseline:
        notes.append(f"The baseline of {first.name}: always {run.trivial}.")
    note = f"<p>{shown(' '.join(notes))}</p>"
    return section("Results", table([shown(name) for name in header], rows, "results") + note)


def _set_sections(each: Set, first: bool) -> str:
    """What the predictions of a set show; those of the first set stand open."""
    if each.findings is None:
        return ""
    sections = "\n".join(
        section(f"{title}, {shown(each.name)}", content)
        for title, content in each.findings.sections(each.name)
        if content
    )
    if each.examples > _MOST_EXAMPLES:
        sections = f"<p>Of the first {_MOST_EXAMPLES:,} examples of a larger set.</p>{sections}"
    if first:
        return sections
    summary = f"What the predictions of {shown(each.name)} show"
    return f"<details><summary>{summary}</summary>{sections}</details>"


def _curves(run: FinetuneRun) -> str:
    """A chart for each figure that was logged: the task's own first."""
    kept = [*of_kind(run.records, "train"), *of_kind(run.records, "eval")]
    names = dict.fromkeys(name for record in kept for name in record)
    own = [name for name in names if name not in _NOT_OF_TASK and name not in _SPEEDS]
    # A name that is no plain word is none that a task gives to its scores.
    plain = [name for name in own if re.fullmatch(r"[A-Za-z][A-Za-z0-9_ -]{0,60}", name)]
    wanted = {name: (_title(name), {}) for name in plain[:_MOST_SCORES]} | _SPEEDS
    drawings = [
        metric_chart(
            run.records,
            title,
            name,
            heldout="dev",
            level=(run.trivial, [{"step": 0, **run.baseline}]),
            boundaries=run.boundaries[:-1],
            **style,
        )
        for name, (title, style) in wanted.items()
    ]
    if not any(drawings):
        return ""
    note = "Over optimizer steps; a dotted vertical line is where the next epoch begins."
    return section("Curves", f"<p>{note}</p>{charts(drawings)}")


def _title(name: str) -> str:
    """The name of a score as a person reads it."""
    return name.replace("_", " ")


def _object(value: Any) -> Mapping[str, Any]:
    """`value` where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
