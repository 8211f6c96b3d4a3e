"""docs/tpu.md shows what the launchers really print."""

import re
import subprocess

import pytest
from fake_cloud import ROOT

PAGE = (ROOT / "docs/tpu.md").read_text()
# A block that begins with a command after "$ ", which may go on after a backslash.
BLOCKS = [
    re.sub(r"(?m)^    ", "", block) for block in re.findall(r"(?m)^    \$ .*\n(?:    .*\n)+", PAGE)
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split()[2])
def test_the_page_shows_a_dry_run_as_it_is(block: str):
    command = re.match(r"\$ (?:.*\\\n)*.*\n", block)
    assert command
    assert " --dry_run " in command[0]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command[0].removeprefix("$ ")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.replace(str(ROOT), "bert_jax") == block[command.end() :]


def test_the_page_shows_both_launchers():
    assert [block.split()[2] for block in BLOCKS] == ["launch/tpu.sh", "launch/gke.sh"]


@pytest.mark.parametrize("script", ["tpu.sh", "gke.sh"])
def test_help_names_every_flag(script: str):
    source = "".join((ROOT / "launch" / name).read_text() for name in (script, "cloud.sh"))
    told = subprocess.run(
        ["bash", str(ROOT / "launch" / script), "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    flags = re.findall(r"^\s+(--\w+=?)\*?\)", source, re.MULTILINE)
    assert len(flags) > 10
    assert not [flag for flag in flags if f"  {flag}" not in told.stdout]
