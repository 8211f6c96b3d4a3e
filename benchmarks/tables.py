"""Results as records for JSON, and as a table for people."""

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
    """Markdown: how many times as long as each of ours a peer takes."""
    own = [result["name"] for result in cases[0]["results"] if not result["ratio"]]
    head = ["work", "contender", "ms", *(f"times {name}" for name in own), "GiB"]
    lines = [head, ["---"] * len(head)]
    for case in cases:
        for result in case["results"]:
            ratios = [_ratio(result["ratio"].get(name)) for name in own]
            milliseconds, memory = result["seconds"][0] * 1e3, result["memory"] / 2**30
            lines.append(
                [case["name"], result["name"], f"{milliseconds:,.0f}", *ratios, f"{memory:.2f}"]
            )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratio(values: tuple[float, float, float] | None) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*values) if values else ""
