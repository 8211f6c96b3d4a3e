"""Our model as a learner, by the recipe of `tiny` for another number of steps."""

import sys
from pathlib import Path

import jax

from benchmarks.learning import Learner, Spec, learn, open_split
from benchmarks.step_jax import Trainer
from bert_jax.flags import load_config
from bert_jax.training.evaluation import evaluate as evaluate_batches
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
    trainer = Trainer(config)
    eval_step = compile_eval_step(trainer.objective)

    def step(number: int) -> None:
        placed = trainer.place(train.batch(number, spec.batch_size))
        jax.block_until_ready(trainer.step(placed))

    def evaluate() -> dict[str, float]:
        batches = heldout.evaluation_batches(spec.batch_size, spec.eval_examples)
        with jax.set_mesh(trainer.mesh):
            return evaluate_batches(eval_step, trainer.state.params, batches, trainer.mesh)

    return Learner(step, evaluate)


if __name__ == "__main__":
    learn(begin, Spec.parse(Path(sys.argv[1])))
