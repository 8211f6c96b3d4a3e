"""The accelerators that a run can be planned for, by their data sheets."""

from dataclasses import dataclass

from bert_jax.training.flops import peak_flops

_GB = 1e9
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What one JAX device of a kind has: a chip, for v2 and v3 a core, half a chip.

    device_kind: as `jax.Device.device_kind`; its peak is that of `training.flops`.
    memory: bytes that a program can use; for TPUs as their compiler says, which keeps some.
    bandwidth: of that memory, bytes/s.
    link: of a link to a neighbour, one way, bytes/s; for GPUs, of all links of one together.
    axes: of the torus that the links form, two links each; 0 is a switch.
    wrap: an axis of a multiple of so many chips is a ring; another is a line.
    network: of a host to hosts of other slices, one way, bytes/s; 0 is no network.
    host_devices: devices of a host.
    source: of the figures.
    """

    device_kind: str
    memory: float
    bandwidth: float
    link: float
    axes: int
    wrap: int
    network: float
    host_devices: int
    source: str

    @property
    def flops(self) -> float | None:
        """Dense bfloat16 peak, FLOP/s; None where it is not known."""
        return peak_flops(self.device_kind)

    @property
    def is_tpu(self) -> bool:
        """Whether libtpu compiles for it."""
        return self.device_kind.startswith("TPU")


# Links are those of "How to Scale Your Model" (jax-ml.github.io/scaling-book/tpus), table of
# TPU specs, and so are the networks: a chip's share times the chips of a host.
_CLOUD = "cloud.google.com/tpu/docs"
_JOUPPI = "Jouppi et al., 2020, 'A Domain-Specific Supercomputer for Training DNNs', table 2"
CHIPS = {
    "v2": Chip(
        device_kind="TPU v2",
        memory=8 * _GIB,
        bandwidth=350 * _GB,
        link=31 * _GB,
        axes=2,
        wrap=16,
        network=3 * _GB,
        host_devices=8,
        source=_JOUPPI,
    ),
    "v3": Chip(
        device_kind="TPU v3",
        memory=16 * _GIB,
        bandwidth=450 * _GB,
        link=41 * _GB,
        axes=2,
        wrap=32,
        network=6 * _GB,
        host_devices=8,
        source=_JOUPPI,
    ),
    "v4": Chip(
        device_kind="TPU v4",
        memory=30.75 * _GIB,
        bandwidth=1200 * _GB,
        link=45 * _GB,
        axes=3,
        wrap=4,
        network=25 * _GB,
        host_devices=4,
        source=f"{_CLOUD}/v4",
    ),
    "v5e": Chip(
        device_kind="TPU v5 lite",
        memory=15.75 * _GIB,
        bandwidth=819 * _GB,
        link=45 * _GB,
        axes=2,
        wrap=16,
        network=25 * _GB,
        host_devices=8,
        source=f"{_CLOUD}/v5e",
    ),
    "v5p": Chip(
        device_kind="TPU v5",
        memory=95.74 * _GIB,
        bandwidth=2765 * _GB,
        link=90 * _GB,
        axes=3,
        wrap=4,
        network=25 * _GB,
        host_devices=4,
        source=f"{_CLOUD}/v5p",
    ),
    "v6e": Chip(
        device_kind="TPU v6 lite",
        memory=31.25 * _GIB,
        bandwidth=1640 * _GB,
        link=90 * _GB,
        axes=2,
        wrap=16,
        network=100 * _GB,
        host_devices=8,
        source=f"{_CLOUD}/v6e",
    ),
    # GPUs: NVLink all to all within a host, 400 Gbit/s InfiniBand a GPU between hosts (A100: 200).
    "a100": Chip(
        device_kind="NVIDIA A100-SXM4-80GB",
        memory=80 * _GB,
        bandwidth=2039 * _GB,
        link=300 * _GB,
        axes=0,
        wrap=1,
        network=200 * _GB,
        host_devices=8,
        source="NVIDIA A100 data sheet (SXM, 80 GB); DGX A100 data sheet",
    ),
    "h100": Chip(
        device_kind="NVIDIA H100 80GB HBM3",
        memory=80 * _GB,
        bandwidth=3350 * _GB,
        link=450 * _GB,
        axes=0,
        wrap=1,
        network=400 * _GB,
        host_devices=8,
        source="NVIDIA H100 data sheet (SXM); DGX H100 data sheet",
    ),
    "h200": Chip(
        device_kind="NVIDIA H200",
        memory=141 * _GB,
        bandwidth=4800 * _GB,
        link=450 * _GB,
        axes=0,
        wrap=1,
        network=400 * _GB,
        host_devices=8,
        source="NVIDIA H200 data sheet (SXM); DGX H200 data sheet",
    ),
    "cpu": Chip(
        device_kind="cpu",
        memory=float("inf"),
        bandwidth=float("inf"),
        link=float("inf"),
        axes=0,
        wrap=1,
        network=0,
        host_devices=8,
        source="not known: virtual devices of this machine",
    ),
}
