"""Randomness by key: every number is a pure function of what it is for, with no state carried.

A stream is SplitMix64's (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number
generators"), started at a key: word i of a stream is `mix64(key + (i + 1) * GOLDEN)`, so that any
word of any example is had directly. Not for secrets.
"""

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: the step of SplitMix64's counter
_WORD = 2**64 - 1
_ROUNDS = 6  # of the Feistel network; four leave permutations of a few elements uneven


def mix64(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of uint64 words of any shape (not scalars)."""
    mixed = words ^ (words >> 30)
    mixed *= 0xBF58476D1CE4E5B9
    mixed ^= mixed >> 27
    mixed *= 0x94D049BB133111EB
    mixed ^= mixed >> 31
    return mixed


def key(*parts: int | np.ndarray) -> np.ndarray:
    """Fold integers into uint64 keys, an element for each of the broadcast parts ([1] for ints)."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        word = part & _WORD if isinstance(part, int) else part.astype(np.uint64)
        state = mix64((state + GOLDEN) ^ word)
    return state


def words(keys: np.ndarray, count: int) -> np.ndarray:
    """The first `count` uniform words of each key's stream: uint64 [N] -> uint64 [N, count]."""
    counter = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
    return mix64(keys[:, None] + counter)


def below(uniform: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Uniform int64 in [0, bound) from uniform uint64 words; the bias is under bound / 2**64."""
    if not isinstance(bound, int):
        bound = bound.astype(np.uint64)
    return (uniform % bound).astype(np.int64)


def chance(uniform: np.ndarray, probability: float) -> np.ndarray:
    """Bool, true with `probability`, from uniform uint64 words."""
    return uniform * 2.0**-64 < probability


def permute(index: np.ndarray, size: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of range(size) sends each index, O(1) an element.

    A Feistel network over Z_a x Z_b with a * b just above `size`, walked until it lands inside
    (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains"). `a` is about sqrt(size), so
    that a step of the walk is needed for one index in sqrt(size).

    Args:
      index: int64 [N], each in [0, size).
      size: int64 [N], at least 1; elements may differ.
      keys: uint64 [N], the permutation each element belongs to.

    Returns:
      int64 [N], each in [0, size): for one size and key, a bijection.
    """
    left_size = np.ceil(np.sqrt(size)).astype(np.uint64)
    bound = size.astype(np.uint64)
    right_size = (bound + left_size - 1) // left_size
    image = index.astype(np.uint64)
    outside = np.arange(len(image))
    while len(outside):
        image[outside] = _feistel(
            image[outside], left_size[outside], right_size[outside], keys[outside]
        )
        outside = outside[image[outside] >= bound[outside]]
    return image.astype(np.int64)


def _feistel(
    index: np.ndarray, left_size: np.ndarray, right_size: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """A bijection of range(left_size * right_size), elementwise; all uint64 [N]."""
    left, right = np.divmod(index, right_size)
    for turn in range(1, _ROUNDS + 1):
        round_keys = keys + np.uint64(turn * GOLDEN & _WORD)
        if turn % 2:
            left = (left + mix64(right ^ round_keys) % left_size) % left_size
        else:
            right = (right + mix64(left ^ round_keys) % right_size) % right_size
    return left * right_size + right
