"""What a run compiles, the same whether it runs now or is planned for elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax
from jax.sharding import Mesh

from bert_jax.config import Config, RunConfig
from bert_jax.models import BertForPreTraining
from bert_jax.training.objective import Objective, pretraining
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.steps import compile_train_step
from bert_jax.training.xla_options import compiler_options


class Program(NamedTuple):
    """A model's objective and optimizer, the shapes of its state, and the step over them."""

    objective: Objective
    optimizer: optax.GradientTransformation
    abstract: TrainState
    train_step: Callable[..., Any]


def pretraining_program(config: Config, mesh: Mesh) -> Program:
    """What `config` trains on `mesh`, which `jax.set_mesh` has set; nothing is compiled yet."""
    model = BertForPreTraining(config.model, next_sentence=config.data.next_sentence)
    optimizer = make_optimizer(config.optimizer, config.total_steps)
    return training_program(config, pretraining(model), optimizer, mesh)


def training_program(
    config: RunConfig, objective: Objective, optimizer: optax.GradientTransformation, mesh: Mesh
) -> Program:
    """An objective's state and step by the settings of `config`, as `pretraining_program`."""
    abstract = abstract_state(objective, optimizer, mesh, config.mesh.shard_optimizer)
    train_step = compile_train_step(
        abstract,
        objective,
        optimizer,
        accumulate=config.optimizer.accumulate,
        spike_sigmas=config.optimizer.spike_sigmas,
        shard_optimizer=config.mesh.shard_optimizer,
        compiler_options=compiler_options(config.xla_options, mesh),
    )
    return Program(objective, optimizer, abstract, train_step)
