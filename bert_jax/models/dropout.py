"""Dropout whose random bits come from a counter hash, not from threefry.

Threefry spends about a hundred operations on a number; a training step draws one for every
activation and attention probability. Here a row (everything but the last axis) gets a keyed
32-bit state, and the elements of the row are the outputs of a SplitMix generator (Steele, Lea and
Flood, 2014, "Fast Splittable Pseudorandom Number Generators") from that state: add a
constant, then mix. A bit depends on the seed and on the element's place in the whole array alone,
so that it does not change with the sharding, and the backward pass draws it again instead
of keeping it.
"""

import jax
import jax.numpy as jnp
from jax import lax

# 2^32 divided by the golden ratio, odd: consecutive multiples are spread evenly over 32 bits.
_GOLDEN = 0x9E3779B9


def dropout(values: jax.Array, rate: float, seed: jax.Array | None) -> jax.Array:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate).

    Args:
      values: floats, at least one axis; at most 2^32 rows (all axes but the last).
      rate: probability of zero, in [0, 1), exact to 2^-32.
      seed: uint32 [2], fresh for every call; None leaves `values` as they are.
    """
    return values if seed is None else _dropout(rate, values, seed)


def _scaled(rate: float, values: jax.Array, seed: jax.Array) -> jax.Array:
    keep = random_bits(seed, values.shape) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, values * (1 / (1 - rate)), 0).astype(values.dtype)


def _forward(rate: float, values: jax.Array, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _scaled(rate, values, seed), seed


def _backward(rate: float, seed: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None]:
    return _scaled(rate, gradient, seed), None


_dropout = jax.custom_vjp(_scaled, nondiff_argnums=(0,))
_dropout.defvjp(_forward, _backward)


def random_bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform uint32 of `shape`, a function of `seed` (uint32 [2]) and position alone."""
    rows_shape = (*shape[:-1], 1)
    row = jnp.zeros(rows_shape, jnp.uint32)
    for axis, size in enumerate(shape[:-1]):
        row = row * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, rows_shape, axis)
    state = _mix(_mix(row + seed[0]) ^ seed[1])
    column = lax.broadcasted_iota(jnp.uint32, (1,) * (len(shape) - 1) + shape[-1:], len(shape) - 1)
    return _mix(state + column * jnp.uint32(_GOLDEN))


def _mix(bits: jax.Array) -> jax.Array:
    """The 32-bit finaliser of MurmurHash3 (Appleby, public domain): a bijection that avalanches."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
