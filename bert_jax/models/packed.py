"""Sequences that share rows in the encoder, and have rows of their own before and after it.

Dimensions: B sequences of L pieces in G equal groups, of B/G sequences each; R rows of M pieces for
each group. `places`, int32 [G, R, M], tells which piece of its group stands at each place of a row:
l + L b for piece l of sequence b, and a number beyond them all where there is none.
"""

import jax
import jax.numpy as jnp


def together(values: jax.Array, places: jax.Array) -> jax.Array:
    """Values of pieces [B, L] in rows, [G R, M]; 0 where there is no piece."""
    groups, _, of_row = places.shape
    flat = values.reshape(groups, -1)
    return _taken(flat, places.reshape(groups, -1)).reshape(-1, of_row)


def positions_and_segments(
    places: jax.Array, batch: int, length: int
) -> tuple[jax.Array, jax.Array]:
    """Of each place of the rows: where it is in its sequence, from 0, and whose piece it holds.

    Args:
      places: see above.
      batch, length: B and L.

    Returns:
      position_ids and segment_ids, int32 [G R, M]; segments count from 1 in each group, and are 0
      where there is no piece.
    """
    groups, _, of_row = places.shape
    segments = jnp.where(places < batch // groups * length, places // length + 1, 0)
    return (places % length).reshape(-1, of_row), segments.reshape(-1, of_row)


def apart(hidden: jax.Array, places: jax.Array, batch: int, length: int) -> jax.Array:
    """What the encoder says of rows [G R, M, D] for each sequence, [B, L, D]; 0 for padding."""
    groups = places.shape[0]
    places = places.reshape(groups, -1)
    count = places.shape[1]

    def inverse(places: jax.Array) -> jax.Array:
        nowhere = jnp.full(batch // groups * length, count, jnp.int32)
        return nowhere.at[places].set(jnp.arange(count, dtype=jnp.int32), mode="drop")

    rows = hidden.reshape(groups, count, -1)
    return _permuted(rows, jax.vmap(inverse)(places), places).reshape(batch, length, -1)


def _taken(values: jax.Array, indices: jax.Array) -> jax.Array:
    """Of each group of `values` [G, N, ...] those at `indices` [G, K]; 0 beyond the last."""
    return jax.vmap(lambda v, i: jnp.take(v, i, axis=0, mode="fill", fill_value=0))(values, indices)


@jax.custom_vjp
def _permuted(values: jax.Array, indices: jax.Array, inverse: jax.Array) -> jax.Array:
    """`_taken`, where nothing is taken twice: then the gradient is taken by `inverse`.

    Differentiation by itself would add it up where it goes, one piece after another.
    """
    return _taken(values, indices)


_permuted.defvjp(
    lambda values, indices, inverse: (_taken(values, indices), inverse),
    lambda inverse, gradient: (_taken(gradient, inverse), None, None),
)
