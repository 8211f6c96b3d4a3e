"""What would fit a device's memory: the largest batch, and what helps a step that does not."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_jax.config import Config, Phase
from bert_jax.planning.compile import DoesNotFit, compile_phase
from bert_jax.training.sharding import batch_parts, make_mesh

# From cheap to expensive: what the backward pass computes again.
_REMAT = ("none", "dots", "full")
_TRIES = 3


def memory_of(config: Config, phase: Phase, devices: Sequence[Any]) -> float:
    """Bytes that the step takes on one device; infinite where the compiler gave up unexplained."""
    try:
        return compile_phase(config, phase, devices).memory.total
    except DoesNotFit as error:
        return error.wanted or float("inf")


def largest_batch(
    config: Config, phase: Phase, devices: Sequence[Any], limit: float, taken: float
) -> int:
    """Sequences a device that fit in one (micro-)batch; compiled, but for a little less than all.

    Memory grows with the batch nearly as a straight line: it is drawn through the phase's own batch
    and twice that, and what it gives is compiled, and a little less where that does not fit.

    Args:
      config, phase, devices: as for `compile_phase`; the phase fits.
      limit: bytes of a device.
      taken: of the phase as it is.
    """
    rows = batch_parts(make_mesh(config.mesh, devices)) * config.optimizer.accumulate
    batch = phase.batch_size // rows

    def memory(batch: int) -> float:
        other = dataclasses.replace(phase, batch_size=batch * rows)
        return memory_of(config, other, devices)

    slope = (memory(2 * batch) - taken) / batch
    if not 0 < slope < float("inf"):
        return batch
    candidate = batch + int((limit - taken) / slope)
    for _ in range(_TRIES):
        if candidate <= batch or memory(candidate) <= limit:
            break
        candidate = candidate * 15 // 16
    else:
        return batch
    return max(candidate, batch)


def remedies(
    config: Config, phase: Phase, devices: Sequence[Any], limit: float
) -> dict[str, float]:
    """Settings that make a phase fit, and the bytes it takes with each.

    The cheapest rematerialisation that does, and the fewest micro-batches that do.
    """
    found: dict[str, float] = {}
    for remat in _REMAT[_REMAT.index(config.model.remat) + 1 :]:
        model = dataclasses.replace(config.model, remat=remat)
        taken = memory_of(dataclasses.replace(config, model=model), phase, devices)
        if taken <= limit:
            found[f"--config.model.remat={remat}"] = taken
            break
    rows = batch_parts(make_mesh(config.mesh, devices))
    count = 2 * config.optimizer.accumulate
    while phase.batch_size % (rows * count) == 0:
        optimizer = dataclasses.replace(config.optimizer, accumulate=count)
        taken = memory_of(dataclasses.replace(config, optimizer=optimizer), phase, devices)
        if taken <= limit:
            found[f"--config.optimizer.accumulate={count}"] = taken
            break
        count *= 2
    return found
