import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_examples import CLS, FIRST, MASK, PAD, SEP, Pieces

from bert_jax.data import keyed
from bert_jax.data.masking import Masked, _choose_words, count_predictions, mask_tokens


def make_pieces(vocab_size: int = 1000) -> Pieces:
    starts_word = np.arange(vocab_size) % 10 < 7  # three pieces in ten continue a word
    starts_word[:FIRST] = True
    return Pieces(vocab_size, starts_word)


def make_batch(rows: int, length: int, seed: int, vocab_size: int = 1000) -> np.ndarray:
    """[CLS] A [SEP] B [SEP] of random lengths, int32 [rows, length]."""
    rng = np.random.default_rng(seed)
    ids = np.full((rows, length), PAD, np.int32)
    for row in ids:
        a = rng.integers(1, length - 3)
        b = rng.integers(1, length - 2 - a)
        row[: a + b + 3] = rng.integers(FIRST, vocab_size, a + b + 3)
        row[[0, a + 1, a + b + 2]] = CLS, SEP, SEP
    return ids


def mask(
    ids: np.ndarray,
    seed: int = 0,
    *,
    pieces: Pieces | None = None,
    mask_prob: float = 0.15,
    max_predictions: int = 20,
    whole_word: bool = False,
) -> Masked:
    return mask_tokens(
        ids,
        ids >= FIRST,
        keyed.key(seed, np.arange(len(ids))),
        pieces or make_pieces(),
        wanted=count_predictions((ids != PAD).sum(axis=1), mask_prob, max_predictions),
        max_predictions=max_predictions,
        whole_word=whole_word,
    )


def words_of(row: np.ndarray, starts_word: np.ndarray) -> list[list[int]]:
    """Positions of each word: the published rule, but that a special piece ends a word."""
    found: list[list[int]] = []
    for position, piece in enumerate(row):
        if piece < FIRST:
            continue
        if starts_word[piece] or row[position - 1] < FIRST:
            found.append([])
        found[-1].append(position)
    return found


