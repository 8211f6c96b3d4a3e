"""Pairs are cut and drawn as the original's algorithm does, written out here in plain Python."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_examples import epoch, make_documents, make_examples

from bert_jax.config import DataConfig
from bert_jax.data import keyed
from bert_jax.data.spans import Spans, truncate


def literal_truncation(a: int, b: int, pieces: int) -> tuple[int, int]:
    while a + b > pieces:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def spans(lengths: list[int]) -> Spans:
    zeros = np.zeros(len(lengths), np.int64)
    return Spans(zeros, zeros, np.array(lengths))


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
    assert kept == [literal_truncation(x, y, pieces) for x, y in pairs]
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


def reference_example(
    documents: list[list[int]], index: int, seq_len: int, rng: random.Random
) -> list[tuple[int, int, int]]:
    """(pieces of A, of B, label) of a document's examples, by the published algorithm."""
    document, most = documents[index], seq_len - 3
    target = rng.randint(2, most) if rng.random() < 0.1 else most
    found, chunk, i = [], [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(chunk) >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a, b, label = sum(chunk[:split]), sum(chunk[split:]), 0
            if len(chunk) == 1 or rng.random() < 0.5:
                label, b = 1, 0
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for length in documents[other][start:]:
                    b += length
                    if b >= target - a:
                        break
                i -= len(chunk) - split
            found.append((*literal_truncation(a, b, most), label))
            chunk = []
        i += 1
    return found


@pytest.mark.parametrize("seq_len", [32, 128])
def test_statistics_are_the_originals(tmp_path: Path, seq_len: int) -> None:
    documents, passes, rng = make_documents(150, 5), 12, random.Random(6)
    data = DataConfig(duplicates=passes)
    examples = make_examples(tmp_path, documents, data, seq_len=seq_len, max_predictions=20)
    lengths = [[len(sentence) for sentence in document] for document in documents]
    ours, theirs = [], []
    for number in range(passes):
        batch = epoch(examples, number, passes)
        sizes = batch["attention_mask"].sum(axis=1)
        b = batch["token_type_ids"].sum(axis=1) - 1
        label, predictions = batch["next_sentence_labels"], batch["masked_lm_weights"].sum(axis=1)
        ours.append(_summary(sizes - b - 3, b, label, predictions, seq_len))
        rows = [r for i in range(len(lengths)) for r in reference_example(lengths, i, seq_len, rng)]
        a, b, label = np.array(rows).T
        counts = [min(20, max(1, round(int(n) * 0.15))) for n in a + b + 3]
        theirs.append(_summary(a, b, label, np.array(counts), seq_len))
    difference = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    error = np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / (passes - 1))
    assert np.all(abs(difference) <= 5 * error), (difference, error)


def _summary(
    a: np.ndarray, b: np.ndarray, label: np.ndarray, predictions: np.ndarray, seq_len: int
) -> list[float]:
    """Means and spreads of an epoch: they are compared over passes with different draws."""
    full = a + b == seq_len - 3
    return [
        *(len(a), a.mean(), a.std(), b.mean(), b.std(), label.mean(), full.mean()),
        *(predictions.mean(), predictions.std(), b[label == 1].mean(), a[label == 1].mean()),
    ]
