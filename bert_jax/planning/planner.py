"""What a recipe needs on a topology: memory, work, time and cost, from its compiled steps."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_jax.config import Config, Phase
from bert_jax.data.batch_shapes import row_predictions
from bert_jax.planning.compile import CompiledPhase, DoesNotFit, Memory, compile_phase
from bert_jax.planning.fitting import largest_batch, remedies
from bert_jax.planning.hlo import collectives
from bert_jax.planning.kernels import kernels
from bert_jax.planning.roofline import Efficiency, Place, by_kind, device_places, roofline
from bert_jax.planning.topologies import Topology, describe_devices
from bert_jax.training.flops import training_flops_per_token
from bert_jax.training.sharding import make_mesh

_SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """A phase on a topology; bytes and FLOPs are of one device and one step.

    packed: planned for a row a sequence, the most that a packed step takes.
    fits: whether the compiler found room in the memory of a device.
    wanted: bytes that it would take where it does not fit; 0 where the compiler does not say.
    remedies: settings with which it would, and the bytes that it would take then.
    largest_batch: sequences a device that fit in a (micro-)batch; None: not looked for.
    model_flops_per_token: by the formula of `training.flops.training_flops_per_token`.
    hlo_to_model: FLOPs of the compiled program over those of the model.
    intensity: FLOPs a byte of memory traffic.
    collectives: by kind, {"count", "bytes"} of a step.
    seconds: of a step: the bounds by compute, memory and interconnect, and the estimate.
    input_tokens_per_second: that each host must supply.
    """

    seq_len: int
    batch_size: int
    steps: int
    packed: bool
    fits: bool
    wanted: float = 0.0
    remedies: dict[str, float] = field(default_factory=dict)
    memory: Memory | None = None
    largest_batch: int | None = None
    model_flops_per_token: float
    hlo_to_model: float | None = None
    bytes_moved: int | None = None
    intensity: float | None = None
    collectives: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    limit: str | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    input_tokens_per_second: float | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe on a topology.

    compiled_for: what the programs were compiled for; where that is the CPU and the topology is
      not, they are estimates.
    days, cost: of all phases; None where one does not fit or the chip's peak is not known.
    """

    topology: str
    chips: int
    device_kind: str
    device_memory: float
    mesh: dict[str, int]
    compiled_for: str
    phases: list[PhasePlan]
    days: float | None
    cost: float | None


def plan_recipe(
    config: Config,
    topology: Topology,
    *,
    efficiency: Efficiency,
    price: float | None = None,
    search: bool = False,
) -> Plan:
    """Compile all phases of `config` for `topology` and work out what they need.

    Args:
      config: validated; its mesh is that of the plan.
      efficiency: shares of the data sheet's figures that are reached.
      price: of a chip for an hour.
      search: look for the largest batch that fits too, which takes up to four more compilations.

    Raises:
      UserError: no compiler for the topology; the mesh does not divide devices, batch or model.
    """
    devices = describe_devices(topology)
    mesh = make_mesh(config.mesh, devices)
    places = device_places(topology, [*mesh.devices.flat])
    phases = [
        _plan_phase(config, phase, topology, devices, places, efficiency, search)
        for phase in config.phases
    ]
    days = None
    if all(phase.fits and phase.seconds for phase in phases):
        days = sum(phase.steps * phase.seconds["step"] for phase in phases) / _SECONDS_A_DAY
    return Plan(
        topology=topology.name,
        chips=topology.chips,
        device_kind=topology.chip.device_kind,
        device_memory=topology.chip.memory,
        mesh=dict(mesh.shape),
        compiled_for=devices[0].device_kind,
        phases=phases,
        days=days,
        cost=days * 24 * price * topology.chips if days is not None and price else None,
    )


def _plan_phase(
    config: Config,
    phase: Phase,
    topology: Topology,
    devices: Sequence[Any],
    places: Sequence[Place],
    efficiency: Efficiency,
    search: bool,
) -> PhasePlan:
    limit = topology.chip.memory
    predictions = row_predictions(phase, config.data)
    model = training_flops_per_token(config.model, phase.seq_len, predictions)
    common: dict[str, Any] = {
        "seq_len": phase.seq_len,
        "batch_size": phase.batch_size,
        "steps": phase.steps,
        "packed": config.data.packing,
        "model_flops_per_token": model,
    }
    try:
        compiled = compile_phase(config, phase, devices)
        wanted = compiled.memory.total
    except DoesNotFit as error:
        compiled, wanted = None, error.wanted
    if compiled is None or wanted > limit:
        common["remedies"] = remedies(config, phase, devices, limit)
    if compiled is None:
        return PhasePlan(**common, fits=False, wanted=wanted)
    if search and wanted <= limit < math.inf:
        common["largest_batch"] = largest_batch(config, phase, devices, limit, wanted)
    step = model * phase.seq_len * phase.batch_size
    common |= _work(config, phase, topology, compiled, places, efficiency, step)
    return PhasePlan(**common, fits=wanted <= limit, wanted=wanted, memory=compiled.memory)


def _work(
    config: Config,
    phase: Phase,
    topology: Topology,
    compiled: CompiledPhase,
    places: Sequence[Place],
    efficiency: Efficiency,
    model: float,
) -> dict[str, Any]:
    """What the program of a phase does, as fields of its `PhasePlan`; `model`: FLOPs of a step."""
    work, exchanged = kernels(compiled.text), collectives(compiled.text)
    flops = sum(kernel.times * kernel.flops for kernel in work)
    moved = sum(kernel.times * kernel.bytes for kernel in work)
    found: dict[str, Any] = {
        "hlo_to_model": flops * len(places) / model,
        "bytes_moved": moved,
        "intensity": flops / max(moved, 1),
        "collectives": by_kind(exchanged),
        "compile_seconds": compiled.seconds,
    }
    bounds = roofline(
        topology.chip,
        work,
        exchanged,
        places,
        float32=config.model.dtype == "float32",
        efficiency=efficiency,
    )
    if bounds and topology.chip.flops:
        tokens = phase.batch_size * phase.seq_len / bounds.step
        found |= {
            "seconds": dataclasses.asdict(bounds),
            "limit": bounds.limit,
            "tokens_per_second": tokens,
            "mfu": model / bounds.step / len(places) / topology.chip.flops,
            "input_tokens_per_second": tokens / topology.hosts,
        }
    return found
