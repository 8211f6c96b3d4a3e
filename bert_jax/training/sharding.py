"""One mesh of `data`, `fsdp` and `tensor` axes, and the rules that map logical axes to it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_axes
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.config import MeshConfig, RunConfig
from bert_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# Logical axes of the modules in `bert_jax.models`; those that are not named here are not cut, but
# for storage: see `array_sharding`.
LOGICAL_RULES = (
    ("batch", BATCH_AXES),
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
)
# An array that is hardly more than so many vectors stays whole along `data` and `fsdp`: biases,
# LayerNorm, token types. Together a thousandth of a model, and each would cost messages of its own.
_FEW = 8


def mesh_shape(config: MeshConfig, device_count: int) -> tuple[int, int, int]:
    """The sizes of (data, fsdp, tensor), with a -1 filled in.

    Raises:
      UserError: the axes do not multiply to the number of devices.
    """
    sizes = [config.data, config.fsdp, config.tensor]
    known = int(np.prod([size for size in sizes if size != -1]))
    if -1 in sizes and device_count % known == 0:
        sizes[sizes.index(-1)] = device_count // known
    if int(np.prod(sizes)) != device_count:
        raise UserError(
            f"config.mesh: data={config.data} fsdp={config.fsdp} tensor={config.tensor} does not "
            f"make {device_count} devices; set one of them to -1"
        )
    return sizes[0], sizes[1], sizes[2]


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over all devices; its axes are partitioned by the compiler (`AxisType.Auto`).

    Neighbours along an axis are neighbours in the network of a TPU slice. Several slices, joined by
    the slower network between them, lie one after the other along `data`: only what is added up
    over `data`, once a step, has to cross it.

    Args:
      config: sizes of the axes.
      devices: all of this and the other processes by default; or those of a topology.

    Raises:
      UserError: the axes do not multiply to the number of devices, or the slices do not divide
        `data`.
    """
    devices = jax.devices() if devices is None else devices
    data, fsdp, tensor = mesh_shape(config, len(devices))
    slices: dict[int, list[Any]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if data % len(slices):
        raise UserError(
            f"config.mesh: data={data} is not a multiple of the {len(slices)} slices, which lie "
            f"along it; with fsdp={fsdp} and tensor={tensor} an axis would cross from slice to "
            "slice: make those smaller"
        )
    shape = (data // len(slices), fsdp, tensor)
    grids = [
        # Several of our axes may share one of the network's, as those of a 2D torus must.
        mesh_utils.create_device_mesh(shape, slices[index], allow_split_physical_axes=True)
        for index in sorted(slices)
    ]
    return Mesh(np.concatenate(grids), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def check_mesh(config: RunConfig, batch_sizes: Mapping[str, int], mesh: Mesh) -> None:
    """Check that the mesh divides the batches and the model.

    Args:
      config: of the run.
      batch_sizes: sizes of its global batches, by the names of their settings.
      mesh: of the run.

    Raises:
      UserError: naming the field and what it must be a multiple of.
    """
    rows = batch_parts(mesh)
    for name, size in batch_sizes.items():
        if size // config.optimizer.accumulate % rows:
            raise UserError(
                f"{name}={size} over "
                f"config.optimizer.accumulate={config.optimizer.accumulate} must be a multiple of "
                f"{rows}, the devices along mesh axes data and fsdp; it is at least "
                f"{rows * config.optimizer.accumulate}"
            )
    divided = {
        "num_attention_heads": ("tensor", config.model.num_attention_heads),
        "intermediate_size": ("tensor", config.model.intermediate_size),
        "vocab_multiple": ("tensor", config.model.vocab_multiple),
        "hidden_size": ("fsdp", config.model.hidden_size),
    }
    for name, (axis, size) in divided.items():
        if size % mesh.shape[axis]:
            raise UserError(
                f"config.model.{name} is {size}, which mesh axis {axis}={mesh.shape[axis]} does "
                "not divide"
            )


def array_sharding(
    mesh: Mesh, names: PartitionSpec, shape: Sequence[int], *, over_data: bool = False
) -> NamedSharding:
    """Where a parameter lies, or a gradient or moment of it.

    By its logical axes, and then along `fsdp` by the first axis that it divides: parts that are
    whole rows are sent as they lie in memory. The layers of a scan are no such axis, for they are
    used and their gradients made one after the other.

    Args:
      mesh: of the run.
      names: logical names of the array's axes, () where it has none.
      shape: of the array.
      over_data: cut it along `data` too, in the same way.
    """
    axes = [*names] + [None] * (len(shape) - len(names))
    first = axes[:1] == ["layers"]
    spec = [_axes(axis) for axis in logical_to_mesh_axes(axes, LOGICAL_RULES) or ()]
    order = list(range(first, len(shape)))
    if mesh.devices.flat[0].platform == "tpu":
        # A head's 64 dimensions do not fill the 128 lanes, so that a TPU keeps kernels of queries
        # with the embedding innermost: rows that lie together are those of a head's dimension.
        # Elsewhere not: a GPU joins kernels of queries, keys and values along that axis, and would
        # have to send each device's part of it about.
        order.sort(key=lambda index: axes[index] != "kv")
    added_axes = ("fsdp", "data") if over_data else ("fsdp",)
    for added in added_axes if _is_matrix(axes[first:], shape[first:]) else ():
        for index in order:
            taken = (*spec[index], added)
            if shape[index] % math.prod(mesh.shape[axis] for axis in taken) == 0:
                spec[index] = taken
                break
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in spec)))


def _is_matrix(axes: Sequence[str | None], shape: Sequence[int]) -> bool:
    """Whether an array is more than a few vectors; those of products and tables have "embed"."""
    return len(axes) > 1 and "embed" in axes and math.prod(shape) > _FEW * max(shape)


def _axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    return (entry,) if isinstance(entry, str) else entry or ()


def batch_parts(mesh: Mesh) -> int:
    """The number of parts that a batch is cut into, which must divide it."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch spread over the data-parallel axes."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def process_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a global batch that this process feeds to its devices: indices, ascending.

    All of them where the batch is not spread over the processes (their devices lie along `tensor`);
    not one stretch where the order of the devices follows the network rather than the hosts.
    """
    parts = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    return np.unique([row for part in parts if part for row in range(*part[0].indices(batch_size))])


def shard_batch(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's rows of a batch as global arrays on the mesh; returns without waiting."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
