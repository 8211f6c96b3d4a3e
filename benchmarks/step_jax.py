"""Our training step, as `train` compiles it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.batches import phase_of, read_batch
from bert_jax.allocator import take_memory_in_main_thread
from bert_jax.config import Config, model_size
from bert_jax.training.program import pretraining_program
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import create_state


class Trainer:
    """A model on the first device, at the start of its training.

    Attributes:
      mesh: of one device.
      objective: of the phase of the config.
      state: after the steps that were taken.
    """

    def __init__(self, config: Config) -> None:
        take_memory_in_main_thread()
        self.mesh = make_mesh(config.mesh, jax.devices()[:1])
        with jax.set_mesh(self.mesh):
            self.objective, optimizer, abstract, self._step = pretraining_program(config, self.mesh)
            self.state = create_state(self.objective, optimizer, abstract, seed=0)

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The batch on the device."""
        with jax.set_mesh(self.mesh):
            return jax.block_until_ready(shard_batch(self.mesh, batch))

    def step(self, placed: Mapping[str, jax.Array]) -> Any:
        """Train on a batch that is on the device; what can be waited for."""
        with jax.set_mesh(self.mesh):
            self.state, _, outcome = self._step(self.state, placed, 0)
        return outcome


def prepare(size: str, batch: str, dtype: str) -> Callable[[], Any]:
    """A function that has the device take one step."""
    arrays = read_batch(batch)
    config = Config(model=model_size(size))
    config.model.dtype = dtype
    config.data.packing = "segment_ids" in arrays
    config.phases = (phase_of(arrays),)
    trainer = Trainer(config)
    placed = trainer.place(arrays)
    return lambda: trainer.step(placed)


wait = jax.block_until_ready
