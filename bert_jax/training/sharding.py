"""One mesh of `data`, `fsdp` and `tensor` axes, and the rules that map logical axes to it."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_sharding
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.config import Config, MeshConfig
from bert_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# Logical axes of the modules in `bert_jax.models`; those that are not named here are replicated.
LOGICAL_RULES = (
    ("batch", BATCH_AXES),
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("embed", "fsdp"),
)


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


def make_mesh(config: MeshConfig) -> Mesh:
    """The mesh over all devices; its axes are partitioned by the compiler (`AxisType.Auto`)."""
    shape = mesh_shape(config, jax.device_count())
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def check_mesh(config: Config, mesh: Mesh) -> None:
    """Check that the mesh divides the batches and the model.

    Raises:
      UserError: naming the field and what it must be a multiple of.
    """
    rows = mesh.shape["data"] * mesh.shape["fsdp"]
    for index, phase in enumerate(config.phases):
        if phase.batch_size // config.optimizer.accumulate % rows:
            raise UserError(
                f"config.phases[{index}].batch_size={phase.batch_size} over "
                f"config.optimizer.accumulate={config.optimizer.accumulate} must be a multiple of "
                f"{rows}, the devices along mesh axes data and fsdp"
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


def tree_shardings(mesh: Mesh, boxed: Any) -> Any:
    """The shardings of a tree whose leaves carry logical axis names (`nn.LogicallyPartitioned`)."""
    return logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, LOGICAL_RULES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch spread over the data-parallel axes."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def process_rows(mesh: Mesh, batch_size: int) -> slice:
    """The rows of a global batch that this process feeds to its devices.

    All of them where the batch is not spread over the processes (their devices lie along `tensor`).

    Raises:
      UserError: they are not one stretch.
    """
    parts = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = {row for part in parts if part for row in range(*part[0].indices(batch_size))}
    start, stop = min(rows), max(rows) + 1
    if len(rows) != stop - start:
        raise UserError(
            "config.mesh: the devices of a process do not hold neighbouring rows of a batch; "
            "choose axes such that those of a host lie together"
        )
    return slice(start, stop)


def shard_batch(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's rows of a batch as global arrays on the mesh; returns without waiting."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
