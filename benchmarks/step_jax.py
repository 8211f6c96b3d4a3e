"""Our training step, as `train` compiles it."""

from collections.abc import Callable
from typing import Any

import jax

from benchmarks.batches import phase_of, read_batch
from bert_jax.config import Config, model_size
from bert_jax.training.program import pretraining_program
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import create_state


def prepare(size: str, batch: str, dtype: str) -> Callable[[], Any]:
    """A function that takes one step, and waits for it."""
    arrays = read_batch(batch)
    config = Config(model=model_size(size))
    config.model.dtype = dtype
    # As the recipes of these sizes have it: a CPU runs a few layers faster unrolled.
    config.model.scan_layers = size in ("base", "large")
    config.phases = (phase_of(arrays),)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh):
        objective, optimizer, abstract, step = pretraining_program(config, mesh)
        state = create_state(objective, optimizer, abstract, seed=0)
    placed = shard_batch(mesh, arrays)

    def work() -> None:
        nonlocal state
        with jax.set_mesh(mesh):
            state, _, outcome = step(state, placed, 0)
            jax.block_until_ready(outcome)

    return work
