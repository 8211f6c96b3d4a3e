"""How fast this machine is likely to train, before it does."""

import functools
import time

import jax
import jax.numpy as jnp

# Square products of this size keep an accelerator busy; of the smaller, a CPU, for some hundredths
# of a second each.
_SIZE, _CPU_SIZE, _TIMES = 2048, 1024, 3
# Of that product's speed, what training reaches: 0.3 to 0.5 on two CPU cores, for BERT-tiny; NVIDIA
# and Google publish 0.45 to 0.65 of the peak for BERT-large on theirs (MLPerf Training v2.0, v4.0).
_SHARE_REACHED = 0.4


def expected_speed(dtype: str) -> float:
    """FLOP/s that training is likely to reach over all devices, from a product timed just now.

    Good to a factor of two or so: enough to tell minutes from months before a run starts.

    Args:
      dtype: of the operands, "float32" or "bfloat16".
    """
    on_cpu = jax.default_backend() == "cpu"
    size = _CPU_SIZE if on_cpu else _SIZE
    operand = jnp.ones((size, size), dtype)
    multiply = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
    multiply(operand, operand).block_until_ready()
    start = time.perf_counter()
    for _ in range(_TIMES):
        product = multiply(operand, operand)
    product.block_until_ready()
    speed = 2 * size**3 * _TIMES / (time.perf_counter() - start)
    # Virtual CPU devices share the cores that this one product ran on.
    devices = 1 if on_cpu else jax.device_count()
    return _SHARE_REACHED * speed * devices
