"""NVIDIA's GPUs described to XLA, which compiles for them where there are none."""

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

from bert_jax.errors import UserError, first_line
from bert_jax.planning.chips import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Processor:
    """What XLA asks of a GPU beside its memory; sizes in bytes.

    Source: XLA's own descriptions, xla/backends/gpu/target_config/specs/{a100_sxm_80,h200}.txtpb.
    """

    features: str
    cores: int
    units: int
    clock_ghz: float
    cache: int
    shared_memory: int
    shared_memory_of_a_block: int


# By generation: of Ampere that of the A100, of Hopper that of the H100 and the H200.
_PROCESSORS = {
    8: _Processor(
        features="NONE",
        cores=108,
        units=64,
        clock_ghz=1.41,
        cache=40 << 20,
        shared_memory=164 << 10,
        shared_memory_of_a_block=163 << 10,
    ),
    9: _Processor(
        features="ACCELERATED_FEATURES",
        cores=132,
        units=128,
        clock_ghz=1.98,
        cache=50 << 20,
        shared_memory=228 << 10,
        shared_memory_of_a_block=227 << 10,
    ),
}


def can_describe(chip: Chip) -> bool:
    """Whether programs for the chip can be compiled here: it is a GPU, and JAX has its compiler."""
    from bert_jax.models.triton import GENERATIONS

    if chip.device_kind not in GENERATIONS or not importlib.util.find_spec("jax_plugins"):
        return False
    return importlib.util.find_spec("jax_plugins.xla_cuda13") is not None


def describe_gpus(chip: Chip, count: int) -> list[Any]:
    """JAX devices that can be compiled for: so many GPUs of a kind that `can_describe` knows.

    Raises:
      UserError: the compiler refuses them.
    """
    from jax.experimental import topologies

    of_a_host = math.gcd(count, chip.host_devices)
    try:
        described = topologies.get_topology_desc(
            platform="cuda",
            target_config=_target_config(chip),
            topology=f"1x{count // of_a_host}x{of_a_host}",
        )
    except RuntimeError as error:  # of which JAX's own errors are
        raise UserError(first_line(error)) from error
    return list(described.devices)


def _target_config(chip: Chip) -> str:
    """The chip as the text of a GpuTargetConfigProto of XLA."""
    from bert_jax.models.triton import GENERATIONS

    generation = GENERATIONS[chip.device_kind]
    of = _PROCESSORS[generation]
    return f"""
gpu_device_info {{
  name: "{chip.device_kind}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{
    major: {generation}
    feature_extension: {of.features}
  }}
  core_count: {of.cores}
  fpus_per_core: {of.units}
  clock_rate_ghz: {of.clock_ghz}
  memory_bandwidth: {chip.bandwidth:.0f}
  device_memory_size: {chip.memory:.0f}
  l2_cache_size: {of.cache}
  shared_memory_per_core: {of.shared_memory}
  shared_memory_per_block: {48 << 10}
  shared_memory_per_block_optin: {of.shared_memory_of_a_block}
  registers_per_core_limit: {1 << 16}
  registers_per_block_limit: {1 << 16}
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{chip.device_kind}"
"""
