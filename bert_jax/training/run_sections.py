"""The sections that the reports of all runs have: curves, and where the time went."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.training.charts import Curve, line_chart
from bert_jax.training.clock import account, goodput
from bert_jax.training.console import duration, figure
from bert_jax.training.page import chart, section, table

Records = Sequence[Mapping[str, Any]]


def environment_facts(environment: Mapping[str, Any]) -> list[str]:
    """A run's devices, and whether an earlier part of it had other ones, or other versions."""
    devices = environment.get("devices")
    devices = devices if isinstance(devices, dict) else {}
    texts = [f"{count} x {kind}" for kind, count in devices.items()]
    if environment.get("earlier"):
        texts.append("begun on other devices or with other versions: see Environment")
    return texts


def time_section(records: Records) -> str:
    """Wall time by cause, from a run's records as `read_metrics` gives them; "" for none."""
    seconds = account(of_kind(records, "time"))
    total = sum(seconds.values())
    if not total:
        return ""
    rows = [
        [
            html.escape(cause),
            duration(spent),
            f"{spent / total:.1%}",
            f'<div class="bar" style="width: {100 * spent / total:.1f}%"></div>',
        ]
        for cause, spent in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    rows.append(["all", duration(total), "100.0%", ""])
    note = (
        f"Goodput, the share of the wall time that was spent in steps that count: "
        f"{figure(goodput(seconds), '.1%')}."
    )
    content = table(["", "time", "share", ""], rows, "time") + f"<p>{note}</p>"
    return section("Where the time went", content)


def metric_chart(
    records: Records,
    title: str,
    name: str,
    *,
    heldout: str,
    level: tuple[str, Records] | None = None,
    boundaries: Sequence[int] = (),
    **style: bool,
) -> str:
    """One quantity over a run's steps, in training and on held-out data; "" where not logged.

    Args:
      records: of the run, as `read_metrics` gives them.
      title: of the chart.
      name: of the quantity in the records.
      heldout: what the held-out data are called.
      level: label of a dashed line, and records of its values, in order: each holds from its
        step until that of the next; what is no number is a gap.
      boundaries: as for `line_chart`; those after the last logged step are left out.
      style: as for `line_chart`.
    """
    curves = [
        *_curve(of_kind(records, "train"), name, "training"),
        *_curve(of_kind(records, "eval"), name, heldout, heldout=True),
    ]
    if not curves:
        return ""
    last = max(curve.steps[-1] for curve in curves)
    drawing = line_chart(
        title,
        curves,
        levels=[] if level is None else _level(level[1], name, level[0], last),
        boundaries=[step for step in boundaries if step <= last],
        **style,
    )
    return chart(title, drawing)


def _curve(records: Records, name: str, label: str, heldout: bool = False) -> list[Curve]:
    """The curve of one quantity, if any of its values is a number."""
    values = [number(record.get(name)) for record in records]
    if all(value is None for value in values):
        return []
    gaps = [float("nan") if value is None else value for value in values]
    return [Curve(label, [record["step"] for record in records], gaps, heldout)]


def _level(records: Records, name: str, label: str, last: int) -> list[Curve]:
    """A line to step `last` whose values hold from the steps of their records on."""
    starts = [min(record.get("step", 0), last) for record in records]
    corners = [
        {"step": step, name: record.get(name)}
        for record, *ends in zip(records, starts, [*starts, last][1:], strict=True)
        for step in ends
    ]
    return _curve(corners, name, label)


def of_kind(records: Records, kind: str) -> list[Mapping[str, Any]]:
    """Records of one kind, in order."""
    return [record for record in records if record["kind"] == kind]


def baseline_of(records: Records, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The "baseline" record of the phase that a record is of: each has other examples; or {}."""
    baselines = of_kind(records, "baseline")
    own = [baseline for baseline in baselines if baseline.get("phase") == record.get("phase")]
    return own[-1] if own else {}


def last_step(records: Records) -> int:
    """The last step that is known to be done."""
    # A "time" record comes with each checkpoint. An older one may be of steps that were lost since.
    done = of_kind(records, "train") + of_kind(records, "eval") + of_kind(records, "time")[-1:]
    return max((record["step"] for record in done), default=0)


def number(value: Any) -> float | None:
    """`value` as a float; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


def cell(value: Any, spec: str) -> str:
    """A value by its format, "n/a" for what is no finite number."""
    return figure(number(value), spec)
