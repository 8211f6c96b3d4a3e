"""Packed batches hold the sequences of the unpacked ones, each once, and nothing else."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_run import packed_examples

from bert_jax.config import DataConfig, Phase
from bert_jax.data.batch_shapes import SEQUENCES_A_ROW, batch_shapes, row_predictions
from bert_jax.data.packing import lay_out, row_count
from bert_jax.data.pipeline import Batch, train_dataset

PHASE = Phase(seq_len=64, batch_size=48, max_predictions=10)


def sequences(batch: Batch) -> list[tuple]:
    """Each sequence of an unpacked batch: ids, types, what is to be predicted, label."""
    found = []
    for row, mask in enumerate(batch["attention_mask"] > 0):
        real = batch["masked_lm_weights"][row] > 0
        found.append(
            (
                *(tuple(batch[name][row][mask]) for name in ("input_ids", "token_type_ids")),
                *(
                    tuple(batch[name][row][real])
                    for name in ("masked_lm_positions", "masked_lm_ids")
                ),
                batch["next_sentence_labels"][row] if "next_sentence_labels" in batch else None,
            )
        )
    return found


def packed_sequences(batch: Batch) -> list[tuple]:
    """The same of a packed batch; all that is no sequence is shown to be padding."""
    found = []
    for row, segments in enumerate(batch["segment_ids"]):
        positions = batch["masked_lm_positions"][row]
        real = batch["masked_lm_weights"][row] > 0
        count = segments.max()
        for segment in range(1, count + 1):
            (places,) = np.nonzero(segments == segment)
            first, length = places[0], len(places)
            np.testing.assert_array_equal(places, first + np.arange(length))
            np.testing.assert_array_equal(batch["position_ids"][row, places], np.arange(length))
            own = real & (segments[positions] == segment)
            label = None
            if "next_sentence_labels" in batch:
                assert batch["cls_positions"][row, segment - 1] == first
                label = batch["next_sentence_labels"][row, segment - 1]
            found.append(
                (
                    *(tuple(batch[name][row, places]) for name in ("input_ids", "token_type_ids")),
                    tuple(positions[own] - first),
                    tuple(batch["masked_lm_ids"][row][own]),
                    label,
                )
            )
        for name in ("input_ids", "token_type_ids", "position_ids"):
            assert not batch[name][row, segments == 0].any(), name
        assert not positions[~real].any()
        assert segments[positions[real]].all()
        if "next_sentence_weights" in batch:
            weights = batch["next_sentence_weights"][row]
            np.testing.assert_array_equal(weights, np.arange(SEQUENCES_A_ROW) < count)
    return found


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_packed_batch_holds_the_same_sequences_in_fewer_rows(shards, next_sentence):
    examples, packed = packed_examples(shards, PHASE, next_sentence=next_sentence)
    shapes = batch_shapes(PHASE, DataConfig(packing=True, next_sentence=next_sentence))
    for step in (0, 5):
        batch = packed.batch(step, PHASE.batch_size)
        assert sorted(packed_sequences(batch)) == sorted(
            sequences(examples.batch(step, PHASE.batch_size))
        )
        rows = len(batch["input_ids"])
        assert rows < PHASE.batch_size
        assert shapes == {
            name: ((PHASE.batch_size, *array.shape[1:]), array.dtype)
            for name, array in batch.items()
        }


@pytest.mark.parametrize("multiple", [4, 12])
def test_processes_build_their_own_rows(shards, multiple):
    """Four devices of two processes, alternating along the mesh."""
    _, packed = packed_examples(shards, PHASE, multiple=multiple)
    whole = packed.batch(3, PHASE.batch_size)
    count = len(whole["input_ids"])
    assert count % multiple == 0
    parts = [np.arange(size).reshape(4, -1) for size in (PHASE.batch_size, count)]
    for own in ([0, 2], [1, 3]):
        unpacked_rows, rows = (part[own].ravel() for part in parts)
        batch = packed.batch(3, PHASE.batch_size, unpacked_rows)
        for name, array in whole.items():
            np.testing.assert_array_equal(batch[name], array[rows], err_msg=name)


def test_a_process_may_have_no_sequence(shards):
    """Eight devices of two processes: what fits into four rows or fewer is all the first's."""
    _, packed = packed_examples(shards, PHASE, multiple=8)
    batches = ((step, packed.batch(step, 8)) for step in range(200))
    step, whole = next((s, b) for s, b in batches if not b["segment_ids"][4:].any())
    for name, array in packed.batch(step, 8, np.arange(4, 8)).items():
        np.testing.assert_array_equal(array, whole[name][4:], err_msg=name)
        assert array.dtype == whole[name].dtype


