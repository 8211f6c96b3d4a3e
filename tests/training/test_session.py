"""What a run leaves behind, when it fails too."""

import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import Config
from bert_jax.errors import TrainingFailure, UserError
from bert_jax.training.checkpoints import Checkpoints, saved_steps
from bert_jax.training.clock import Clock
from bert_jax.training.seal import write_seal
from bert_jax.training.session import in_session, open_run
from bert_jax.training.sharding import make_mesh
from bert_jax.training.stopping import SIGNALS
from bert_jax.training.window import Window


@pytest.mark.parametrize("failure", [TrainingFailure("a ruined run"), RuntimeError("a fault")])
def test_a_checkpoint_on_its_way_is_finished_when_training_fails(tmp_path, monkeypatch, failure):
    def seal_slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(1)
        write_seal(*arguments, **options)

    monkeypatch.setattr("bert_jax.training.checkpoints.write_seal", seal_slowly)
    config, clock = Config(), Clock()
    mesh = make_mesh(config.mesh)
    checkpoints = Checkpoints(tmp_path, keep=3)

    def fail_while_saving() -> None:
        with (
            in_session(config.limits, tmp_path, clock, detect_processes=False) as session,
            open_run(
                session, config, mesh, None, 0, Window(clock, {}), checkpoints, lambda *_: None
            ) as run,
        ):
            state = {"kernel": jax.device_put(jnp.ones((512, 512)))}
            run.checkpoints.save(state, 1, {})
            raise failure

    with pytest.raises(type(failure), match=str(failure)):
        fail_while_saving()
    assert saved_steps(tmp_path / "checkpoints") == [1]


def test_a_memory_that_is_full_is_told_in_a_line_with_what_takes_less(tmp_path):
    with (
        pytest.raises(UserError, match="accumulate=2") as told,
        in_session(Config().limits, tmp_path, None, detect_processes=False),
    ):
        # More than a process can address.
        jax.block_until_ready(jnp.zeros((1 << 47,), jnp.uint8))
    assert "out of memory" in str(told.value).lower()


def test_after_a_run_signals_do_what_they_did_before(tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    with in_session(Config().limits, tmp_path, None, detect_processes=False):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
