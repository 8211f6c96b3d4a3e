"""How long a compiled step takes at best: by FLOPs, by memory traffic, by interconnect.

The kernels of a step run one after the other, and each takes at least what its products take at
the chip's peak and what its operands take at the memory's bandwidth, whichever is longer.
Collectives come on top, but for those that run beside other work. What is left out: latencies,
the vector unit, tiles that are padded, the host.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.planning.chips import Chip
from bert_jax.planning.hlo import Collective
from bert_jax.planning.kernels import Kernel
from bert_jax.planning.topologies import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the data sheet's figures that are reached; measure them on a run of one's own."""

    compute: float = 1.0
    memory: float = 1.0
    interconnect: float = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is: its slice (a GPU's host) and its coordinates in the slice's torus."""

    slice: int
    coordinates: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds of a step: the three bounds, and what they come to together."""

    compute: float
    memory: float
    interconnect: float
    step: float

    @property
    def limit(self) -> str:
        """The largest bound."""
        bounds = {name: getattr(self, name) for name in ("compute", "memory", "interconnect")}
        return max(bounds, key=lambda name: bounds[name])


def roofline(
    chip: Chip,
    work: Sequence[Kernel],
    exchanged: Sequence[Collective],
    places: Sequence[Place],
    *,
    float32: bool,
    efficiency: Efficiency,
) -> Roofline | None:
    """The bounds of one device's program; None for a chip whose peak is not known.

    Args:
      work, exchanged: of the program.
      places: of all devices, by their number in the program.
      float32: operands are float32. A TPU's matrix unit rounds them to bfloat16; an NVIDIA GPU
        runs them as TF32, at half the bfloat16 peak (data sheets of A100, H100, H200).
      efficiency: shares of compute, memory bandwidth and links that are reached.
    """
    if chip.flops is None:
        return None
    peak = chip.flops * efficiency.compute * (0.5 if float32 and not chip.is_tpu else 1)
    bandwidth = chip.bandwidth * efficiency.memory
    waited, beside = 0.0, 0.0
    for collective in exchanged:
        seconds = collective.times * collective_seconds(chip, collective, places)
        if collective.asynchronous:
            beside += seconds / efficiency.interconnect
        else:
            waited += seconds / efficiency.interconnect
    serial = sum(k.times * max(k.flops / peak, k.bytes / bandwidth) for k in work)
    return Roofline(
        compute=sum(k.times * k.flops for k in work) / peak,
        memory=sum(k.times * k.bytes for k in work) / bandwidth,
        interconnect=waited + beside,
        step=max(serial, beside) + waited,
    )


def collective_seconds(chip: Chip, collective: Collective, places: Sequence[Place]) -> float:
    """Seconds of one collective: within each slice over its links, then between slices.

    By the ring algorithms ("How to Scale Your Model", section on collectives): an all-gather or
    reduce-scatter among n passes (n - 1) / n of its bytes through each device, an all-reduce
    twice that. Between slices the parts that the devices of one have made are exchanged.
    """
    group = [places[device] for device in collective.group]
    slices = {place.slice for place in group}
    inside = len(group) // len(slices)
    passes = 2 if collective.kind == "all-reduce" else 1
    seconds = 0.0
    if inside > 1:
        within = [place for place in group if place.slice == group[0].slice]
        share = 1.0 if collective.kind == "collective-permute" else (inside - 1) / inside
        seconds += passes * share * collective.bytes / _links(chip, within, places)
    if len(slices) > 1 and chip.network:
        part = collective.bytes / inside
        share = (len(slices) - 1) / len(slices)
        seconds += passes * share * part * chip.host_devices / chip.network
    return seconds


def _links(chip: Chip, group: Sequence[Place], places: Sequence[Place]) -> float:
    """Bytes/s that each device of a group in one slice can send to others of it.

    Along each axis of the torus that the group spans, over both links where the axis is a ring;
    over one link where it spans none, as the cores of a chip and GPUs at a switch do.
    """
    links = 0
    for axis in range(chip.axes):
        if len({place.coordinates[axis] for place in group}) > 1:
            length = 1 + max(place.coordinates[axis] for place in places)
            links += 2 if length % chip.wrap == 0 else 1
    return max(links, 1) * chip.link


def device_places(topology: Topology, devices: Sequence[Any]) -> list[Place]:
    """Where each device of a program is; in the order of its mesh."""
    if topology.chip.axes:
        return [
            Place(getattr(device, "slice_index", None) or 0, tuple(device.coords))
            for device in devices
        ]
    count = topology.chip.host_devices
    return [Place(index // count, ()) for index in range(len(devices))]


def by_kind(exchanged: Sequence[Collective]) -> dict[str, dict[str, int]]:
    """How many collectives of each kind run in a step, and their bytes on one device."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"count": 0, "bytes": 0})
    for collective in exchanged:
        counts[collective.kind]["count"] += collective.times
        counts[collective.kind]["bytes"] += collective.times * collective.bytes
    return dict(sorted(counts.items()))
