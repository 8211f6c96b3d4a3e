"""python -m benchmarks.run: this project beside what one would run instead, on the same work.

Contenders take turns in processes of their own; what is told is medians of several rounds, with the
least and the greatest, as ratios to ours in the same rounds. Writes SUITE.json and SUITE.md.
"""

import functools
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import inference, input_pipeline, startup, training_step
from benchmarks.tables import table
from bert_jax.data.workers import core_count
from bert_jax.errors import run_main
from bert_jax.flags import Parser

SUITES: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "cpu": functools.partial(training_step.run, "cpu"),
    "gpu": functools.partial(training_step.run, "cuda"),
    "input": input_pipeline.run,
    "inference": inference.run,
    "startup": startup.run,
}
LIBRARIES = ("jax", "flax", "torch", "transformers", "tokenizers", "numpy")


def _gpus() -> list[str]:
    """Names and drivers of the GPUs that NVIDIA's tool knows."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()


def machine() -> dict[str, Any]:
    """What figures depend on: processor, cores, GPUs, versions, commit."""
    cpuinfo = Path("/proc/cpuinfo")
    # Of the first core. A family and a model tell generations of one name apart.
    first = (cpuinfo.read_text() if cpuinfo.exists() else "").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in fields}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return {
        "processor": facts.get("model name", platform.processor()),
        "family and model": [facts.get(name) for name in ("cpu family", "model")],
        "cores": core_count(),
        "GPUs": _gpus(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "commit": commit.stdout.strip(),
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
    records = []
    for record in SUITES[arguments.suite](arguments.quick):
        # What is measured is kept, whatever comes of the rest.
        records.append(record)
        stem.with_suffix(".json").write_text(
            json.dumps({"machine": machine(), "records": records}, indent=1) + "\n"
        )
        stem.with_suffix(".md").write_text(table(records) + "\n")
    print(stem.with_suffix(".md").read_text())
    print(f"written: {stem}.json, {stem}.md", file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
