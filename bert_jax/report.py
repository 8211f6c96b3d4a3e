"""A run's report: one HTML file with its figures, curves, settings and predictions.

It stands alone (no scripts, nothing loaded from elsewhere) and can be made while the run goes on.
"""

import dataclasses
import html
import statistics
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from bert_jax.config import BertConfig, Phase
from bert_jax.errors import UserError, run_main
from bert_jax.files import replace_file
from bert_jax.flags import Parser
from bert_jax.training.clock import account
from bert_jax.training.console import duration, figure
from bert_jax.training.fill_mask_section import are_examples, fill_mask_section
from bert_jax.training.flops import run_flops
from bert_jax.training.metrics import ENVIRONMENT_FILE, read_metrics
from bert_jax.training.page import charts, details, facts, page, section, table
from bert_jax.training.run_directory import is_of_finetuning, read_config
from bert_jax.training.run_files import read_json
from bert_jax.training.run_sections import (
    Records,
    baseline_of,
    cell,
    environment_facts,
    last_step,
    metric_chart,
    number,
    of_kind,
    time_section,
)

REPORT_FILE = "report.html"
PREDICTIONS_FILE = "predictions.json"
_MOST_EXAMPLES = 100
# Title, name in a record, and how it is drawn.
_CHARTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("MLM loss", "mlm_loss", {}),
    ("NSP loss", "nsp_loss", {}),
    ("MLM accuracy", "mlm_accuracy", {"percentages": True, "trivial": "most frequent token"}),
    ("NSP accuracy", "nsp_accuracy", {"percentages": True, "trivial": "most frequent label"}),
    ("Learning rate", "learning_rate", {}),
    ("Gradient norm, before clipping", "grad_norm", {}),
    ("Tokens per second", "tokens_per_second", {"from_zero": True}),
    ("Model FLOPs utilisation (MFU)", "mfu", {"percentages": True, "from_zero": True}),
    ("Time spent waiting for input", "input_wait", {"percentages": True, "from_zero": True}),
)
_HELP = """\
Write the report of a run, of pretraining or fine-tuning: figures, curves, settings and predictions
in one HTML file that stands alone. A run that is still going on can be reported on too.

  python -m bert_jax.report runs/books                     writes runs/books/report.html
  python -m bert_jax.report runs/books --output=books.html
"""


def main() -> None:
    """The command `python -m bert_jax.report`."""
    parser = Parser(prog="python -m bert_jax.report", description=_HELP)
    parser.add_argument("run", type=Path, help="directory of the run (--workdir of train)")
    parser.add_argument("--output", type=Path, help="file to write; RUN/report.html by default")
    arguments = parser.parse_args()
    print(write_report(arguments.run, arguments.output))


def write_report(run_directory: Path, output: Path | None = None) -> Path:
    """Write the report of a run, finished or not, and return its path.

    Args:
      run_directory: what `train` or `finetune` wrote: config.json and, as far as the run has
        come, metrics.jsonl, environment.json and predictions.
      output: file to write; `report.html` in the run directory by default.

    Raises:
      UserError: the directory is no run, or one of its files is not what a run writes.
    """
    path = output or run_directory / REPORT_FILE
    try:
        # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
        content = _page(run_directory).encode(errors="replace")
        if output:  # it may be a link or a pipe
            output.write_bytes(content)
        else:
            replace_file(path, content)
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise UserError(f"{run_directory}: a file of the run is nested too deeply") from error
    return path


