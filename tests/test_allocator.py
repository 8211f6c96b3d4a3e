"""The allocator of a process that trains on a CPU."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from bert_jax.allocator import SETTINGS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")
_PROGRAM = """
import json, os, sys
from bert_jax.allocator import SETTINGS, restart_with_allocator
restart_with_allocator()
found = {name: os.environ[name] for name in SETTINGS if name in os.environ}
print(json.dumps({"arguments": sys.argv[1:], "pid": os.getpid(), "found": found}))
"""


def run(**environment: str) -> tuple[dict[str, Any], int, str]:
    """What the program prints, its process and its messages."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "--a", "b c"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=inherited | {"BERT_JAX_ALLOCATOR": ""} | environment,
    )
    output, errors = process.communicate(timeout=60)
    return json.loads(output), process.pid, errors


def test_a_process_starts_once_more_with_its_settings_and_arguments():
    told, pid, errors = run(JAX_PLATFORMS="cpu")
    assert told == {"arguments": ["--a", "b c"], "pid": pid, "found": SETTINGS}
    assert len(errors.splitlines()) == 1


def test_what_the_user_has_set_stays():
    told, _, _ = run(MALLOC_TOP_PAD_="1024")
    assert told["found"] == SETTINGS | {"MALLOC_TOP_PAD_": "1024"}


@pytest.mark.parametrize(
    "environment", [{"BERT_JAX_ALLOCATOR": "default"}, {"JAX_PLATFORMS": "tpu"}, SETTINGS]
)
def test_where_it_is_not_wanted_or_not_needed_nothing_happens(environment):
    told, _, errors = run(**environment)
    assert told["found"] == (SETTINGS if environment == SETTINGS else {})
    assert errors == ""
