"""A training step's FLOPs as products of large matrices and nothing else: what a step is near.

An estimate of what no program with such products that computes the padding takes less than, and so
of how many times as fast as a peer one can be, but for packed rows: products of other shapes are
at times a tenth faster.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.batches import phase_of, read_batch
from bert_jax.config import model_size
from bert_jax.training.flops import step_flops

# Of the second matrix, by backend, and most rows of the first: large enough for a library's best
# rate.
SIDES = {"cpu": 2048, "gpu": 8192}
MOST_ROWS = 8192


def prepare(size: str, batch: str, dtype: str) -> Callable[[], Any]:
    """A function that has the device multiply for as many FLOPs as a step has."""
    side = SIDES[jax.default_backend()]
    rows = step_flops(model_size(size), phase_of(read_batch(batch))) / (2 * side**2)
    parts = math.ceil(rows / MOST_ROWS)
    first = jnp.ones((round(rows / parts), side), dtype)
    second = jnp.ones((side, side), dtype)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    return lambda: [product(first, second) for _ in range(parts)]


wait = jax.block_until_ready
