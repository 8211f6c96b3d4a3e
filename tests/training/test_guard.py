"""Bad numbers change nothing, are told with their step, and end a run that they have ruined."""

import dataclasses
import re
import shlex
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_run

from bert_jax.config import BertConfig, MeshConfig, OptimizerConfig
from bert_jax.models import BertForPreTraining
from bert_jax.training import steps
from bert_jax.training.metrics import read_metrics
from bert_jax.training.objective import Objective, pretraining
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import NORM_WINDOW, TrainState, abstract_state, create_state
from bert_jax.training.steps import compile_train_step

ROWS, LENGTH, PREDICTIONS = 16, 16, 3
CONFIG = BertConfig(
    vocab_size=93,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=32,
    vocab_multiple=8,
)


def random_batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def ids(*shape: int) -> np.ndarray:
        return rng.integers(5, CONFIG.vocab_size, shape).astype(np.int32)

    return {
        "input_ids": ids(ROWS, LENGTH),
        "token_type_ids": np.zeros((ROWS, LENGTH), np.int32),
        "attention_mask": np.ones((ROWS, LENGTH), np.int32),
        "masked_lm_positions": rng.integers(1, LENGTH, (ROWS, PREDICTIONS)).astype(np.int32),
        "masked_lm_ids": ids(ROWS, PREDICTIONS),
        "masked_lm_weights": np.ones((ROWS, PREDICTIONS), np.float32),
        "next_sentence_labels": rng.integers(0, 2, ROWS).astype(np.int32),
        "next_sentence_weights": np.ones(ROWS, np.float32),
    }


