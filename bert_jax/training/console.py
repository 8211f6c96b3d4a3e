"""What a person sees of a run: a header, a progress bar, evaluations and a summary.

The texts are pure functions; `Progress` alone prints, and only where it is told to.
"""

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TextIO

from tqdm import tqdm

from bert_jax.config import BertConfig, Config, Phase, model_size
from bert_jax.errors import in_command
from bert_jax.training.clock import goodput
from bert_jax.training.flops import run_flops, step_flops

# A log file needs no more lines than one in so many seconds.
_SECONDS_BETWEEN_LINES = 10.0
# Between two records: of a line, and of a terminal's bar, each move of which waits for all steps.
_SECONDS_OF_SILENCE, _SECONDS_BETWEEN_MOVES = 60.0, 2.0


def header(
    config: Config,
    parameters: int,
    mesh: Mapping[str, int],
    device_kind: str,
    start_step: int = 0,
    flops_per_second: float | None = None,
) -> str:
    """The run before it starts: model, mesh, phases, tokens and FLOPs to do, expected time.

    Args:
      config: the resolved config.
      parameters: number of trained parameters.
      mesh: devices along each axis, as `mesh.shape`.
      device_kind: `jax.devices()[0].device_kind`.
      start_step: step a resumed run goes on from.
      flops_per_second: expected training speed over all devices; None (not known) leaves the
        expected time out.
    """
    mesh_text = " x ".join(f"{name} {size}" for name, size in mesh.items())
    rows = [
        ("model", _model_text(config.model, parameters)),
        ("mesh", f"{mesh_text}, {device_kind}"),
    ]
    for number, phase in enumerate(config.phases, 1):
        packed = ", packed" if config.data.packing else ""
        rows.append((f"phase {number}", _phase_text(phase) + packed))
    if start_step:
        rows.append(("resumes", f"after step {start_step:,} of {config.total_steps:,}"))
    flops = run_flops(config.model, config.phases, start_step)
    to_do = f"{_tokens_to_do(config.phases, start_step):,} tokens, {flops:.2g} FLOPs"
    if flops_per_second:
        to_do += f", about {duration(flops / flops_per_second)}"
    rows.append(("to do", f"at most {to_do}" if config.data.packing else to_do))
    return table("pretraining", rows)


def evaluation_line(record: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """An "eval" record on one line, each accuracy beside the trivial one of `baseline`."""
    return f"step {record['step']:,}, held-out {'; '.join(_evaluation_texts(record, baseline))}"


def summary(
    run_directory: Path,
    evaluation: Mapping[str, Any] | None,
    baseline: Mapping[str, Any],
    seconds: Mapping[str, float],
    resume_command: str | None = None,
) -> str:
    """The run after its end: figures, where the time went, and the next commands.

    Args:
      run_directory: where the run lies.
      evaluation: the last "eval" record, None if there was none.
      baseline: the "baseline" record, or {}.
      seconds: wall time by cause, as `account` gives it.
      resume_command: what continues a run that was stopped early; None for a finished one.
    """
    rows = [("run", str(run_directory))]
    if evaluation:
        rows += [("held-out", text) for text in _evaluation_texts(evaluation, baseline)]
    rows.append(("time", time_split(seconds)))
    rows.append(("goodput", f"{figure(goodput(seconds), '.1%')} of it in steps that count"))
    if resume_command:
        rows.append(("continue", resume_command))
    rows.append(("report", f"python -m bert_jax.report {shlex.quote(str(run_directory))}"))
    return table("stopped" if resume_command else "done", rows)


def how_to_continue(program: str) -> str:
    """What goes on with a run that was stopped: the command again, or the call from Python."""
    if in_command.get():
        return f"python -m {program} {shlex.join(sys.argv[1:])}"
    return "the same call"


class Progress:
    """A progress bar on a terminal; elsewhere a plain line every ten seconds at most.

    Both show between two records how far the run is: where a step takes seconds there would be
    nothing to see for minutes.
    """

    def __init__(
        self,
        total_steps: int,
        seconds_left: Callable[[int, Mapping[str, Any]], float | None],
        start_step: int = 0,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
    ):
        """Starts at `start_step`; not `enabled` (any process but the first) prints nothing.

        Args:
          total_steps: of the run.
          seconds_left: from steps done and the last "train" record, as `pretraining_seconds_left`.
          start_step: steps already done.
          enabled: whether this process prints.
          stream: where to print; standard error by default.
        """
        self._total = total_steps
        self._seconds_left = seconds_left
        self._enabled = enabled
        self._stream = stream or sys.stderr
        self._printed_at = -_SECONDS_BETWEEN_LINES
        self._shown_at = time.monotonic()
        self._patience = _SECONDS_BETWEEN_LINES  # the first line comes sooner
        self._text = ""  # of the bar, or of a line that is held back
        self._bar = None
        if enabled and self._stream.isatty():
            self._patience = _SECONDS_BETWEEN_MOVES
            self._bar = tqdm(
                total=total_steps,
                initial=start_step,
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f}%|{bar:12}| {n:,}/{total:,} {desc}",
            )

    def due(self) -> bool:
        """Whether it is time to show, by `update`, what there is so far of the next record."""
        return self._enabled and time.monotonic() - self._shown_at >= self._patience

    def update(self, step: int, record: Mapping[str, Any] | None = None) -> None:
        """Move to `step` (steps done); `record` is a "train" record, if there is one."""
        if not self._enabled:
            return
        text = _train_text(record, self._seconds_left(step, record)) if record else ""
        if self._bar is not None:
            self._text = text or self._text
            self._bar.set_description_str(self._text, refresh=False)
            self._bar.update(step - self._bar.n)
            self._mark_shown()
        elif text:
            self._text = f"step {step:,}/{self._total:,} {text}"
            if time.monotonic() - self._printed_at >= _SECONDS_BETWEEN_LINES:
                self._print_held_back()

    def note(self, text: str) -> None:
        """Show what is under way, where it is `due`; a bar shows it until the next `update`."""
        if not self.due():
            return
        if self._bar is None:
            self.print(text)
        else:
            self._bar.set_description_str(text)
        self._mark_shown()

    def print(self, text: str) -> None:
        """Print text on lines of its own, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif self._enabled:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """End the bar, or print the last line that was held back."""
        if self._bar is not None:
            self._bar.set_description_str(self._text, refresh=False)
            self._bar.close()
        elif self._text:
            self._print_held_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _print_held_back(self) -> None:
        self.print(self._text)
        self._text = ""
        self._printed_at = time.monotonic()
        self._mark_shown()

    def _mark_shown(self) -> None:
        """Something was shown: until the next, wait as long as a bar or lines do."""
        self._shown_at = time.monotonic()
        self._patience = _SECONDS_OF_SILENCE if self._bar is None else _SECONDS_BETWEEN_MOVES


def pretraining_seconds_left(config: Config, step: int, record: Mapping[str, Any]) -> float | None:
    """Time for the FLOPs left at the speed of `record`: a longer phase ahead counts as such."""
    speed = record.get("steps_per_second")
    if not speed:
        return None
    of_a_step = step_flops(config.model, config.phases[record["phase"]])
    return run_flops(config.model, config.phases, step) / (of_a_step * speed)


def duration(seconds: float) -> str:
    """A time for people, in its two largest units: "42 s", "6 min 12 s", "3 h 04 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def figure(value: float | None, spec: str) -> str:
    """A number by its format; "n/a" for None, as which metrics.jsonl holds what is not finite."""
    return "n/a" if value is None else format(value, spec)


