"""The step is the same training whatever the mesh, the micro-batches and the layer loop."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import BertConfig, Config, MeshConfig, OptimizerConfig
from bert_jax.models import BertForPreTraining
from bert_jax.training.evaluation import evaluate, mean_metrics
from bert_jax.training.objective import Objective, pretraining
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.program import pretraining_program
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import TrainState, abstract_state, create_state
from bert_jax.training.steps import compile_eval_step, compile_train_step, train_step

STEPS = 4
BATCH, LENGTH, PREDICTIONS = 16, 24, 4
CONFIG = BertConfig(
    vocab_size=93,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=32,
    vocab_multiple=8,
)
MESHES = [(8, 1, 1), (4, 2, 1), (2, 2, 2)]  # test_sharding.py has more


def random_batch(seed: int, rows: int = BATCH) -> dict[str, np.ndarray]:
    """Random ids, ragged lengths, and a different number of predictions in each row."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(6, LENGTH + 1, rows)
    attention_mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    counts = rng.integers(1, PREDICTIONS + 1, rows)
    return {
        "input_ids": rng.integers(5, CONFIG.vocab_size, (rows, LENGTH)).astype(np.int32)
        * attention_mask,
        "token_type_ids": (np.arange(LENGTH) >= lengths[:, None] // 2).astype(np.int32),
        "attention_mask": attention_mask,
        "masked_lm_positions": rng.integers(1, 6, (rows, PREDICTIONS)).astype(np.int32),
        "masked_lm_ids": rng.integers(5, CONFIG.vocab_size, (rows, PREDICTIONS)).astype(np.int32),
        "masked_lm_weights": (np.arange(PREDICTIONS) < counts[:, None]).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, rows).astype(np.int32),
        "next_sentence_weights": np.ones(rows, np.float32),
    }


def run_steps(
    shape: tuple[int, int, int],
    accumulate: int = 1,
    config: BertConfig = CONFIG,
    rule: str = "adam_original",
) -> tuple[list[float], TrainState]:
    """Losses of a few steps on a mesh, and the state after them."""
    data, fsdp, tensor = shape
    mesh = make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
    settings = OptimizerConfig(name=rule, learning_rate=1e-2, warmup_steps=2)
    optimizer = make_optimizer(settings, STEPS)
    objective = pretraining(BertForPreTraining(config))
    with jax.set_mesh(mesh):
        abstract = abstract_state(objective, optimizer, mesh)
        state = create_state(objective, optimizer, abstract, seed=3)
        step = compile_train_step(abstract, objective, optimizer, accumulate=accumulate)
        losses = []
        for index in range(STEPS):
            batch = shard_batch(mesh, random_batch(index))
            state, metrics, _ = step(state, batch, 3)
            losses.append(mean_metrics([metrics])["mlm_loss"])
    return losses, state


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_process_that_computes_in_64_bits_trains_the_same(dtype):
    """As JAX_ENABLE_X64 has it, or a program around ours, whose own arrays may need them."""
    config = dataclasses.replace(CONFIG, dtype=dtype)
    losses, state = run_steps((4, 2, 1), config=config)
    with jax.enable_x64(True):
        same_losses, same = run_steps((4, 2, 1), config=config)
    assert same_losses == losses
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), same, state)


def test_the_optimizer_is_given_the_norm():
    """So that clipping does not compute it once more."""

    def update(
        updates: Any, state: Any, params: Any = None, *, grad_norm: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        return updates, grad_norm

    keeps_norm = optax.GradientTransformationExtraArgs(lambda params: jnp.float32(0), update)
    objective = pretraining(BertForPreTraining(CONFIG))
    mesh = make_mesh(MeshConfig(data=8))
    with jax.set_mesh(mesh):
        abstract = abstract_state(objective, keeps_norm, mesh)
        state = create_state(objective, keeps_norm, abstract, seed=3)
        step = compile_train_step(abstract, objective, keeps_norm, accumulate=1)
        state, _, outcome = step(state, shard_batch(mesh, random_batch(0)), 3)
    assert float(state.opt_state) == float(outcome.grad_norm) > 0


def without_dropout(config: BertConfig) -> BertConfig:
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="module")
def reference() -> tuple[list[float], TrainState]:
    return run_steps((8, 1, 1))


@pytest.mark.parametrize("shape", MESHES[1:])
def test_every_mesh_gives_the_same_losses_and_parameters(shape, reference):
    losses, state = run_steps(shape)
    np.testing.assert_allclose(losses, reference[0], rtol=2e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6),
        state.params,
        reference[1].params,
    )


@pytest.mark.parametrize("scan_layers", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_muon_trains_the_same_on_a_mesh_that_cuts_its_matrices(scan_layers):
    config = dataclasses.replace(CONFIG, scan_layers=scan_layers)
    whole, cut = (run_steps(shape, config=config, rule="muon") for shape in MESHES[::2][:2])
    np.testing.assert_allclose(cut[0], whole[0], rtol=1e-5)
    sharded = jax.tree.leaves(jax.tree.map(lambda leaf: leaf.sharding, cut[1].opt_state))
    assert sum(not sharding.is_fully_replicated for sharding in sharded) > 10


def test_parameters_are_spread_as_the_rules_say():
    _, state = run_steps((2, 2, 2))
    table = state.params["bert"]["embeddings"]["word_embeddings"]
    assert table.sharding.shard_shape(table.shape) == (
        CONFIG.padded_vocab_size // 4,
        CONFIG.hidden_size,
    )
    moments = jax.tree.leaves(state.opt_state[1].mu)
    for parameter, moment in zip(jax.tree.leaves(state.params), moments, strict=True):
        assert parameter.sharding.is_equivalent_to(moment.sharding, parameter.ndim)


def test_micro_batches_give_the_update_of_the_whole_batch():
    config = without_dropout(CONFIG)
    whole_losses, whole = run_steps((2, 1, 4), config=config)
    cut_losses, cut = run_steps((2, 1, 4), accumulate=4, config=config)
    np.testing.assert_allclose(cut_losses, whole_losses, rtol=2e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6),
        cut.params,
        whole.params,
    )


