"""The benchmarks work; how fast anything is, no test says."""

import json
import subprocess
import sys

import pytest
import small_run

pytestmark = [pytest.mark.slow, pytest.mark.bench_smoke, pytest.mark.timeout(600)]


def test_a_training_step_is_measured_beside_its_peers(tmp_path):
    command = [sys.executable, "-m", "benchmarks.run", "--suite=cpu", "--quick"]
    done = subprocess.run(
        [*command, f"--output={tmp_path}"],
        capture_output=True,
        text=True,
        cwd=small_run.ROOT,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "cpu.json").read_text())["records"]
    ours, peers = case["results"][:2], case["results"][2:]
    assert [result["name"] for result in ours] == ["float32", "bfloat16"]
    assert len(peers) == 2
    assert all(result["seconds"][0] > 0 and result["memory"] > 2**20 for result in case["results"])
    assert all(set(peer["ratio"]) == {"float32", "bfloat16"} for peer in peers)
    assert len((tmp_path / "cpu.md").read_text().splitlines()) == 2 + len(case["results"])