def time_split(seconds: Mapping[str, float]) -> str:
    """Wall time and its parts, the longest first."""
    total = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    shares = [f"{name} {duration(part)} ({part / total:.0%})" for name, part in parts if part > 0]
    return f"{duration(total)}: {', '.join(shares)}" if shares else duration(total)


def table(title: str, rows: list[tuple[str, str]]) -> str:
    """A title and lines of names and texts."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([title] + [f"  {name:<{width}}  {text}" for name, text in rows])


def _model_text(model: BertConfig, parameters: int) -> str:
    names = {
        (size.num_hidden_layers, size.hidden_size): name
        for name in ("tiny", "mini", "small", "medium", "base", "large")
        for size in [model_size(name)]
    }
    name = names.get((model.num_hidden_layers, model.hidden_size), "of its own size")
    return (
        f"BERT {name}: {model.num_hidden_layers} layers, {model.hidden_size} wide, "
        f"{model.num_attention_heads} heads, {model.vocab_size:,} pieces, "
        f"{parameters:,} parameters, {model.dtype}"
    )


def _phase_text(phase: Phase) -> str:
    return (
        f"{phase.steps:,} steps of {phase.batch_size:,} x {phase.seq_len} tokens, "
        f"{phase.max_predictions} predictions a sequence"
    )


def _tokens_to_do(phases: tuple[Phase, ...], start_step: int) -> int:
    """Positions of all batches from `start_step` on, padding included."""
    tokens = 0
    for phase in phases:
        done = min(start_step, phase.steps)
        tokens += (phase.steps - done) * phase.batch_size * phase.seq_len
        start_step -= done
    return tokens


def _train_text(record: Mapping[str, Any], seconds_left: float | None) -> str:
    """The figures of a "train" record that are known, short enough for a bar's line."""
    formats = {
        "loss": "loss {:.3f}",
        "accuracy": "accuracy {:.1%}",
        "mlm_accuracy": "mlm {:.1%}",
        "nsp_accuracy": "nsp {:.1%}",
        "tokens_per_second": "{:,.0f} tokens/s",
        "mfu": "mfu {:.1%}",
        "input_wait": "input wait {:.1%}",
    }
    texts = [
        text.format(record[name]) for name, text in formats.items() if record.get(name) is not None
    ]
    return "  ".join(texts + ([f"eta {duration(seconds_left)}"] if seconds_left else []))


def _evaluation_texts(record: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """MLM and, where the run has it, NSP figures of an "eval" record."""
    texts = [
        f"MLM loss {figure(record.get('mlm_loss'), '.3f')}, "
        f"perplexity {figure(record.get('mlm_perplexity'), ',.1f')}, "
        f"accuracy {_beside('mlm_accuracy', record, baseline, 'most frequent token')}"
    ]
    if "nsp_accuracy" in record:
        texts.append(
            f"NSP loss {figure(record.get('nsp_loss'), '.3f')}, "
            f"accuracy {_beside('nsp_accuracy', record, baseline, 'most frequent label')}"
        )
    return texts


def _beside(name: str, record: Mapping[str, Any], baseline: Mapping[str, Any], trivial: str) -> str:
    accuracy = figure(record.get(name), ".1%")
    return f"{accuracy} ({trivial}: {baseline[name]:.1%})" if name in baseline else accuracy
