"""Batches by length: every example once, a function of (seed, epoch), little padding."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.buckets import (
    LENGTHS,
    batches_by_length,
    cheapest_sizes,
    collate,
    epoch_batches,
    padded_length,
)

LENGTHS_OF_TEXTS = st.lists(st.integers(3, 512), min_size=1, max_size=300).map(np.array)


@given(LENGTHS_OF_TEXTS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 9))
def test_every_example_is_in_an_epoch_once(lengths, batch_size, seed, epoch):
    batches = epoch_batches(lengths, batch_size, seed, epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert sum(len(batch) < batch_size for batch in batches) <= 1
    assert len(batches) == -(-len(lengths) // batch_size)


def test_no_examples_have_no_batches():
    assert epoch_batches(np.zeros(0, int), 4, 0, 0) == []


def order(seed: int, epoch: int, count: int = 5000) -> list[int]:
    lengths = np.random.default_rng(0).integers(3, 128, count)
    return np.concatenate(epoch_batches(lengths, 32, seed, epoch)).tolist()


def test_the_order_is_a_function_of_seed_and_epoch():
    assert order(3, 1) == order(3, 1)
    assert len({tuple(order(seed, epoch)) for seed in (3, 4) for epoch in (0, 1)}) == 4


def test_few_examples_come_in_another_order_in_each_epoch():
    """So few that all are sorted together: chance is in the order of their batches alone."""
    lengths = np.random.default_rng(0).integers(3, 128, 300)
    orders = [order(seed, epoch, 300) for seed in (3, 4) for epoch in (0, 1)]
    assert len({tuple(lengths[found]) for found in orders}) == 4


def test_short_and_long_batches_are_mixed():
    lengths = np.random.default_rng(0).integers(3, 128, 5000)
    means = [lengths[batch].mean() for batch in epoch_batches(lengths, 32, 0, 0)]
    assert np.std(means) > 25
    # As often longer than the batch before as shorter.
    assert abs(np.mean(np.diff(means) > 0) - 0.5) < 0.15


def padding_share(lengths: np.ndarray, batches: list[np.ndarray]) -> float:
    computed = sum(len(batch) * padded_length(lengths[batch].max()) for batch in batches)
    return 1 - lengths.sum() / computed


def test_padding_is_less_than_in_batches_by_chance():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3, 0.6, 20_000).astype(int), 3, 128)
    by_chance = np.array_split(rng.permutation(len(lengths)), len(lengths) // 32)
    bucketed = epoch_batches(lengths, 32, 0, 0)
    assert padding_share(lengths, bucketed) < 0.25 < 0.5 < padding_share(lengths, by_chance)


def test_the_share_of_padding_is_counted():
    lengths = np.array([8, 4, 16, 10])
    # A batch of 2 x 8 positions with 12 pieces, and one of 2 x 16 with 26.
    batches = [np.array([0, 1]), np.array([2, 3])]
    assert padding_share(lengths, batches) == pytest.approx(1 - 38 / 48)


@given(st.integers(1, 5000))
def test_sequences_are_padded_to_one_of_few_lengths(length):
    padded = padded_length(length)
    assert padded >= length
    assert padded in LENGTHS or padded % 128 == 0
    if length > 16:
        assert padded <= length * 1.5


@given(LENGTHS_OF_TEXTS, st.integers(1, 40), st.integers(1, 4), st.integers(0, 100_000))
def test_no_other_sizes_are_cheaper(lengths, batch_size, passes, program):
    longest = [lengths[batch].max() for batch in batches_by_length(-lengths, batch_size)]

    def cost(sizes: tuple[int, ...]) -> int:
        rows = sum(padded_length(length, sizes) for length in longest)
        return len(sizes) * program + rows * batch_size * passes

    found = cheapest_sizes(lengths, batch_size, passes, program)
    possible = [size for size in LENGTHS if size <= padded_length(max(longest))]
    others = (
        (*chosen, possible[-1])
        for count in range(len(possible))
        for chosen in itertools.combinations(possible[:-1], count)
    )
    assert found[-1] == possible[-1]
    assert cost(found) == min(map(cost, others))


def test_sizes_are_as_many_as_pay():
    lengths = np.arange(3, 128).repeat(32)
    programs = (0, 20_000, 10_000_000)
    assert [cheapest_sizes(lengths, 32, 1, program) for program in programs] == [
        (8, 16, 24, 32, 48, 64, 96, 128),
        (32, 64, 96, 128),
        (128,),
    ]


@given(LENGTHS_OF_TEXTS, st.integers(1, 40))
def test_prediction_goes_from_long_to_short(lengths, batch_size):
    found = np.concatenate(list(batches_by_length(lengths.tolist(), batch_size)))
    assert sorted(found) == list(range(len(lengths)))
    assert np.all(np.diff(lengths[found]) <= 0)


def feature(length: int, weight: float) -> dict[str, np.ndarray]:
    ids = np.arange(10, 10 + length, dtype=np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": np.ones_like(ids),
        "attention_mask": np.ones_like(ids),
        "token_label": ids,
        "label": np.array([0.5, 1], np.float32),
        "weight": np.array(weight, np.float32),
    }


def test_a_batch_is_padded_to_the_right_and_below():
    batch = collate([feature(3, 1.0), feature(7, 2.0)], batch_size=3, pad_id=9)
    assert {name: array.shape for name, array in batch.items()} == {
        "input_ids": (3, 8),
        "token_type_ids": (3, 8),
        "attention_mask": (3, 8),
        "token_label": (3, 8),
        "label": (3, 2),
        "weight": (3,),
    }
    assert batch["input_ids"].tolist() == [
        [10, 11, 12, 9, 9, 9, 9, 9],
        [10, 11, 12, 13, 14, 15, 16, 9],
        [9] * 8,
    ]
    assert batch["token_label"][0].tolist() == [10, 11, 12, 0, 0, 0, 0, 0]
    assert batch["attention_mask"].sum(axis=1).tolist() == [3, 7, 0]
    assert batch["weight"].tolist() == [1.0, 2.0, 0.0]
    assert all(batch[name].dtype == array.dtype for name, array in feature(3, 1.0).items())


@pytest.mark.parametrize(
    ("longest", "sizes", "width"),
    [
        (None, LENGTHS, 8),
        (100, LENGTHS, 8),
        (7, LENGTHS, 7),
        (100, (100,), 100),
        (None, (100,), 100),
        (7, (100,), 7),
    ],
)
def test_a_batch_is_no_wider_than_the_model_takes_and_as_wide_on_demand(longest, sizes, width):
    features = [feature(3, 1.0), feature(7, 1.0)]
    batch = collate(features, 2, 9, longest, sizes=sizes)
    assert batch["input_ids"].shape == batch["token_label"].shape == (2, width)
    assert collate(features, 2, 9, longest)["input_ids"].shape == (2, min(width, 8))
    assert batch["attention_mask"].sum(axis=1).tolist() == [3, 7]


def test_features_of_several_rows_are_padded_on_their_last_axis():
    ids = np.arange(6, dtype=np.int32).reshape(2, 3)
    batch = collate([{"input_ids": ids}, {"input_ids": ids[:, :1]}], batch_size=2, pad_id=7)
    assert batch["input_ids"].shape == (2, 2, 8)
    assert batch["input_ids"][0].tolist() == [[0, 1, 2, 7, 7, 7, 7, 7], [3, 4, 5, 7, 7, 7, 7, 7]]
    assert batch["input_ids"][1, :, 0].tolist() == [0, 3]
