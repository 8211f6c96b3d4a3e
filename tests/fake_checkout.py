"""A checkout in which the launchers run without installing anything."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The interpreter of the tests, as a launcher finds it in .venv.
PYTHON = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n'


def checkout(folder: Path, python: str) -> Path:
    """Make `folder` with the launchers, and with a program of that text as .venv/bin/python."""
    shutil.copytree(ROOT / "launch", folder / "launch")
    for name in ("setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    program = folder / ".venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(python)
    program.chmod(0o755)
    stamp = f'cat "{folder}/setup.py" "{folder}/constraints.txt" | cksum'
    sums = subprocess.run(["bash", "-c", stamp], capture_output=True, text=True, check=True)
    (folder / ".venv/installed").write_text(f"{folder} {sums.stdout}")
    return folder
