"""Our model as a learner, by the recipe of `tiny` for another number of steps."""

import sys
from pathlib import Path

import jax

from benchmarks.learning import Learner, Spec, learn, open_split
from bert_jax.flags import load_config
from bert_jax.training.evaluation import evaluate as evaluate_batches
from bert_jax.training.program import pretraining_program
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import create_state
from bert_jax.training.steps import compile_eval_step


def begin(spec: Spec, total_steps: int) -> Learner:
    """See `Learner`."""
    config = load_config("tiny")
    config.model.vocab_size = spec.vocab_size
    phase = config.phases[0]
    phase.steps, phase.batch_size = total_steps, spec.batch_size
    config.phases = (phase,)
    config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, total_steps // 10)
    train, heldout = open_split(spec, "train"), open_split(spec, "heldout")
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh):
        objective, optimizer, abstract, train_step = pretraining_program(config, mesh)
        state = create_state(objective, optimizer, abstract, seed=0)
        eval_step = compile_eval_step(objective)

    def step(number: int) -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            batch = shard_batch(mesh, train.batch(number, spec.batch_size))
            state, _, outcome = train_step(state, batch, 0)
            jax.block_until_ready(outcome)

    def evaluate() -> dict[str, float]:
        batches = heldout.evaluation_batches(spec.batch_size, spec.eval_examples)
        with jax.set_mesh(mesh):
            return evaluate_batches(eval_step, state.params, batches, mesh)

    return Learner(step, evaluate)


if __name__ == "__main__":
    learn(begin, Spec.parse(Path(sys.argv[1])))