class Training:
    """A step compiled on a mesh of eight devices, and a state to begin with."""

    def __init__(
        self,
        shape: tuple[int, int, int] = (8, 1, 1),
        accumulate: int = 1,
        dtype: str = "float32",
        sigmas: float = 0.0,
    ) -> None:
        data, fsdp, tensor = shape
        self.mesh = make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
        objective = pretraining(BertForPreTraining(dataclasses.replace(CONFIG, dtype=dtype)))
        optimizer = make_optimizer(OptimizerConfig(name="adamw", warmup_steps=0), 100)
        with jax.set_mesh(self.mesh):
            abstract = abstract_state(objective, optimizer, self.mesh)
            self.state = create_state(objective, optimizer, abstract, seed=3)
            self._step = compile_train_step(
                abstract, objective, optimizer, accumulate=accumulate, spike_sigmas=sigmas
            )

    def step(self, state: TrainState) -> tuple[TrainState, Any, Any]:
        with jax.set_mesh(self.mesh):
            return self._step(state, shard_batch(self.mesh, random_batch()), 3)

    def copy(self, **changes: Any) -> TrainState:
        """The state with some fields changed: arrays of its own, for a step to consume."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state), out_shardings=shardings)
        return copy(jax.device_get(dataclasses.replace(self.state, **changes)))

    def params(self, name: str, value: float) -> Any:
        """The parameters with all values of one kind replaced."""

        def change(path: Any, leaf: jax.Array) -> np.ndarray:
            host = np.asarray(leaf)
            return np.full_like(host, value) if name in jax.tree_util.keystr(path) else host

        return jax.tree_util.tree_map_with_path(change, self.state.params)


def bits(state: TrainState) -> dict[str, bytes]:
    leaves = jax.tree_util.tree_leaves_with_path(dataclasses.replace(state, step=jnp.int32(0)))
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


@pytest.mark.parametrize(
    ("shape", "accumulate", "dtype", "value", "platform"),
    [
        ((2, 2, 2), 1, "float32", np.inf, "cpu"),
        ((4, 1, 2), 2, "bfloat16", 3e38, "cpu"),
        ((2, 2, 2), 1, "float32", np.inf, "tpu"),
    ],
)
def test_a_step_of_bad_numbers_changes_not_a_bit(
    shape, accumulate, dtype, value, platform, monkeypatch
):
    monkeypatch.setattr(steps, "device_platform", lambda: platform)
    training = Training(shape, accumulate, dtype)
    # Moments that are not zero, for a change to show.
    moments = jax.tree.map(lambda leaf: np.asarray(leaf) + 3, training.state.opt_state)
    state = training.copy(params=training.params("word_embeddings", value), opt_state=moments)
    before = bits(state)
    after, metrics, outcome = training.step(state)
    assert bool(outcome.skipped)
    assert not np.isfinite(outcome.loss)
    assert bits(after) == before
    assert int(after.step) == 1, "the next batch is another"
    assert all(float(number) == 0 for number in jax.tree.leaves(metrics)), "in no mean"


@pytest.fixture(scope="module")
def training() -> Training:
    """One that knows spikes too."""
    return Training(sigmas=6.0)


def test_a_sound_step_is_taken(training):
    before = bits(training.state)
    after, metrics, outcome = training.step(training.copy())
    assert not bool(outcome.skipped)
    assert float(metrics["mlm_loss"][1]) == ROWS * PREDICTIONS
    assert after.grad_norms[-1] == outcome.grad_norm > 0
    changed = [path for path, value in bits(after).items() if value != before[path]]
    assert len(changed) > len(before) / 2


def test_a_branch_takes_the_same_step_as_a_choice_of_each_element(training, monkeypatch):
    monkeypatch.setattr(steps, "device_platform", lambda: "tpu")
    chosen = Training(sigmas=6.0)
    by_branch, by_choice = (each.step(each.copy())[0] for each in (training, chosen))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), by_branch, by_choice
    )


def test_a_gradient_that_overflows_is_skipped_though_the_loss_is_finite(training):
    name = "predictions']['transform']['LayerNorm']['scale"
    state = training.copy(params=training.params(name, 1e25))
    before = bits(state)
    after, _, outcome = training.step(state)
    assert np.isfinite(outcome.loss)
    assert not np.isfinite(outcome.grad_norm)
    assert bool(outcome.skipped)
    assert bits(after) == before


@pytest.mark.parametrize(("seen", "skipped"), [(NORM_WINDOW, True), (NORM_WINDOW - 1, False)])
def test_a_spike_is_measured_against_a_full_window(training, seen, skipped):
    norms = np.zeros(NORM_WINDOW, np.float32)
    norms[NORM_WINDOW - seen :] = 0.01 + 0.001 * np.arange(seen) / seen
    state = training.copy(grad_norms=norms)
    before = bits(state)
    after, _, outcome = training.step(state)
    assert bool(outcome.skipped) == skipped
    assert (bits(after) == before) == skipped
    assert int(after.step) == 1
    if not skipped:
        np.testing.assert_array_equal(after.grad_norms, [*norms[1:], outcome.grad_norm])


def plain_step(loss: float, norm: float, window: list[float]) -> tuple[TrainState, Any]:
    """A step of a parameter 0 whose loss and gradient are these, where a spike is 3 deviations."""
    one = jnp.float32(1)
    objective = Objective(
        init=lambda _: jnp.float32(0),
        forward=lambda params, batch, _: {"loss": params * batch["slope"] + batch["loss"]},
        weights=lambda _: {"loss": one},
        metrics=lambda outputs, _: {"loss": (outputs["loss"], one)},
    )
    sgd = optax.sgd(1.0)
    state = TrainState(jnp.int32(0), jnp.float32(0), sgd.init(one), jnp.float32(window))
    batch = {"slope": jnp.float32(norm), "loss": jnp.float32(loss)}
    settings: Any = {"objective": objective, "optimizer": sgd, "spike_sigmas": 3.0}
    after, _, outcome = steps.train_step(state, batch, 0, **settings)
    return after, outcome


@pytest.mark.parametrize("loss", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_is_skipped_though_the_gradient_is(loss):
    after, outcome = plain_step(loss, 2.0, [0, 0])
    assert (float(outcome.grad_norm), float(after.params)) == (2, 0)
    assert bool(outcome.skipped)


@pytest.mark.parametrize(("norm", "skipped"), [(4.9, False), (5.1, True)])
def test_a_spike_is_so_many_deviations_above_the_mean(norm, skipped):
    after, outcome = plain_step(0.0, norm, [1, 3, 1, 3])
    assert float(outcome.grad_norm) == pytest.approx(norm)
    assert bool(outcome.skipped) == skipped
    assert float(after.params) == pytest.approx(0 if skipped else -norm)


def test_a_ruined_run_ends_without_a_checkpoint_of_it(shards, tmp_path):
    """A learning rate that ruins the model in its second step."""
    run = tmp_path / "run"
    flags = ("--config.optimizer.learning_rate=1e30", "--config.optimizer.max_skipped=4")
    command = small_run.command(shards, run, *flags, "--config.checkpoint_every=1")
    done = subprocess.run(command, capture_output=True, text=True, cwd=small_run.ROOT, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "step 3 skipped: its loss is nan" in done.stderr
    assert "error: 4 steps in a row were skipped, from step 3 on" in done.stderr
    saved = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(saved) == 2
    records = read_metrics(run)
    skips = [record for record in records if record["kind"] == "skip"]
    assert [(record["step"], record["in_row"]) for record in skips] == [
        (3, 1),
        (4, 2),
        (5, 3),
        (6, 4),
    ]
    train = {record["step"]: record for record in records if record["kind"] == "train"}
    assert train[2]["skipped"] == 0
    assert train[2]["loss"] > 0
    assert (train[4]["skipped"], train[4]["loss"]) == (1, None)
    assert train[4]["learning_rate"] == train[2]["learning_rate"], "of the last step taken"
    told = re.search(r"python -m (bert_jax\.batch .*? --step=\d+)", done.stderr)
    assert told, done.stderr
    printed = subprocess.run(
        [sys.executable, "-m", *shlex.split(told[1])],
        capture_output=True,
        text=True,
        cwd=small_run.ROOT,
        timeout=120,
    )
    assert printed.stdout.startswith("step 3 of 12: phase 1"), printed.stderr