def test_dropout_changes_with_seed_step_and_micro_batch():
    """Each of four micro-batches draws the gradient of a parameter of its own."""

    def forward(params: Any, batch: Any, key: Any) -> dict[str, jax.Array]:
        return {"loss": jnp.sum(params[batch["row"]] * jax.random.uniform(key))}

    objective = Objective(
        init=lambda _: jnp.zeros(4),
        forward=forward,
        weights=lambda _: {"loss": jnp.float32(1)},
        metrics=lambda outputs, _: {"loss": (outputs["loss"], jnp.float32(1))},
    )
    sgd = optax.sgd(1.0)
    batch = {"row": jnp.arange(4)}

    @jax.jit
    def drawn(seed: Any, step: Any) -> jax.Array:
        state = TrainState(step, jnp.zeros(4), sgd.init(jnp.zeros(4)), jnp.zeros(2))
        settings: Any = {"objective": objective, "optimizer": sgd, "accumulate": 4}
        return -train_step(state, batch, seed, **settings)[0].params

    draws = [drawn(seed, step).tolist() for seed in (0, 1) for step in (5, 6)]
    assert len({draw for of_step in draws for draw in of_step}) == 16
    assert drawn(0, 5).tolist() == draws[0]


def test_another_seed_begins_with_other_parameters():
    unused: Any = None
    objective = Objective(lambda key: jax.random.normal(key, (8,)), unused, unused, unused)
    abstract = abstract_state(objective, optax.sgd(1.0), make_mesh(MeshConfig(data=8)))
    first, again, other = (
        create_state(objective, optax.sgd(1.0), abstract, seed).params for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, other).any()


def test_parameters_that_are_given_are_not_made():
    made = []

    def draw(key: jax.Array) -> np.ndarray:
        made.append(key)
        return np.zeros(8, np.float32)

    def init(key: jax.Array) -> dict[str, jax.Array]:
        given = jax.pure_callback(draw, jax.ShapeDtypeStruct((8,), jnp.float32), key)
        return {"given": given, "fresh": jax.random.normal(key, (8,))}

    unused: Any = None
    objective = Objective(init, unused, unused, unused)
    optimizer = optax.adam(1.0)
    abstract = abstract_state(objective, optimizer, make_mesh(MeshConfig(), jax.devices()[:1]))
    whole = create_state(objective, optimizer, abstract, seed=3)
    assert len(made) == 1
    weights = jnp.arange(8.0)
    state = create_state(
        objective, optimizer, abstract, seed=3, given=abstract.params | {"given": weights}
    )
    assert len(made) == 1
    assert state.params["given"] is weights
    np.testing.assert_array_equal(state.params["fresh"], whole.params["fresh"])
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, whole.opt_state)


def test_another_seed_draws_other_dropout_by_the_same_program():
    """So that the seeds of a sweep are compiled once."""
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    batch = shard_batch(mesh, random_batch(0))
    programs, losses = set(), set()
    with jax.set_mesh(mesh):
        for seed in (0, 1):
            program = pretraining_program(Config(model=CONFIG, seed=seed), mesh)
            state = create_state(program.objective, program.optimizer, program.abstract, seed=7)
            lowered = program.train_step.lower(state, batch, np.uint32(seed))
            programs.add(lowered.as_text())
            losses.add(float(lowered.compile()(state, batch, np.uint32(seed))[2].loss))
    assert len(programs) == 1
    assert len(losses) == 2


def test_a_ragged_last_batch_is_scored_exactly():
    """Rows of zero weight change nothing: 11 examples in batches of 8 score as one batch of 11."""
    objective = pretraining(BertForPreTraining(CONFIG))
    mesh = make_mesh(MeshConfig(data=8))
    rows = random_batch(5, rows=11)
    padded = {name: np.concatenate([value, value[:5]]) for name, value in rows.items()}
    padded["masked_lm_weights"][11:] = 0
    padded["next_sentence_weights"][11:] = 0
    batches = [{name: value[i : i + 8] for name, value in padded.items()} for i in (0, 8)]
    with jax.set_mesh(mesh):
        abstract = abstract_state(objective, optax.sgd(1.0), mesh)
        state = create_state(objective, optax.sgd(1.0), abstract, seed=0)
        scored = evaluate(compile_eval_step(objective), state.params, batches, mesh)
        outputs = objective.forward(
            state.params, {name: jnp.asarray(v) for name, v in rows.items()}, None
        )
    log_probs = jax.nn.log_softmax(outputs["mlm_logits"])
    losses = -np.take_along_axis(np.asarray(log_probs), rows["masked_lm_ids"][..., None], -1)[
        ..., 0
    ]
    expected = (losses * rows["masked_lm_weights"]).sum() / rows["masked_lm_weights"].sum()
    np.testing.assert_allclose(scored["mlm_loss"], expected, rtol=1e-6)
    nsp_right = np.argmax(outputs["nsp_logits"], -1) == rows["next_sentence_labels"]
    np.testing.assert_allclose(scored["nsp_accuracy"], nsp_right.mean(), rtol=1e-6)
    np.testing.assert_allclose(scored["mlm_perplexity"], np.exp(scored["mlm_loss"]), rtol=1e-6)
