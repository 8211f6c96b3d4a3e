"""A plan as a person reads it."""

import math
from collections.abc import Sequence

from bert_jax.planning.planner import PhasePlan, Plan

_GIB = 2**30


def plan_text(plan: Plan) -> str:
    """All that is known of a recipe on one topology."""
    mesh = " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
    lines = [f"{plan.topology}: {plan.chips:,} chips ({plan.device_kind}), mesh {mesh}"]
    if plan.compiled_for != plan.device_kind:
        lines.append(
            f"  an estimate: not compiled for this chip, but for {plan.compiled_for}; memory "
            'traffic and activations will be others; pip install "bert_jax[gpu]" compiles for it'
        )
    for number, phase in enumerate(plan.phases, 1):
        lines += _phase_lines(number, phase, plan)
    return "\n".join([*lines, f"  {'recipe':11} {_total(plan)}"])


def ranking(plans: Sequence[Plan]) -> str:
    """Several plans, a line each, the soonest done first; those that do not fit last."""
    columns = ["topology", "chips", "mesh", "memory", "step ms", "limit", "tokens/s", "MFU", "days"]
    rows = [[*columns, "cost"]]
    for plan in sorted(plans, key=lambda plan: math.inf if plan.days is None else plan.days):
        rows.append(
            [
                plan.topology,
                f"{plan.chips:,}",
                "x".join(str(size) for size in plan.mesh.values()),
                " ".join(_memory(phase) for phase in plan.phases),
                " ".join(_milliseconds(phase) for phase in plan.phases),
                " ".join(phase.limit or "-" for phase in plan.phases),
                " ".join(_count(phase.tokens_per_second) for phase in plan.phases),
                " ".join(_percent(phase.mfu) for phase in plan.phases),
                "-" if plan.days is None else f"{plan.days:.3g}",
                "-" if plan.cost is None else f"{plan.cost:,.0f}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _phase_lines(number: int, phase: PhasePlan, plan: Plan) -> list[str]:
    devices = math.prod(plan.mesh.values())
    rows = [
        (
            f"phase {number}",
            f"length {phase.seq_len}, {phase.steps:,} steps of {phase.batch_size:,} sequences, "
            f"{phase.batch_size / devices:g} a device",
        ),
        ("memory", _memory_text(phase, plan)),
    ]
    if phase.packed:
        rows.append(("packing", "at most: rows hang on the text, and this is a row a sequence"))
    for setting, taken in phase.remedies.items():
        rows.append(("", f"fits with {setting}: {taken / _GIB:.2f} GiB"))
    if not phase.fits and not phase.remedies:
        rows.append(("", "smaller batches, more devices or a larger --config.mesh.fsdp may help"))
    if phase.largest_batch:
        rows.append(("", f"the largest batch that fits: {phase.largest_batch:,} a device"))
    work = f"{phase.model_flops_per_token / 1e9:.3f} GFLOPs a token"
    if phase.bytes_moved is not None:
        work += (
            f", HLO/model {phase.hlo_to_model:.3f}; a device moves {phase.bytes_moved / 1e9:.2f} GB"
            f" a step, {phase.intensity:.0f} FLOPs a byte"
        )
    rows.append(("work", work))
    for kind, told in phase.collectives.items():
        rows.append((kind, f"{told['count']} a step, {told['bytes'] / 1e6:,.1f} MB"))
    if phase.limit:
        bounds = ", ".join(
            f"{name} {1e3 * phase.seconds[name]:.2f}"
            for name in ("compute", "memory", "interconnect")
        )
        rows.append(
            (
                "time",
                f"{1e3 * phase.seconds['step']:.2f} ms a step at best (bounds: {bounds}); "
                f"limited by {phase.limit}",
            )
        )
        rows.append(
            (
                "speed",
                f"{_count(phase.tokens_per_second)} tokens/s, MFU {_percent(phase.mfu)}; "
                f"each host supplies {_count(phase.input_tokens_per_second)} tokens/s",
            )
        )
    return [f"  {name:11} {text}" for name, text in rows]


def _memory_text(phase: PhasePlan, plan: Plan) -> str:
    of = f"{plan.device_memory / _GIB:.2f} GiB" if math.isfinite(plan.device_memory) else "any"
    if phase.memory is None:
        wanted = f"{phase.wanted / _GIB:.2f} GiB" if phase.wanted else "more"
        return f"DOES NOT FIT: its activations alone take {wanted} of {of}"
    parts = ", ".join(
        f"{name} {getattr(phase.memory, name) / _GIB:.2f}"
        for name in ("parameters", "optimizer", "batch", "activations")
    )
    told = f"{phase.memory.total / _GIB:.2f} GiB of {of} a device ({parts})"
    return told if phase.fits else f"DOES NOT FIT: {told}"


def _total(plan: Plan) -> str:
    if plan.days is None:
        fits = all(phase.fits for phase in plan.phases)
        return "time not known" if fits else "does not fit"
    hours = plan.days * 24
    told = f"{plan.days:.3g} days ({hours:,.1f} hours, {hours * plan.chips:,.0f} chip-hours)"
    return told if plan.cost is None else f"{told}, {plan.cost:,.0f} at the price given"


def _memory(phase: PhasePlan) -> str:
    if not phase.fits:
        return "too large"
    return f"{phase.memory.total / _GIB:.1f}G" if phase.memory else "-"


def _milliseconds(phase: PhasePlan) -> str:
    return f"{1e3 * phase.seconds['step']:.2f}" if phase.seconds else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _count(number: float | None) -> str:
    if number is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
