"""What a program is being traced for."""

import math
from typing import Any

import jax
from flax.linen.spmd import logical_to_mesh_axes


def _traced_for() -> Any:
    """One of the devices that a program is being traced for.

    Those of the mesh that is set, which in a program compiled ahead of time are not of this
    machine; without a mesh jax's default ones.
    """
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def device_platform() -> str:
    """Of the devices that a program is being traced for: cpu, gpu or tpu."""
    return _traced_for().platform


def device_kind() -> str:
    """Of the devices that a program is being traced for, such as "TPU v5 lite"."""
    return _traced_for().device_kind


def part_count() -> int:
    """In how many parts a batch is spread over the devices of the mesh that is set, if one is."""
    mesh, spec = jax.sharding.get_abstract_mesh(), logical_to_mesh_axes(("batch",))
    axes = (spec[0] or ()) if spec else ()
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)
