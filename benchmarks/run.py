"""python -m benchmarks.run: this project beside what one would run instead, on the same work.

Contenders take turns in processes of their own; on a GPU each has its turns before the next begins.
What is told is medians of several rounds, with the least and the greatest, as ratios to ours in the
same rounds. Writes SUITE.json and SUITE.md.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import finetuning, inference, input_pipeline, startup, training_step
from benchmarks.machine import machine
from benchmarks.tables import table
from bert_jax.errors import run_main
from bert_jax.flags import Parser

SUITES: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "cpu": functools.partial(training_step.run, "cpu"),
    "gpu": functools.partial(training_step.run, "cuda"),
    "input": input_pipeline.run,
    "inference": functools.partial(inference.run, "cpu"),
    "gpu-inference": functools.partial(inference.run, "cuda"),
    "startup": startup.run,
    "finetune": finetuning.run,
}


def main() -> None:
    """Run a suite, and write what came of it."""
    parser = Parser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--suite", required=True, choices=SUITES)
    parser.add_argument("--quick", action="store_true", help="the smallest case: does it work?")
    parser.add_argument("--output", type=Path, default=Path("."), metavar="DIR")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    stem = arguments.output / arguments.suite
    records, about = {}, machine()
    for record in SUITES[arguments.suite](arguments.quick):
        # What is measured is kept, whatever comes of the rest.
        records[record["name"]] = record
        told = {"machine": about, "records": [*records.values()]}
        stem.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
        stem.with_suffix(".md").write_text(table(told["records"]) + "\n")
    print(stem.with_suffix(".md").read_text())
    print(f"written: {stem}.json, {stem}.md", file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
