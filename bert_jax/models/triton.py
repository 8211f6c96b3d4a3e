"""What our kernels for GPUs take from JAX's Triton dialect of Pallas.

JAX deprecated it in 0.11 in favour of Mosaic GPU, whose kernels are for Hopper and later, and says
that it will go. Without it models compute on a GPU what XLA makes of the plain forms.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.devices import device_kind, device_platform

try:
    from jax.experimental.pallas import triton
except ImportError:
    triton = None


# Of GPUs that a program is compiled for ahead of time, on a machine without them.
GENERATIONS = {"NVIDIA A100-SXM4-80GB": 8, "NVIDIA H100 80GB HBM3": 9, "NVIDIA H200": 9}


def has_triton_kernels() -> bool:
    """Whether a program is traced for what these kernels, in bfloat16, are for.

    That is NVIDIA's GPUs from Ampere on, by a JAX that has Triton.
    """
    return triton is not None and _generation() >= 8


def multiplies_from_memory() -> bool:
    """Whether the GPU's products take what they multiply from shared memory, not from registers.

    So do Hopper's (wgmma) and those of Blackwell for datacenters (tcgen05).
    """
    return _generation() in (9, 10)


def _generation() -> int:
    """Of NVIDIA's GPUs the first number of the compute capability; 0 where it is for none."""
    if device_platform() != "gpu":
        return 0
    here = jax.devices()[0]
    if here.platform != "gpu":
        return GENERATIONS.get(device_kind(), 0)
    # Such as "9.0"; AMD's name theirs otherwise.
    generation = str(getattr(here, "compute_capability", "")).partition(".")[0]
    return int(generation) if generation.isdecimal() else 0


def compiler_params(warps: int, stages: int | None = None) -> Any:
    """How a kernel is compiled.

    Args:
      warps: threads of a program, in units of 32.
      stages: how many blocks are on their way from memory at once; None leaves it to Triton.
    """
    return triton and triton.CompilerParams(num_warps=warps, num_stages=stages)


def elementwise(
    plain: Callable[..., jax.Array], ptx: str, *operands: Any, interpret: bool
) -> jax.Array:
    """`plain` of float32 operands that broadcast, by instructions that Triton would not choose.

    Args:
      plain: what they compute.
      ptx: of one element: to $0, from $1, $2 and so on.
      interpret: compute `plain` itself.
    """
    if interpret:
        return plain(*operands)
    arrays = jnp.broadcast_arrays(*operands)
    assert triton
    (results,) = triton.elementwise_inline_asm(
        ptx,
        args=arrays,
        constraints="=f" + ",f" * len(arrays),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(arrays[0].shape, jnp.float32)],
    )
    return results
