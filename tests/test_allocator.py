"""The allocator of a process that trains on a CPU."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from small_run import xla_flags

from bert_jax.allocator import SETTINGS
from bert_jax.training.stopping import RESUME_EXIT_CODE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the settings are glibc's")
_PROGRAM = """
import json, os, sys
from bert_jax.allocator import SETTINGS, restart_with_allocator
restart_with_allocator()
found = {name: os.environ[name] for name in SETTINGS if name in os.environ}
print(json.dumps({"arguments": sys.argv[1:], "pid": os.getpid(), "found": found}))
"""
_STARTS_SLOWLY = """
import os, time
from bert_jax.allocator import SETTINGS, restart_with_allocator
from bert_jax.training.stopping import exit_at_signals
if all(name in os.environ for name in SETTINGS):
    print("again", flush=True)
    time.sleep(0.5)
exit_at_signals()
restart_with_allocator()
time.sleep(60)
"""
_PRETRAINS_THEN_COUNTS_FAULTS = """
import resource, statistics, sys
from pathlib import Path
from bert_jax.errors import UserError
from bert_jax.flags import load_config
from bert_jax.pretraining import train
import jax, jax.numpy as jnp
config = load_config("tiny")
config.corpus.source = "text:nowhere"
try:
    train(config, Path(sys.argv[1]))
except UserError as error:
    print(error, file=sys.stderr)
# What is between the products takes 256 MiB: 128 huge pages, or 65,536 small ones.
left, right = jnp.ones((8192, 8)), jnp.ones((8, 8192))
step = jax.jit(lambda left, right: jnp.cos(left @ right) @ left)
faults = []
# The first ones may each find what is free in pieces, and take more until the pieces suffice.
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(left, right).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(statistics.median(faults)))
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_before_the_handlers_are_back_is_not_lost(number):
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTS_SLOWLY],
        stdout=subprocess.PIPE,
        text=True,
        env=inherited | {"BERT_JAX_ALLOCATOR": "", "JAX_PLATFORMS": "cpu"},
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "again\n"
        process.send_signal(number)
        assert process.wait(30) == RESUME_EXIT_CODE
    finally:
        process.kill()


def test_pretraining_keeps_the_memory_that_a_step_needs(tmp_path):
    one_device = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(1)}
    counted = subprocess.run(
        [sys.executable, "-c", _PRETRAINS_THEN_COUNTS_FAULTS, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | SETTINGS | one_device,
    )
    assert "nowhere" in counted.stderr
    assert int(counted.stdout.splitlines()[-1]) < 50
