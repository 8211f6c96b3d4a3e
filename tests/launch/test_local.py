"""The launchers of this machine, with a Python that trains nothing (real: test_cluster.py)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_checkout import ROOT, checkout
from fake_cloud import FAKES, LIMIT


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_before_the_processes_are_there_ends_them(tmp_path: Path, at: int, signal: str):
    """At the first start and at another. They have no handler as yet, and die of it."""
    python = f"#!{sys.executable} -IS\n{(FAKES / 'fake_cluster.py').read_text()}"
    launcher = checkout(tmp_path / "checkout", python) / "launch/local_cluster.sh"
    done = subprocess.run(
        ["bash", str(launcher), "2", "--config=tiny", "--workdir=run"],
        cwd=tmp_path,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "AT": str(at), "SIGNAL": signal},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 75, done.stderr + done.stdout
    assert "ended with exit code 143" in done.stderr
    assert "nothing was passed on" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert len((tmp_path / "starts").read_text().splitlines()) == at


@pytest.mark.parametrize("script", ["launch/local.sh", ".ci/run"])
@pytest.mark.parametrize("path", [".", "elsewhere"])
def test_an_exported_cdpath_changes_nothing(tmp_path: Path, script: str, path: str):
    """With it `cd` prints where it goes, and goes elsewhere."""
    folder = checkout(tmp_path / "checkout", "#!/bin/sh\necho $0 >&2\nexit 3\n")
    (folder / "launch/test.sh").write_text('exec "$PWD/.venv/bin/python"\n')
    for name in (".ci", "elsewhere/.ci", "elsewhere/launch"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", folder / ".ci")
    done = subprocess.run(
        ["bash", script],
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "CDPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (3, f"{folder}/.venv/bin/python\n")
