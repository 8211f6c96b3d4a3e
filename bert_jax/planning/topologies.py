"""Names of machines: `v5e:4x4`, `v5e:16x16*2` (two such slices), `v5e:*`, `h200:8`, `cpu:8`."""

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from typing import Any

from bert_jax.errors import UserError, first_line
from bert_jax.planning.chips import CHIPS, Chip
from bert_jax.planning.gpus import can_describe, describe_gpus

# Slices that Cloud TPU offers (cloud.google.com/tpu/docs, a page a version); v4 and v5p also come
# in larger cuboids of 4x4x4 blocks.
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBOID = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
_COUNTS = ("1", "8", "16", "32", "64")
SLICES = {
    "v2": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": _CUBOID,
    "v5e": _FLAT,
    "v5p": _CUBOID,
    "v6e": _FLAT,
    "a100": _COUNTS,
    "h100": _COUNTS,
    "h200": _COUNTS,
    "cpu": ("1", "2", "4", "8"),
}
_LARGEST = 16_384  # chips; above that compilation takes more memory than it is worth
# There is no TPU here: the runtime need not look for one, warn, ask the network for it, or keep
# others from the one that it takes for its own.
_NO_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Slices of one shape, joined by a data-centre network."""

    kind: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def name(self) -> str:
        """As it is given on the command line."""
        sizes = "x".join(map(str, self.shape))
        return f"{self.kind}:{sizes}" + (f"*{self.slices}" if self.slices > 1 else "")

    @property
    def chip(self) -> Chip:
        """What each of its devices is."""
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        """Chips that are paid for."""
        return math.prod(self.shape) * self.slices

    @property
    def hosts(self) -> int:
        """Hosts that feed it; slices share none."""
        devices = math.prod(self.shape) * self.devices_a_chip
        return -(-devices // self.chip.host_devices) * self.slices

    @property
    def devices_a_chip(self) -> int:
        """Two for v2 and v3, whose cores are devices of their own."""
        return 2 if self.kind in ("v2", "v3") else 1


def parse_topologies(name: str) -> list[Topology]:
    """The topologies of a name; several for one that ends with `:*`.

    Raises:
      UserError: it is not known.
    """
    kind, colon, rest = name.partition(":")
    known = "; ".join(f"{kind}:{','.join(shapes)}" for kind, shapes in SLICES.items())
    hint = f"known are {known}; several slices as v5e:16x16*2, all of a kind as v5e:*"
    if kind not in SLICES or not colon:
        raise UserError(f"--topology={name}: no such topology; {hint}")
    if rest == "*":
        return [Topology(kind, _shape(shape)) for shape in SLICES[kind]]
    found = re.fullmatch(r"(\d+(?:x\d+)*)(?:\*(\d+))?", rest)
    axes = max(CHIPS[kind].axes, 1)
    if not found or len(shape := _shape(found[1])) != axes or 0 in shape:
        raise UserError(f"--topology={name}: no such topology; {hint}")
    topology = Topology(kind, shape, int(found[2] or 1))
    if not 0 < topology.chips <= _LARGEST:
        raise UserError(f"--topology={name}: from 1 to {_LARGEST} chips can be planned for")
    return [topology]


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x"))


def describe_devices(topology: Topology) -> list[Any]:
    """JAX devices that can be compiled for: a topology's, or virtual ones of this CPU.

    These stand for GPUs where JAX has no compiler for them. They must have been asked for with
    `prepare` before JAX came up.

    Raises:
      UserError: libtpu is not installed, or a compiler does not know the topology.
    """
    import jax
    from jax.experimental import topologies

    if can_describe(topology.chip):
        return describe_gpus(topology.chip, topology.chips)
    if not topology.chip.is_tpu:
        return jax.devices("cpu")[: topology.chips]
    if not importlib.util.find_spec("libtpu"):
        raise UserError('the TPU compiler, libtpu, is not installed; pip install -e ".[tpu]"')
    options: dict[str, Any] = {}
    if topology.kind in ("v4", "v5p"):
        options["chip_config_name"] = "megacore"  # both cores of a chip are one device
    if topology.shape == (1, 1):
        options["chips_per_host_bounds"] = (1, 1, 1)  # not the 2x2 of a whole host
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    one = Topology(topology.kind, topology.shape).name
    try:
        described = topologies.get_topology_desc(one, "tpu", **options)
    except RuntimeError as error:  # of which JAX's own errors are
        raise UserError(first_line(error)) from error
    return list(described.devices)


def prepare(topologies: list[Topology]) -> None:
    """Ask JAX for as many virtual CPU devices as the topologies need, before it comes up."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    # XLA warns of what does not fit a GPU; the plan says so.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name, value in _NO_TPU.items():
        os.environ.setdefault(name, value)
    import jax

    needed = [topology.chips for topology in topologies if not topology.chip.is_tpu]
    jax.config.update("jax_num_cpu_devices", max(needed, default=1))