def reference_masks(
    row: np.ndarray, pieces: Pieces, most: int, whole_word: bool, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Positions and replacements of one row, by the published algorithm, one at a time."""
    candidates = words_of(row, pieces.starts_word)
    if not whole_word:
        candidates = [[position] for word in candidates for position in word]
    rng.shuffle(candidates)
    wanted = min(most, max(1, round(int((row != PAD).sum()) * 0.15)))
    positions: list[int] = []
    for word in candidates:
        if len(positions) >= wanted:
            break
        if len(positions) + len(word) <= wanted:
            positions += word
    replacements = []
    for position in sorted(positions):
        if rng.random() < 0.8:
            replacements.append(MASK)
        elif rng.random() < 0.5:
            replacements.append(int(row[position]))
        else:
            replacements.append(rng.randint(0, pieces.vocab_size - 1))
    return sorted(positions), replacements


@settings(max_examples=60, deadline=None)
@given(
    st.integers(8, 150),
    st.integers(1, 40),
    st.sampled_from([0.01, 0.15, 0.3, 0.9]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_what_holds_of_every_mask(
    length: int, most: int, mask_prob: float, whole_word: bool, seed: int
) -> None:
    most = min(most, length)
    ids, pieces = make_batch(16, length, seed), make_pieces()
    before = ids.copy()
    masked = mask(ids, seed, mask_prob=mask_prob, max_predictions=most, whole_word=whole_word)
    assert np.array_equal(ids, before)
    assert masked.positions.shape == masked.ids.shape == masked.weights.shape == (16, most)
    assert masked.input_ids.min() >= 0
    assert masked.input_ids.max() < pieces.vocab_size
    for row in range(16):
        real = masked.weights[row] == 1
        count = int(real.sum())
        assert np.array_equal(real, np.arange(most) < count)
        positions = masked.positions[row, :count]
        assert np.all(np.diff(positions) > 0)
        assert np.all(ids[row, positions] >= FIRST)
        assert np.array_equal(masked.ids[row, :count], ids[row, positions])
        assert not masked.positions[row, count:].any()
        assert not masked.ids[row, count:].any()
        text = int((ids[row] >= FIRST).sum())
        wanted = min(most, max(1, round((text + 3) * mask_prob)), text)
        assert count <= wanted if whole_word else count == wanted
        restored = masked.input_ids[row].copy()
        restored[positions] = masked.ids[row, :count]
        assert np.array_equal(restored, ids[row])
        if whole_word:
            chosen = set(positions.tolist())
            for word in words_of(ids[row], pieces.starts_word):
                assert chosen.issuperset(word) or chosen.isdisjoint(word)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 30), st.randoms())
def test_words_fill_as_one_at_a_time(sizes: list[int], wanted: int, rng: random.Random) -> None:
    starts = np.cumsum([0, *sizes])
    word = np.repeat(starts[:-1], sizes)[None]
    shuffled = list(range(len(sizes)))
    rng.shuffle(shuffled)
    order = np.concatenate([np.arange(starts[w], starts[w + 1]) for w in shuffled] + [[2**32 - 1]])
    expected: list[int] = []
    for w in shuffled:
        if len(expected) + sizes[w] <= wanted:
            expected += range(starts[w], starts[w + 1])
    padded = np.append(word, [[0]], axis=1)
    chosen = _choose_words(order[None].astype(np.uint32), padded, np.array([wanted]))
    assert order[chosen[0]].tolist() == expected


@pytest.mark.parametrize("whole_word", [False, True])
def test_statistics_are_the_originals(whole_word: bool) -> None:
    rows, pieces, rng = 4000, make_pieces(), random.Random(1)
    ids = make_batch(rows, 64, 2)
    masked = mask(ids, 3, whole_word=whole_word, max_predictions=8)
    counts, places, continued, kinds = [], [], [], np.zeros((2, 3))
    for row in range(rows):
        positions, new = reference_masks(ids[row], pieces, 8, whole_word, rng)
        count = int(masked.weights[row].sum())
        ours = masked.positions[row, :count]
        counts.append((count, len(positions)))
        length = int((ids[row] != PAD).sum())
        places.append((ours.mean() / length, np.mean(positions) / length))
        continuing = [~pieces.starts_word[ids[row, p]] for p in (ours, positions)]
        continued.append([c.sum() / n for c, n in zip(continuing, counts[-1], strict=True)])
        for side, (at, after) in enumerate([(ours, masked.input_ids[row, ours]), (positions, new)]):
            after = np.array(after)
            kept = after == ids[row, at]
            kinds[side] += [(after == MASK).sum(), kept.sum(), (~kept & (after != MASK)).sum()]
    # Paired by row: five standard errors of the mean difference.
    for pairs in (counts, places, continued):
        difference = np.array(pairs, float) @ [1, -1]
        assert abs(difference.mean()) <= 5 * difference.std() / np.sqrt(rows)
    shares = kinds / kinds.sum(axis=1, keepdims=True)
    expected = np.array([0.8, 0.1, 0.1])
    error = np.sqrt(expected * (1 - expected) / kinds.sum(axis=1, keepdims=True))
    # A random piece is the old one or [MASK] once in a thousand.
    assert np.all(abs(shares - expected) < 5 * error + 0.0003)


def test_every_position_is_equally_likely() -> None:
    rows, length = 20_000, 24
    ids = np.full((rows, length), FIRST, np.int32)
    ids[:, [0, 9, 23]] = CLS, SEP, SEP
    masked = mask(ids)
    hits = np.bincount(masked.positions[masked.weights == 1], minlength=length)
    share = 4 / 21  # round(24 * 0.15) of the 21 pieces of text
    text = np.delete(np.arange(length), [0, 9, 23])
    assert not hits[[0, 9, 23]].any()
    assert abs(hits[text] - rows * share).max() < 5 * np.sqrt(rows * share * (1 - share))


def test_random_pieces_come_from_the_whole_vocabulary() -> None:
    pieces = make_pieces(50)
    ids = np.full((20_000, 24), 20, np.int32)
    ids[:, [0, 9, 23]] = CLS, SEP, SEP
    masked = mask(ids, pieces=pieces)
    real = masked.weights == 1
    after = np.take_along_axis(masked.input_ids, masked.positions, axis=1)[real]
    counts = np.bincount(after, minlength=50)
    expected = real.sum() * 0.1 / 50
    others = np.delete(counts, [MASK, 20])
    assert len(counts) == 50
    assert abs(others - expected).max() < 5 * np.sqrt(expected)


def test_masks_follow_from_the_key_alone() -> None:
    ids = make_batch(8, 32, 4)
    again = mask(ids)
    assert np.array_equal(mask(ids).input_ids, again.input_ids)
    assert not np.array_equal(mask(ids, 1).positions, again.positions)
    half = mask_tokens(
        ids[4:],
        ids[4:] >= FIRST,
        keyed.key(0, np.arange(4, 8)),
        make_pieces(),
        wanted=count_predictions((ids[4:] != PAD).sum(axis=1), 0.15, 20),
        max_predictions=20,
        whole_word=False,
    )
    assert np.array_equal(half.input_ids, again.input_ids[4:])


def test_count_rounds_half_to_even() -> None:
    lengths = np.array([3, 10, 30, 50, 128, 512])
    # 0.5, 1.5, 4.5, 7.5 are ties in exact arithmetic; floats decide, as in the original.
    expected = [min(20, max(1, round(int(n) * 0.15))) for n in lengths]
    assert count_predictions(lengths, 0.15, 20).tolist() == expected
    assert count_predictions(np.array([5, 6, 7]), 0.5, 20).tolist() == [2, 3, 4]
