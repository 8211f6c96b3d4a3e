"""Dropout whose random bits come from a counter hash, or from the hardware, not from threefry.

Threefry spends about a hundred operations on a number; a training step draws one for every
activation and attention probability. Here a row (everything but the last axis) gets a keyed
32-bit state, and the elements of the row are the outputs of a SplitMix generator (Steele, Lea and
Flood, 2014, "Fast Splittable Pseudorandom Number Generators") from that state: add a
constant, then mix. A bit depends on the seed and on the element's place in the whole array alone,
so that it does not change with the sharding, and the backward pass draws it again instead
of keeping it.

The hash is the default on TPUs, too. It is a dozen vector operations within the fusion that uses
the bits; XLA never fuses the hardware's generator, whose bits, four bytes each, are written to
memory, for attention probabilities copied to another layout, and read, in the forward pass and
once more in the backward one. docs/tpu_path.md has what both add to a step that is compiled for a
TPU: the generator several times more than the hash. It is there to be tried where vector units,
not memory, are the limit.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.linen.spmd import logical_to_mesh_axes
from jax import lax
from jax.sharding import PartitionSpec

# 2^32 divided by the golden ratio, odd: consecutive multiples are spread evenly over 32 bits.
_GOLDEN = 0x9E3779B9


# From a seed (uint32 [2]) and a shape to uniform uint32 of that shape.
Draw = Callable[[jax.Array, tuple[int, ...]], jax.Array]


def dropout(
    values: jax.Array, rate: float, seed: jax.Array | None, draw: Draw | None = None
) -> jax.Array:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate).

    Args:
      values: floats, at least one axis; at most 2^32 rows (all axes but the last).
      rate: probability of zero, in [0, 1), exact to 2^-32.
      seed: uint32 [2], fresh for every call; None leaves `values` as they are.
      draw: gives the bits; `random_bits` by default.
    """
    return values if seed is None else _dropout(rate, draw or random_bits, values, seed)


def _scaled(rate: float, draw: Draw, values: jax.Array, seed: jax.Array) -> jax.Array:
    keep = kept(draw(seed, values.shape), rate)
    return jnp.where(keep, values * (1 / (1 - rate)), 0).astype(values.dtype)


def kept(bits: jax.Array, rate: float) -> jax.Array:
    """Whether dropout keeps the elements of these uniform uint32 bits."""
    return bits >= jnp.uint32(round(rate * 2**32))


def _forward(
    rate: float, draw: Draw, values: jax.Array, seed: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _scaled(rate, draw, values, seed), seed


def _backward(
    rate: float, draw: Draw, seed: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, None]:
    return _scaled(rate, draw, gradient, seed), None


_dropout = jax.custom_vjp(_scaled, nondiff_argnums=(0, 1))
_dropout.defvjp(_forward, _backward)


def random_bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform uint32 of `shape`, a function of `seed` (uint32 [2]) and position alone."""
    rows_shape = (*shape[:-1], 1)
    row = jnp.zeros(rows_shape, jnp.uint32)
    for axis, size in enumerate(shape[:-1]):
        row = row * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, rows_shape, axis)
    column = lax.broadcasted_iota(jnp.uint32, (1,) * (len(shape) - 1) + shape[-1:], len(shape) - 1)
    return row_bits(row_states((seed[0], seed[1]), row), column)


def row_states(seed: tuple[jax.Array, jax.Array], row: jax.Array) -> jax.Array:
    """The states of rows, uint32, of which each is counted over all axes but the last."""
    return _mix(_mix(row + seed[0]) ^ seed[1])


def row_bits(state: jax.Array, column: jax.Array) -> jax.Array:
    """The bits at places of the last axis, uint32, in rows of these states."""
    return _mix(state + column * jnp.uint32(_GOLDEN))


def hardware_bits(
    axes: tuple[str | None, ...], seed: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """Uniform uint32 of `shape` from XLA's generator: the hardware's on a TPU, else Philox.

    Under the mesh that is set each device draws its own part, by the logical `axes` of the shape's
    dimensions; left to itself, the compiler would have every device draw the whole. So the bits
    are a function of `seed` (uint32 [2]) and of the mesh.
    """

    def drawn(seed: jax.Array, part: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        # The hardware's generator takes whatever key: nearby ones are spread by the hash.
        state = random_bits(seed + part * jnp.uint32(_GOLDEN), (4,))
        return lax.rng_bit_generator(state, shape, algorithm=lax.RandomAlgorithm.RNG_DEFAULT)[1]

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return drawn(seed, jnp.uint32(0), shape)
    spec = logical_to_mesh_axes(axes) or PartitionSpec()
    sizes = [math.prod(mesh.shape[name] for name in _names(entry)) for entry in spec]
    local = tuple(size // parts for size, parts in zip(shape, sizes, strict=True))
    names = tuple(name for entry in spec for name in _names(entry))

    def of_a_device(seed: jax.Array) -> jax.Array:
        return drawn(seed, part_of_mesh(names), local)

    return jax.shard_map(of_a_device, in_specs=PartitionSpec(), out_specs=spec, check_vma=False)(
        seed
    )


def part_of_mesh(entry: tuple[str, ...] | str | None) -> jax.Array:
    """Which part of what is divided over these mesh axes this device has, uint32; in `shard_map`.

    Args:
      entry: of a `PartitionSpec`; None, nothing divided, is part 0.
    """
    names = _names(entry)
    return lax.axis_index(names).astype(jnp.uint32) if names else jnp.uint32(0)


def _names(entry: tuple[str, ...] | str | None) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def _mix(bits: jax.Array) -> jax.Array:
    """The 32-bit finaliser of MurmurHash3 (Appleby, public domain): a bijection that avalanches."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
