"""Merge two `pip freeze` outputs into constraints.txt: Python 3.11's and that of newer ones.

    python .ci/lock.py freeze-3.11.txt freeze-3.13.txt > constraints.txt

A package at one version has a plain line, one at two versions a line for each side. The two exist
because JAX and NumPy have left Python 3.11 behind.
"""

import re
import sys
from pathlib import Path

HEADER = """\
# The versions that the tests pass with: pip install -c constraints.txt -e .
# Written by .ci/lock.py from two `pip freeze` outputs; CONTRIBUTING.md says how to renew it."""


def read_freeze(path: str) -> dict[str, str]:
    """Normalised name -> version, without local parts such as +cpu."""
    lines = [line for line in Path(path).read_text().splitlines() if "==" in line]
    pairs = (line.split("==") for line in lines)
    return {re.sub(r"[-_.]+", "-", name).lower(): version.split("+")[0] for name, version in pairs}


def merge(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Lines of constraints; TensorFlow's two names are one release."""
    lines = []
    for name in sorted(old | new):
        versions = {freeze[name] for freeze in (old, new) if name in freeze}
        if len(versions) == 1:
            lines.append(f"{name}=={versions.pop()}")
        else:
            lines.append(f'{name}=={old[name]}; python_version < "3.12"')
            lines.append(f'{name}=={new[name]}; python_version >= "3.12"')
        if name == "tensorflow-cpu":
            lines.append(lines[-1].replace("tensorflow-cpu", "tensorflow"))
    return lines


if __name__ == "__main__":
    print("\n".join([HEADER, *merge(*map(read_freeze, sys.argv[1:3]))]))
