"""The benchmarks work; how fast anything is, no test says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_run

from benchmarks.batches import write_batch
from benchmarks.contest import DTYPES, contest_alone, in_jax
from benchmarks.tables import record, table

pytestmark = [pytest.mark.slow, pytest.mark.bench_smoke, pytest.mark.timeout(600)]
# What of ours each suite's cases begin with, and how many contenders follow.
SUITES = {
    "cpu": [
        ([f"ours{packed}, {dtype}" for packed in ("", ", packed") for dtype in DTYPES], 4),
    ],
    "inference": [(["ours, float32", "ours, bfloat16"], 4)],
    "finetune": [(["ours, compiled", "ours, from the cache"], 1)],
    "input": [(["ours, one thread", "ours, tf.data"], 2), (["ours, prepare"], 1)],
    "startup": [
        (["ours, import", "ours, with TensorFlow", "ours, --help"], 1),
        (["ours, compiled", "ours, from the cache"], 1),
        (["scanned"], 1),
        (["prepare, 1.0 MB", "prepare, 0.1 MB", "train, tiny", "convert, 17 MiB of weights"], 0),
    ],
}


def run(output: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--quick", f"--output={output}"],
        capture_output=True,
        text=True,
        cwd=small_run.ROOT,
        env=os.environ | {"XLA_FLAGS": small_run.xla_flags(1)},  # one device, as a user has
        timeout=500,
    )
    assert done.returncode == 0, done.stderr


def test_learners_leave_their_curves(tmp_path):
    run(tmp_path, "benchmarks.quality")
    curves = json.loads((tmp_path / "quality.json").read_text())["curves"]
    assert list(curves) == ["ours", "PyTorch, 0.0005"]
    for curve in curves.values():
        steps = [point["step"] for point in curve]
        assert len(steps) == 2
        assert 0 < steps[0] < steps[1]
        assert 3 < curve[-1]["mlm_loss"] < 7  # of ln 1,000 = 6.9 at the start
    assert "<svg" in (tmp_path / "quality.svg").read_text()
    assert len((tmp_path / "quality.md").read_text().splitlines()) == 5


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_measures_ours_beside_its_peers(suite, tmp_path):
    run(tmp_path, "benchmarks.run", f"--suite={suite}")
    cases = json.loads((tmp_path / f"{suite}.json").read_text())["records"]
    rows = 0
    for case, (own, peers) in zip(cases, SUITES[suite], strict=True):
        results = case["results"]
        assert [result["name"] for result in results[: len(own)]] == own
        assert len(results) == len(own) + peers
        assert all(result["seconds"][0] > 0 and result["memory"] > 2**20 for result in results)
        assert all(list(peer["ratio"]) == own for peer in results[len(own) :])
        rows += len(results)
    lines = (tmp_path / f"{suite}.md").read_text().splitlines()
    assert sum(line.startswith("|") for line in lines) - 2 * lines.count("") == rows + 2


def test_what_is_measured_alone_is_beside_ours_all_the_same(tmp_path):
    batch = tmp_path / "batch.npz"
    write_batch(batch, seq_len=128, batch_size=2)
    own, peers = (
        in_jax(name, f"benchmarks.{name}_jax", {"size": "tiny", "batch": str(batch)}, DTYPES, "cpu")
        for name in ("step", "products")
    )
    results = [record(result) for result in contest_alone(own, peers, rounds=2)]
    assert [result["name"] for result in results] == [c.name for c in (*own, *peers)]
    assert all(not result["ratio"] for result in results[:2])
    ours, theirs = results[0], results[-1]
    assert list(theirs["ratio"]) == [contender.name for contender in own]
    _, least, greatest = theirs["ratio"][ours["name"]]
    quotients = [a / b for a in theirs["seconds"][1:] for b in ours["seconds"][1:]]
    assert min(quotients) <= least <= greatest <= max(quotients)
    results[0]["mfu"] = 0.5
    lines = table([{"name": "work", "results": results}]).splitlines()
    assert lines[0].split(" | ")[-2] == "MFU"
    assert [line.split(" | ")[-2] for line in lines[2:]] == ["50.0%", "", "", ""]
