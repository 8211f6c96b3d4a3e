"""Where the segments of examples stand in the token shards, before any token is read."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from bert_jax.data.keyed import key, words


@dataclass(frozen=True)
class Spans:
    """A stretch of tokens for each row: int64 [B] each."""

    shard: np.ndarray
    start: np.ndarray
    length: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Self:
        return type(self)(self.shard[rows], self.start[rows], self.length[rows])


@dataclass(frozen=True)
class Cuts:
    """Examples that are truncated, and not yet read or masked.

    Attributes:
      a, b: their segments; without next-sentence prediction b is empty.
      random_b: bool [B], whether B is of another document.
      lengths: int64 [B], of their sequences, special pieces included.
      keys: uint64 [B], from which their masks follow.
    """

    a: Spans
    b: Spans
    random_b: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Self:
        return type(self)(
            self.a[rows], self.b[rows], self.random_b[rows], self.lengths[rows], self.keys[rows]
        )


def truncate(a: Spans, b: Spans, pieces: int, keys: np.ndarray) -> tuple[Spans, Spans]:
    """Cut each pair to `pieces`, as the original's `truncate_seq_pair` does.

    There a piece at a time leaves the longer one (ties: B), from its front or back with equal
    chance. So the lengths follow by arithmetic, and the front loses a binomial number.
    """
    kept_a = np.minimum(a.length, np.maximum(pieces - pieces // 2, pieces - b.length))
    kept_b = np.minimum(b.length, np.maximum(pieces // 2, pieces - a.length))
    return _cut_ends(a, kept_a, key(keys, 0)), _cut_ends(b, kept_b, key(keys, 1))


def _cut_ends(spans: Spans, kept: np.ndarray, keys: np.ndarray) -> Spans:
    front = np.zeros(len(kept), np.int64)
    at = np.flatnonzero(spans.length > kept)
    front[at] = _heads((spans.length - kept)[at], keys[at])
    return Spans(spans.shard, spans.start + front, kept)


def _heads(tosses: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Heads among `tosses` (int64 [N], at least 1) of a fair coin: set bits of as many hashed."""
    if not len(tosses):
        return tosses
    chunks = np.arange(-(-tosses.max() // 64))
    bits = np.clip(tosses[:, None] - 64 * chunks, 0, 64).astype(np.uint64)
    shift = 64 - bits  # in two steps: a shift by 64 is not defined
    uniform = words(keys, len(chunks)) >> shift // 2 >> shift - shift // 2
    return np.bitwise_count(uniform).sum(axis=1, dtype=np.int64)
