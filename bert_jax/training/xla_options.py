"""Options of XLA's compiler for the training step, each with what it changes.

They go into the compilation of the step alone (`compiler_options` of `jax.jit`), so that `train`
and a program compiled ahead of time for another machine get the same, and nothing need be in the
environment when the process starts.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError, first_line

_APART: dict[str, str | bool] = {
    # Else the compiler makes a product part of the one that reads it, libtpu 0.0.42 for v6e alone,
    # three deep in attention's gradient at length 512: that computes the scores anew (1.6 % more
    # FLOPs in `base`) and in `base_fast` nests deeper than the compiler's own stack. libtpu 0.0.50
    # does it for v4, v5e and v5p as well, and in `base_fast` at 128 meets a case that it cannot
    # emit. Either way its process ends. By `plan`, steps of v6e without it are between 0.6 %
    # shorter (`base` at 128, 4 a chip) and 3.6 % longer (at 512, 16 a chip).
    "xla_tpu_dot_dot_fusion": False,
}
# By `jax.Device.device_kind`. These are candidates that public TPU codebases set (MaxText's
# benchmarks/xla_flags_library.py, Levanter's launch scripts); each was compiled with the step for
# v5e:2x2, data parallel or FSDP, by the libtpu that jax 0.10.2 pins. Kept is what changes the
# compiled program for the better.
#
# Left out, for the compiled text stays the same to the letter: async_collective_fusion with its
# fuse_all_gather, async_all_gather, all_experimental_scheduler_features, latency_hiding_scheduler
# and its rerun, and for one slice data_parallel_all_reduce_opt with
# data_parallel_opt_different_sized_ops: defaults of today's compiler, or for other programs. Left
# out, for it makes it worse: scoped_vmem_limit_kib=65536 leaves less for prefetching, and a
# two-layer step takes 0.3 % more cycles by the compiler's estimate and 15 % more memory.
# Not taken, for none could be run: sparse_core_collective_offload_all_reduce, which has sums of a
# v6e done beside the rest; it begins them late, 1.7 % more cycles in a step of three layers.
DEFAULTS: dict[str, dict[str, str | bool]] = {
    "TPU v4": _APART,
    "TPU v5": _APART,
    "TPU v5 lite": {
        # Gradients are summed over the data-parallel devices while other work goes on, as a part
        # of fusions that compute. Without both of these every all-reduce of the step is waited
        # for. On other TPUs a newer compiler refuses the fusion: it may hang or give wrong results
        # there. The first alone changed nothing on a v6e.
        "xla_enable_async_all_reduce": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
        # A sum of several arrays is waited for all the same, and gradients of layers in a row are
        # joined into sums of up to 126 MB. Joined up to 4 MB each matrix has one of its own. In a
        # step of `base_fast` with four layers, data parallel on v5e:8x8, all but the word table's
        # go on beside other work so, 116 of 213 MB, by libtpu 0.0.42 and 0.0.50 alike.
        "xla_jf_crs_combiner_threshold_in_bytes": "4000000",
        **_APART,
    },
    "TPU v6 lite": _APART,
}
_GPU: dict[str, str | bool] = {
    # Else XLA takes a cast to bfloat16 that is cast back away, and with it what it was for: it
    # writes float32 arrays, of the widest shape there is, for the gradients of biases to read.
    "xla_allow_excess_precision": False,
    # cuBLAS adds a bias or another array to a product, and applies GELU, before it writes it.
    # XLA's own kernels are as fast as its products, but are chosen before that is known.
    "xla_gpu_enable_triton_gemm": False,
}
_BOOLEANS = {"true": True, "false": False}


def compiler_options(overrides: str, mesh: Mesh) -> dict[str, str | bool]:
    """The options to compile a training step for `mesh` with: ours for its devices, and the user's.

    Args:
      overrides: `config.xla_options`, NAME=VALUE,NAME=VALUE; NAME= takes one of ours away.
      mesh: of the step.

    Raises:
      UserError: `overrides` is not of that form.
    """
    device = mesh.devices.flat[0]
    options = dict(_GPU if device.platform == "gpu" else DEFAULTS.get(device.device_kind, {}))
    for setting in filter(None, overrides.split(",")):
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not name or not equals:
            raise UserError(f"config.xla_options: {setting!r} is not NAME=VALUE")
        options[name] = _BOOLEANS.get(value.lower(), value)
    return {name: value for name, value in options.items() if value != ""}


def check_xla_options(overrides: str, mesh: Mesh) -> None:
    """Compile next to nothing with the options: a bad one is told before hours of work.

    Args:
      overrides, mesh: as for `compiler_options`.

    Raises:
      UserError: `overrides` is malformed, or the devices' compiler does not take an option.
    """
    options = compiler_options(overrides, mesh)
    scalar = jax.ShapeDtypeStruct((), "float32", sharding=NamedSharding(mesh, PartitionSpec()))
    try:
        jax.jit(jnp.negative, compiler_options=options).lower(scalar).compile()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise UserError(f"config.xla_options: {first_line(error)}") from error
