"""Where the pieces of fine-tuning's batches stand in packed rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.packed_features import computed_rows, piece_places


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([(), (2,)]),
    st.integers(0, 1000),
)
def test_each_piece_has_a_place_beside_those_of_its_device_and_micro_batch(
    parts, accumulate, each, choices, seed
):
    padded, row_length = 12, 16
    batch = parts * accumulate * each
    lengths = np.random.default_rng(seed).integers(0, padded + 1, (batch, *choices))
    places = piece_places(lengths, padded, row_length, parts, accumulate)
    assert places.dtype == np.int32
    assert places.shape[0] == parts * accumulate
    sequences = np.arange(lengths.size).reshape(lengths.shape)
    for group, of_group in enumerate(places.reshape(len(places), -1)):
        part, micro = divmod(group, accumulate)
        # What `training.steps` makes of a batch, on the device of this part.
        own = np.split(sequences, parts)[part][micro::accumulate].ravel()
        nowhere = len(own) * padded
        where = {int(piece): place for place, piece in enumerate(of_group) if piece != nowhere}
        assert len(where) == np.count_nonzero(of_group != nowhere)
        for number, sequence in enumerate(own):
            length = lengths.ravel()[sequence]
            found = [where.pop(number * padded + piece) for piece in range(length)]
            assert found == list(range(found[0], found[0] + length)) if found else True
            assert len({place // row_length for place in found}) <= 1
        assert not where


def test_few_numbers_of_rows_and_an_eighth_at_most_too_many():
    counts = [computed_rows(needed) for needed in range(1, 1000)]
    assert all(needed <= count <= 1.125 * needed for needed, count in enumerate(counts, start=1))
    assert len(set(counts)) < 70


def test_however_many_short_sequences_share_a_row():
    assert piece_places(np.full(32, 2), 4, 16, 1, 1).shape == (1, 4, 16)
