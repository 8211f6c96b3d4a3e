"""The command that plans: its tables, its JSON, its refusals, and programs kept for training."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from peer_models import PIECES, peer, save_peer
from small_run import ROOT, get_config

from bert_jax import plan
from bert_jax.errors import INTERRUPTED_EXIT_CODE, UserError
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.gpus import can_describe

RECIPE = f"--config={ROOT}/tests/small_run.py"
FIRST_PHASE = """
from small_run import get_config as both

def get_config():
    config = both()
    config.phases = config.phases[:1]
    return config
"""


def run(
    *flags: str, module: str = "plan", recipe: str = RECIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"bert_jax.{module}", recipe, *flags],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"} | environment,
        capture_output=True,
        text=True,
    )


def test_topologies_are_planned_and_ranked(tmp_path):
    output = tmp_path / "plan.json"
    recipe = tmp_path / "first_phase.py"
    recipe.write_text(FIRST_PHASE)
    done = run(
        *("--topology=h200:8,cpu:8,cpu:3", "--price=2", f"--json={output}"),
        recipe=f"--config={recipe}",
        PYTHONPATH=f"{ROOT}/tests",
    )
    assert not done.returncode, done.stderr
    estimated = "an estimate: not compiled for this chip, but for cpu" in done.stdout
    assert estimated != can_describe(CHIPS["h200"])
    for word in ("memory", "work", "all-reduce", "time", "speed", "recipe"):
        assert f"\n  {word} " in done.stdout
    first, second, *refused = done.stderr.splitlines()[-3:]
    assert re.fullmatch(r"compiling length 32, batch 16 for 8 x .+ \.\.\. \d+ s", first)
    assert re.fullmatch(r"compiling length 32, batch 16 for 8 x cpu \.\.\. \d+ s", second)
    # What cannot be is told and left out.
    assert refused[0].startswith("error: --topology=cpu:3: the batch at length 32=16")
    gpu, cpu = json.loads(output.read_text())
    assert gpu["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1}
    assert cpu["device_memory"] is None
    assert cpu["days"] is None
    first = gpu["phases"][0]
    assert 1 <= first["hlo_to_model"] <= 1.05
    assert first["collectives"]["all-reduce"]["bytes"] > 0.9 * first["memory"]["parameters"]
    seconds = sum(phase["steps"] * phase["seconds"]["step"] for phase in gpu["phases"])
    assert gpu["days"] == pytest.approx(seconds / 86_400)
    assert gpu["cost"] == pytest.approx(seconds / 3600 * 8 * 2)
    assert first["tokens_per_second"] == pytest.approx(16 * 32 / first["seconds"]["step"])
    model = first["model_flops_per_token"] * 16 * 32
    assert first["mfu"] == pytest.approx(model / first["seconds"]["step"] / (8 * 989e12))
    assert first["input_tokens_per_second"] == first["tokens_per_second"], "eight in one host"
    work = first["intensity"] * first["bytes_moved"] * 8
    assert work == pytest.approx(first["hlo_to_model"] * model)
    ranked = [line.split()[0] for line in done.stdout.splitlines()[-3:]]
    assert ranked == ["topology", "h200:8", "cpu:8"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--topology=v9:4"], "no such topology; known are"),
        (["--topology=cpu:8", "--mesh=data"], "NAME=NUMBER"),
        (["--topology=cpu:8", "--mesh=rows=2"], "names are data, fsdp, tensor"),
        (["--topology=cpu:8", "--mesh=data=2.5"], "whole numbers"),
        (["--topology=cpu:8", "--nonsense"], "unknown argument"),
        (["--topology=cpu:8", "--config.phasses=1"], "no such field"),
    ],
)
def test_what_cannot_be_read_is_told_before_anything_is_compiled(flags, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plan", RECIPE, *flags])
    with pytest.raises(UserError, match=message):
        plan.main()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--topology=cpu:3"], "must be a multiple of 3"),
        (["--topology=cpu:8", "--mesh=fsdp=3"], "does not make 8 devices"),
        (["--topology=cpu:8", "--efficiency=compute=2"], "above 0 and up to 1"),
    ],
)
def test_what_cannot_be_compiled_is_told_in_a_line(flags, message):
    done = run(*flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_vocabulary_planned_for_is_that_of_the_weights_and_the_new_words(tmp_path):
    """Not the recipe's, which is larger: `train` has rows for as many pieces as there are."""
    config = get_config()
    assert config.model.vocab_size > len(PIECES) + 1
    config.init_from = str(
        save_peer(peer("BertForPreTraining", max_position_embeddings=64), tmp_path / "theirs")
    )
    assert plan._as_trained(config).model.vocab_size == len(PIECES)
    config.corpus.new_tokens = str(tmp_path / "words.txt")
    (tmp_path / "words.txt").write_text("zebra\n")
    assert plan._as_trained(config).model.vocab_size == len(PIECES) + 1


def test_ctrl_c_ends_it_while_the_compiler_works():
    command = [sys.executable, "-m", "bert_jax.plan", RECIPE, "--topology=cpu:8"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as planning:
        assert planning.stderr
        told = ""
        while not told.endswith("compiling") and (more := planning.stderr.read(1)):
            told += more
        planning.send_signal(signal.SIGINT)
        told += planning.communicate()[1]
    assert planning.returncode == INTERRUPTED_EXIT_CODE
    assert told.endswith("\nstopped\n")
    assert "Traceback" not in told


@pytest.mark.slow
def test_training_uses_the_programs_that_were_kept(shards: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    data = f"--config.data.dir={shards}"
    assert not run("--topology=cpu:8", f"--save={kept}", data).returncode
    programs = {path.name.removesuffix("-cache") for path in kept.glob("jit_traced-*-cache")}
    assert len(programs) == 2
    trained = run(
        *(f"--workdir={tmp_path / 'run'}", data),
        module="train",
        XLA_FLAGS="--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8",
        JAX_COMPILATION_CACHE_DIR=str(kept),
        JAX_LOGGING_LEVEL="DEBUG",
    )
    assert not trained.returncode, trained.stderr[-2000:]
    log = (trained.stdout + trained.stderr).lower()
    for program in programs:
        assert f"cache hit for 'jit_traced' with key '{program}'" in log, program