def test_tf_data_gives_batches_of_several_shapes(shards):
    _, packed = packed_examples(shards, PHASE)
    shapes = set()
    for step, batch in enumerate(train_dataset(packed, 0, 12, 16)):
        shapes.add(batch["input_ids"].shape)
        for name, array in packed.batch(step, 16).items():
            np.testing.assert_array_equal(batch[name], array)
    assert len(shapes) > 1


# Where all are short, the slots are what ends a row.
lengths = st.sampled_from([4, 64]).flatmap(
    lambda longest: st.lists(st.integers(1, longest), min_size=1, max_size=80)
)


@given(lengths)
def test_a_lay_out_has_each_sequence_once_and_fits(lengths):
    row, slot = lay_out(lengths, 64)
    places = list(zip(row.tolist(), slot.tolist(), strict=True))
    assert len(set(places)) == len(lengths)
    rows = row.max() + 1
    used, filled = np.bincount(row), np.bincount(row, weights=lengths)
    assert len(used) == rows <= len(lengths)
    assert used.min() >= 1
    assert used.max() <= SEQUENCES_A_ROW
    assert filled.max() <= 64
    assert (np.bincount(row, weights=slot) == used * (used - 1) / 2).all()  # no slot is left out
    np.testing.assert_array_equal((row, slot), lay_out(lengths, 64))
    # Of two rows that could take another sequence, one would have taken the other's.
    room = sorted(filled[used < SEQUENCES_A_ROW])
    assert len(room) < 2 or room[0] + room[1] > 64


@given(st.integers(1, 9), st.integers(1, 60), st.data())
def test_rows_are_a_multiple_and_few_numbers_of_them_occur(multiple, sequences, data):
    batch_size = multiple * sequences
    needed = data.draw(st.integers(1, batch_size))
    rows = row_count(needed, batch_size, multiple)
    assert needed <= rows <= batch_size
    assert rows % multiple == 0
    assert rows - needed < batch_size**0.5 + multiple
    numbers = {row_count(each + 1, batch_size, multiple) for each in range(batch_size)}
    assert len(numbers) <= batch_size**0.5 + 2


@given(
    st.lists(st.integers(3, 512), min_size=1, max_size=SEQUENCES_A_ROW),
    st.sampled_from([1e-3, 0.1, 0.15, 0.35, 0.4, 0.95]),
    st.integers(1, 80),
)
@example([3] * SEQUENCES_A_ROW, 0.15, 80)
@example([16] * SEQUENCES_A_ROW, 1e-3, 80)
@example([10] * SEQUENCES_A_ROW, 0.35, 80)
def test_no_row_has_more_predictions_than_places(lengths, mask_prob, max_predictions):
    """By the rule of the original's `create_masked_lm_predictions`, [CLS] and [SEP] not chosen."""
    seq_len = sum(lengths)
    phase = Phase(seq_len=seq_len, max_predictions=min(max_predictions, seq_len))
    predictions = sum(
        min(phase.max_predictions, max(1, round(length * mask_prob)), length - 2)
        for length in lengths
    )
    assert predictions <= row_predictions(phase, DataConfig(packing=True, mask_prob=mask_prob))