def _page(run_directory: Path) -> str:
    if not is_of_finetuning(run_directory):
        return render(read_run(run_directory))
    # Only now, for it takes seconds: --help and mistakes are answered at once.
    from bert_jax import finetune_report

    return finetune_report.render(finetune_report.read_run(run_directory))


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run directory holds; `records` as `read_metrics` gives them."""

    name: str
    settings: dict[str, Any]
    model: BertConfig
    phases: tuple[Phase, ...]
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    examples: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        """Records of one kind, in order."""
        return of_kind(self.records, kind)

    @property
    def step(self) -> int:
        """The last step that is known to be done."""
        return last_step(self.records)

    @property
    def at_most(self) -> str:
        """What goes before amounts of all rows: where they are packed, a step takes fewer."""
        return "at most " if self.settings["data"]["packing"] else ""

    @property
    def boundaries(self) -> list[int]:
        """Steps after which each phase but the last ends."""
        return list(accumulate(phase.steps for phase in self.phases))[:-1]


def read_run(directory: Path) -> Run:
    """Read and check a run directory.

    Raises:
      UserError: as `write_report`.
    """
    config = read_config(directory)
    examples = (read_json(directory / PREDICTIONS_FILE) or {}).get("examples", [])
    if not are_examples(examples):
        raise UserError(f"{directory / PREDICTIONS_FILE}: not a run's predictions; remove it")
    return Run(
        name=directory.resolve().name,
        settings=dataclasses.asdict(config),
        model=config.model,
        phases=config.phases,
        environment=read_json(directory / ENVIRONMENT_FILE) or {},
        records=read_metrics(directory),
        examples=examples[:_MOST_EXAMPLES],
    )


def render(run: Run) -> str:
    """The report as an HTML page."""
    body = "\n".join(
        [
            _heading(run),
            _results(run),
            _phase_table(run),
            time_section(run.records),
            _curves(run),
            fill_mask_section(run.examples),
            details("Settings", run.settings),
            details("Environment", run.environment),
        ]
    )
    return page(f"{run.name}: pretraining report", body)


def _heading(run: Run) -> str:
    model, total = run.model, sum(phase.steps for phase in run.phases)
    state = "finished" if run.step >= total else "in progress or stopped"
    done = run_flops(model, run.phases) - run_flops(model, run.phases, run.step)
    seconds = sum(account(run.of_kind("time")).values())
    texts = [
        f"{model.num_hidden_layers} layers, {model.hidden_size} wide, {model.vocab_size:,} pieces",
        f"{run.step:,} of {total:,} steps, {state}",
        f"{run.at_most}{done:.2g} FLOPs",
    ]
    texts += environment_facts(run.environment)
    if seconds:
        texts.append(duration(seconds))
    if skipped := len(run.of_kind("skip")):
        texts.append(f"{skipped:,} steps skipped")
    return f"<h1>{html.escape(run.name)}</h1>\n{facts(texts)}"


def _results(run: Run) -> str:
    """Final figures beside what needs no model, and beside the training batches'."""
    evaluations, train = run.of_kind("eval"), run.of_kind("train")
    if not evaluations and not train:
        return "<p>No step is logged yet.</p>"
    last, batch = (evaluations or [{}])[-1], (train or [{}])[-1]
    baseline = baseline_of(run.records, last or batch)
    rows = [
        [
            label,
            *(
                cell(record[name], spec) if name in record else ""
                for record in (last, baseline, batch)
            ),
        ]
        for label, name, spec in (
            ("MLM accuracy", "mlm_accuracy", ".1%"),
            ("MLM perplexity", "mlm_perplexity", ",.2f"),
            ("MLM loss", "mlm_loss", ".3f"),
            ("NSP accuracy", "nsp_accuracy", ".1%"),
            ("NSP loss", "nsp_loss", ".3f"),
        )
        if name in last or name in batch
    ]
    held_out = f"held-out, step {last['step']:,}" if evaluations else "held-out"
    header = ["", held_out, "trivial baseline", "training, last logged"]
    note = "The baselines: always the most frequent token, always the most frequent label."
    return section("Results", table(header, rows, "results") + f"<p>{note}</p>")


def _phase_table(run: Run) -> str:
    rows = []
    ends = [*run.boundaries, sum(phase.steps for phase in run.phases)]
    for index, (phase, end) in enumerate(zip(run.phases, ends, strict=True)):
        train = [record for record in run.of_kind("train") if record.get("phase") == index]
        last = ([r for r in run.of_kind("eval") if r.get("phase") == index] or [{}])[-1]
        done = min(phase.steps, max(0, run.step - (end - phase.steps)))
        rows.append(
            [
                f"{index + 1}",
                f"{phase.seq_len}",
                f"{phase.batch_size:,}",
                f"{done:,} of {phase.steps:,}",
                f"{run.at_most}{done * phase.batch_size * phase.seq_len:,}",
                cell(last.get("mlm_accuracy"), ".1%"),
                cell(last.get("nsp_accuracy"), ".1%"),
                _median(train, "tokens_per_second", ",.0f"),
                _median(train, "mfu", ".1%"),
                _median(train, "input_wait", ".1%"),
            ]
        )
    header = ["phase", "length", "batch", "steps", "tokens", "MLM acc.", "NSP acc."]
    header += ["tokens/s", "MFU", "input wait"]
    note = "Accuracies are held-out, at the phase's last evaluation; speeds are medians."
    return section("Phases", table(header, rows) + f"<p>{note}</p>")


def _curves(run: Run) -> str:
    """A chart for each quantity that was logged."""
    figures = "".join(_chart(run, title, name, **style) for title, name, style in _CHARTS)
    if not figures:
        return ""
    note = "Over optimizer steps; a dotted vertical line is where the next phase begins."
    return section("Curves", f"<p>{note}</p>{charts([figures])}")


def _chart(run: Run, title: str, name: str, trivial: str = "", **style: bool) -> str:
    return metric_chart(
        run.records,
        title,
        name,
        heldout="held-out",
        level=(trivial, run.of_kind("baseline")) if trivial else None,
        boundaries=run.boundaries,
        **style,
    )


def _median(records: Records, name: str, spec: str) -> str:
    values = [value for record in records if (value := number(record.get(name))) is not None]
    return figure(statistics.median(values) if values else None, spec)


if __name__ == "__main__":
    run_main(main)
