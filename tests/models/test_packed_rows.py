"""Sequences laid into rows and back: pieces come where they belong, padding says nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.packed_features import piece_places
from bert_jax.models.packed import apart, positions_and_segments, together

LENGTH, ROW, WIDTH = 6, 8, 3
# The last sequence is full, or not: what stands in no place is not taken for the last piece.
LENGTHS = {"full": [2, 5, 4, 6], "padded": [6, 1, 3, 2]}


@pytest.fixture(params=[(1, lengths) for lengths in LENGTHS] + [(2, "full"), (2, "padded")])
def laid_out(request) -> tuple[np.ndarray, jax.Array]:
    """Lengths of sequences, and the places of their pieces in the rows of so many groups."""
    groups, name = request.param
    lengths = np.array(LENGTHS[name])
    return lengths, jnp.array(piece_places(lengths, LENGTH, ROW, groups, 1))


def real(lengths: np.ndarray) -> np.ndarray:
    return np.arange(LENGTH) < lengths[:, None]


def test_rows_hold_each_piece_and_nothing_else(laid_out):
    lengths, places = laid_out
    values = 1 + np.arange(len(lengths) * LENGTH).reshape(-1, LENGTH)
    rows = np.asarray(together(jnp.array(values), places))
    assert rows.shape[1] == ROW
    assert sorted(rows[rows > 0]) == values[real(lengths)].tolist()
    positions, segments = positions_and_segments(places, len(lengths), LENGTH)
    sequence, piece = np.divmod(rows - 1, LENGTH)
    within = len(lengths) // len(places)
    np.testing.assert_array_equal(segments, np.where(rows > 0, sequence % within + 1, 0))
    np.testing.assert_array_equal(positions[rows > 0], piece[rows > 0])


def test_what_is_said_of_rows_comes_apart_as_do_its_gradients(laid_out):
    lengths, places = laid_out
    draw = np.random.default_rng(0)
    shape = (len(lengths), LENGTH, WIDTH)
    hidden, gradient = jnp.array(draw.normal(size=(2, *shape)), jnp.float32)
    rows = jnp.stack([together(hidden[..., d], places) for d in range(WIDTH)], axis=-1)
    found, pull = jax.vjp(lambda rows: apart(rows, places, len(lengths), LENGTH), rows)
    np.testing.assert_array_equal(found, hidden * real(lengths)[..., None])
    expected = jnp.stack([together(gradient[..., d], places) for d in range(WIDTH)], axis=-1)
    np.testing.assert_array_equal(pull(gradient)[0], expected)
