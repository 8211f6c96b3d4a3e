"""Results as records for JSON, and as a table for people."""

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.contest import Result, median_and_spread


def record(result: Result) -> dict[str, Any]:
    """What is told of a contender: medians, with the least and the greatest of its rounds."""
    return {
        "name": result.name,
        "seconds": median_and_spread(result.seconds),
        "ratio": {rival: median_and_spread(result.ratios(rival)) for rival in result.rival_seconds},
        "ready": result.ready,
        "memory": result.memory,
    }


def table(cases: Sequence[dict[str, Any]]) -> str:
    """Markdown: how many times as long as each of ours a peer takes.

    Cases that differ in what ours are have tables of their own.
    """
    tables = []
    for own, group in itertools.groupby(cases, _rivals):
        results = [(case["name"], result) for case in group for result in case["results"]]
        shares = ["MFU"] if any(result.get("mfu") for _, result in results) else []
        head = ["work", "contender", "ms", *(f"times {name}" for name in own), *shares, "GiB"]
        lines = [head, ["---"] * len(head)]
        lines += [_line(work, result, own, len(shares)) for work, result in results]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(tables)


def _rivals(case: dict[str, Any]) -> list[str]:
    """Those of ours that peers are compared with."""
    return list(dict.fromkeys(name for result in case["results"] for name in result["ratio"]))


def _line(work: str, result: dict[str, Any], own: Sequence[str], shares: int) -> list[str]:
    milliseconds = result["seconds"][0] * 1e3
    shown = f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
    ratios = [_ratio(result["ratio"].get(name)) for name in own]
    share = [f"{result['mfu']:.1%}" if result.get("mfu") else ""] * shares
    return [work, result["name"], shown, *ratios, *share, f"{result['memory'] / 2**30:.2f}"]


def _ratio(values: tuple[float, float, float] | None) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*values) if values else ""
