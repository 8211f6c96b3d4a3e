"""A program that the documents show runs as it stands."""

import json
import os
import re
import subprocess
import sys

import pytest
from small_run import ROOT, write_books, xla_flags

_SHOW = """
import json

print(json.dumps({
    "finished": finished,
    "losses": list(losses.values()),
    "filled": filled,
    "labelled": labelled,
    "vectors": vectors.shape,
    "missing": missing,
    "scores": scores.shape,
}))
"""


@pytest.mark.slow
def test_the_program_of_python_md(tmp_path):
    write_books(tmp_path / "books")
    labels = ["good", "bad"] * 30
    rows = ["review,label", *(f"no. {i}: a {label} plot,{label}" for i, label in enumerate(labels))]
    (tmp_path / "reviews.csv").write_text("\n".join(rows) + "\n")
    text = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    environment = {
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XLA_FLAGS": xla_flags(1),  # one device, as a user has
    }
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*blocks, _SHOW])],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["finished"]
    assert said["losses"][-1] < said["losses"][0]
    assert len(said["filled"][0]["masks"]) == 1
    assert said["labelled"][0]["predicted"] in ("good", "bad")
    assert said["vectors"] == [2, 128]
    assert said["missing"] == ["score/bias", "score/kernel"]
    assert said["scores"] == [1]
