"""Examples are cut, drawn and masked as by the original's algorithm in plain Python."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_examples import MASK, epoch, make_documents, make_examples

from benchmarks import original_pairs
from bert_jax.config import DataConfig
from bert_jax.data import keyed
from bert_jax.data.pipeline import Batch
from bert_jax.data.spans import Spans, truncate


def spans(lengths: list[int]) -> Spans:
    zeros = np.zeros(len(lengths), np.int64)
    return Spans(zeros, zeros, np.array(lengths))


def literal_truncation(a: int, b: int, pieces: int) -> tuple[int, int]:
    segments = [0] * a, [0] * b
    original_pairs.truncate(*segments, pieces, random.Random(0))
    return len(segments[0]), len(segments[1])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=20),
    st.integers(2, 130),
)
def test_truncation_is_that_of_one_piece_at_a_time(
    pairs: list[tuple[int, int]], pieces: int
) -> None:
    before_a, before_b = (list(lengths) for lengths in zip(*pairs, strict=True))
    a, b = truncate(spans(before_a), spans(before_b), pieces, keyed.key(1, np.arange(len(pairs))))
    kept = list(zip(a.length.tolist(), b.length.tolist(), strict=True))
    assert kept == [literal_truncation(*pair, pieces) for pair in pairs]
    for span, before in ((a, before_a), (b, before_b)):
        assert np.all(span.start >= 0)
        assert np.all(span.start + span.length <= before)


@pytest.mark.parametrize("tosses", [1, 2, 63, 64, 65, 200])
def test_front_losses_are_binomial(tosses: int) -> None:
    count = 20_000
    keys = keyed.key(9, np.arange(count))
    a, _ = truncate(spans([10 + tosses] * count), spans([0] * count), 10, keys)
    heads = a.start
    assert np.all(a.length == 10)
    assert heads.min() >= 0
    assert heads.max() <= tosses
    variance = tosses / 4
    assert abs(heads.mean() - tosses / 2) < 5 * np.sqrt(variance / count)
    assert abs(heads.var() - variance) < 5 * variance * np.sqrt(2 / count)


@pytest.mark.parametrize("seq_len", [32, 128])
def test_statistics_are_the_originals(tmp_path: Path, seq_len: int) -> None:
    documents, passes, rng = make_documents(150, 5), 12, random.Random(6)
    data = DataConfig(duplicates=passes)
    examples = make_examples(tmp_path, documents, data, seq_len=seq_len, max_predictions=20)
    lists = [[sentence.tolist() for sentence in document] for document in documents]
    ours = [_summary(epoch(examples, number, passes), seq_len) for number in range(passes)]
    theirs = [_summary(_original_epoch(lists, seq_len, rng), seq_len) for _ in range(passes)]
    difference = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    error = np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / (passes - 1))
    assert np.all(abs(difference) <= 5 * error), (difference, error)


def _original_epoch(
    documents: list[list[list[int]]], seq_len: int, rng: random.Random
) -> dict[str, np.ndarray]:
    instances = [
        original_pairs.instance(a, b, label, seq_len, 20, rng)
        for index in range(len(documents))
        for a, b, label in original_pairs.pairs(documents, index, seq_len - 3, rng)
    ]
    return {name: np.array([each[name] for each in instances]) for name in instances[0]}


def _summary(batch: Batch, seq_len: int) -> list[float]:
    """Means and spreads of an epoch: they are compared over passes with different draws."""
    sizes = batch["attention_mask"].sum(axis=1)
    b = batch["token_type_ids"].sum(axis=1) - 1
    a, label = sizes - b - 3, batch["next_sentence_labels"].reshape(-1)
    predicted = batch["masked_lm_weights"] > 0
    predictions, labels = predicted.sum(axis=1), batch["masked_lm_ids"][predicted]
    shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)[predicted]
    return [
        *(len(a), a.mean(), a.std(), b.mean(), b.std(), label.mean(), (sizes == seq_len).mean()),
        *(predictions.mean(), predictions.std(), b[label == 1].mean(), a[label == 1].mean()),
        *((shown == MASK).mean(), (shown == labels).mean()),
    ]
