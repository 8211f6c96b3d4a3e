"""Into which blocks the kernels of attention on a GPU are best cut: all of them, timed on this one.

    python -m benchmarks.attention_blocks

Each row of a table is a way to cut, and the microseconds of a kernel by it: of the best of three
times twenty in a row. `bert_jax/models/gpu_attention.py` has the ways that were the fastest.
"""

import argparse
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import gpu_attention
from bert_jax.models.gpu_attention_kernels import Blocks
from bert_jax.models.kernels import LANES, KernelSettings
from bert_jax.models.triton import multiplies_from_memory

# Rows, positions, heads: of base and of large in the paper's two phases.
SHAPES = ((256, 128, 12), (32, 512, 16))
WIDTH, RATE = 64, 0.1
REPEATS, ROUNDS = 20, 3


def ways(queries: tuple[int, ...], keys: tuple[int, ...]) -> Iterator[Blocks]:
    """Blocks of so many queries and keys, by one or two groups of four warps."""
    for size, tile, warps, stages in itertools.product(queries, keys, (4, 8), (2, 3)):
        yield Blocks(size, tile, warps, stages)


def arrays(batch: int, length: int, heads: int) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """What `_forward` takes, of real lengths, and a gradient of its context."""
    of_operands, of_gradient = jax.random.split(jax.random.key(0))
    stacked = jax.random.normal(of_operands, (batch, length, heads, 3, WIDTH), jnp.bfloat16)
    gradient = jax.random.normal(of_gradient, (batch, length, heads * WIDTH), jnp.bfloat16)
    lengths = np.random.default_rng(0).integers(length // 3, length, (batch, 1), endpoint=True)
    keys = jnp.asarray(np.arange(length) < lengths, jnp.int32)
    queries = jnp.ones_like(keys)
    spans = gpu_attention._spans(queries, keys), gpu_attention._spans(keys, queries)
    place = jnp.array([3, 5, 0, 0], jnp.uint32)
    return (stacked, queries, keys, *spans, place), gradient


def compiled(lowered: Any) -> Callable[..., Any] | None:
    """The program; None where it needs more registers or shared memory than a GPU has."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError:
        return None


def microseconds(program: Callable[..., Any] | None, operands: tuple[Any, ...]) -> float:
    """Of one call, after one that is not counted; endless where there is no program."""
    if program is None:
        return math.inf
    jax.block_until_ready(program(*operands))
    taken = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        jax.block_until_ready([program(*operands) for _ in range(REPEATS)])
        taken.append((time.perf_counter() - begun) / REPEATS * 1e6)
    return min(taken)


def compare(title: str, name: str, ways: Iterator[Blocks], function: Any, *operands: Any) -> None:
    """Print the times by each of these ways, as the module's constant of that name.

    Of what the function gives the first is computed: the rest is what it was given.
    """
    constant, lowered = getattr(gpu_attention, name), []
    for blocks in ways:
        setattr(gpu_attention, name, blocks)
        # Jitted anew: what was traced by other blocks is not to be found again.
        lowered.append((blocks, jax.jit(lambda *a: function(*a)[0]).lower(*operands)))
    setattr(gpu_attention, name, constant)
    with ThreadPoolExecutor() as threads:
        programs = list(threads.map(lambda each: compiled(each[1]), lowered))
    found = [
        (microseconds(program, operands), blocks)
        for program, (blocks, _) in zip(programs, lowered, strict=True)
    ]
    print(f"{title}; now {constant}")
    for taken, blocks in sorted(found, key=lambda each: each[0]):
        print(f"{taken:8.1f}  {blocks}", flush=True)


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m benchmarks.attention_blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    print(f"on {jax.devices()[0].device_kind}")
    for batch, length, heads in SHAPES:
        operands, gradient = arrays(batch, length, heads)
        settings = KernelSettings(heads, WIDTH, length, RATE, interpret=False)
        forward, backward = (
            functools.partial(function, settings)
            for function in (gpu_attention._forward, gpu_attention._backward)
        )
        shape = f"{batch} x {length}, {heads} heads"
        compare(f"forward, {shape}", "_FORWARD", ways((64, 128), (32, 64)), forward, *operands)
        residuals = jax.jit(forward)(*operands)[1]
        name, cuts = "_BACKWARD", ways((32, 64, 128), (16, 32))
        if length == LANES:
            name, cuts = "_BACKWARD_ALONE", ways((32, 64, 128), (64,))
        if not multiplies_from_memory():
            name += "_BY_REGISTERS"
        compare(f"backward, {shape}", name, cuts, backward, residuals, gradient)


if __name__ == "__main__":
    main()
