"""Compiles the train step of a phase ahead of time, for devices that need not be here."""

import math
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.config import Config, Phase
from bert_jax.data.batch_shapes import batch_shapes
from bert_jax.errors import UserError, first_line
from bert_jax.models.attention import check_attention
from bert_jax.training.program import Program, pretraining_program
from bert_jax.training.sharding import batch_sharding, check_mesh, make_mesh
from bert_jax.training.xla_options import check_xla_options

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one device.

    activations is all that lives only during a step: gradients and the compiler's scratch too.
    """

    parameters: int
    optimizer: int
    batch: int
    activations: int

    @property
    def total(self) -> int:
        """What must be free."""
        return self.parameters + self.optimizer + self.batch + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPhase:
    """A train step, compiled: its memory, its HLO text, and how long that took."""

    memory: Memory
    text: str
    seconds: float


class DoesNotFit(Exception):
    """The compiler found no room in a device's memory: bytes it wanted, 0 where it doesn't say."""

    def __init__(self, wanted: float) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def keep_programs(directory: Path) -> None:
    """Keep what is compiled from now on in `directory`, as JAX's persistent compilation cache.

    Raises:
      UserError: it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--save={directory}: {error.strerror}") from error
    jax.config.update("jax_compilation_cache_dir", str(directory.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def compile_phase(config: Config, phase: Phase, devices: Sequence[Any]) -> CompiledPhase:
    """Compile what `train` would run in `phase` on `devices`; standard error tells how it goes.

    Raises:
      DoesNotFit: it does not fit their memory.
      UserError: the mesh does not divide the devices, the batch or the model, or the attention is
        for other devices.
    """
    mesh = make_mesh(config.mesh, devices)
    check_mesh(config, {f"the batch at length {phase.seq_len}": phase.batch_size}, mesh)
    check_attention(config.model, devices[0].platform)
    check_xla_options(config.xla_options, mesh)
    # XLA cannot time products on a GPU that is not here, to choose among them.
    options = {"xla_gpu_autotune_level": 0} if devices[0].platform == "gpu" else None
    with _told(config, phase, devices) as begun, jax.set_mesh(mesh), warnings.catch_warnings():
        # Without a TPU its programs can be kept, but not be read again: that is no fault.
        warnings.filterwarnings("ignore", message="Error reading persistent compilation cache")
        program = pretraining_program(config, mesh)
        batch = _abstract_batch(config, phase, mesh)
        seed = jax.ShapeDtypeStruct((), "uint32")
        try:
            lowered = program.train_step.lower(program.abstract, batch, seed)
            compiled = lowered.compile(options)
        except jax.errors.JaxRuntimeError as error:
            raise _compile_error(error) from error
    memory = _memory(program, batch, compiled)
    return CompiledPhase(
        memory=memory, text=compiled.as_text() or "", seconds=time.monotonic() - begun
    )


@contextmanager
def _told(config: Config, phase: Phase, devices: Sequence[Any]) -> Iterator[float]:
    """Tell what is compiled, as it begins, and how long it took: for a TPU that is minutes.

    Yields when it began, by `time.monotonic`.
    """
    what = f"length {phase.seq_len}, batch {phase.batch_size:,}"
    if config.model.remat != "none":
        what += f", remat={config.model.remat}"
    if config.optimizer.accumulate > 1:
        what += f", accumulate={config.optimizer.accumulate}"
    place = f"{len(devices):,} x {devices[0].device_kind}"
    print(f"compiling {what} for {place} ...", end="", file=sys.stderr, flush=True)
    begun = time.monotonic()
    try:
        yield begun
    finally:
        print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr)


def _abstract_batch(config: Config, phase: Phase, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = batch_sharding(mesh)
    shapes = batch_shapes(phase, config.data)
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, (shape, dtype) in shapes.items()
    }


def _compile_error(error: Exception) -> Exception:
    text = str(error)
    # A kernel that asks for too much of a chip's own memory does so whatever is saved elsewhere.
    if "RESOURCE_EXHAUSTED" not in text or "memory space vmem" in text:
        return UserError(f"the compiler says: {first_line(error)}")
    used = re.search(r"required for HLO temporaries \(([\d.]+)([KMGT]?)\)", text) or re.search(
        r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", text
    )
    return DoesNotFit(float(used[1]) * _UNITS[used[2]] if used else 0.0)


def _memory(program: Program, batch: Mapping[str, Any], compiled: Any) -> Memory:
    analysis = compiled.memory_analysis()
    parameters = _device_bytes(program.abstract.params)
    optimizer = _device_bytes(program.abstract.opt_state)
    batches = _device_bytes(dict(batch))
    kept = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    total = kept - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=batches,
        activations=max(0, total - parameters - optimizer - batches),
    )


def _device_bytes(tree: Any) -> int:
    """Bytes of a tree's arrays on one device, without what the tiles of a layout pad them to."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
