"""Compiling our training step anew, of so many layers, scanned or unrolled."""

from collections.abc import Callable
from typing import Any

import jax

from benchmarks.batches import phase_of, read_batch
from bert_jax.config import Config, model_size
from bert_jax.training.program import pretraining_program
from bert_jax.training.sharding import make_mesh, shard_batch


def prepare(layers: int, scanned: bool, batch: str) -> Callable[[], Any]:
    """A function that traces and compiles the step, of layers as wide as those of tiny."""
    arrays = read_batch(batch)
    config = Config(model=model_size("tiny"))
    config.model.num_hidden_layers, config.model.scan_layers = layers, scanned
    config.phases = (phase_of(arrays),)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    placed = shard_batch(mesh, arrays)

    def work() -> None:
        jax.clear_caches()
        with jax.set_mesh(mesh):
            _, _, abstract, step = pretraining_program(config, mesh)
            step.lower(abstract, placed, 0).compile()

    return work
