"""The benchmarks work; how fast anything is, no test says."""

import json
import subprocess
import sys

import pytest
import small_run

pytestmark = [pytest.mark.slow, pytest.mark.bench_smoke, pytest.mark.timeout(600)]
OURS = ["ours, float32", "ours, bfloat16"]


@pytest.mark.parametrize("suite", ["cpu", "inference"])
def test_a_suite_measures_ours_beside_its_peers(suite, tmp_path):
    command = [sys.executable, "-m", "benchmarks.run", f"--suite={suite}", "--quick"]
    done = subprocess.run(
        [*command, f"--output={tmp_path}"],
        capture_output=True,
        text=True,
        cwd=small_run.ROOT,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / f"{suite}.json").read_text())["records"]
    results = case["results"]
    assert [result["name"] for result in results[:2]] == OURS
    assert len(results) == 4
    assert all(result["seconds"][0] > 0 and result["memory"] > 2**20 for result in results)
    assert all(list(peer["ratio"]) == OURS for peer in results[2:])
    assert len((tmp_path / f"{suite}.md").read_text().splitlines()) == 2 + len(results)
