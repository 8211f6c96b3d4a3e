"""Masked language modelling: which pieces are predicted, and what is put in their place.

The rules are those of `create_masked_lm_predictions` in the original's
create_pretraining_data.py, vectorised over the batch and keyed by example. One differs: there a
continuation piece right after [SEP] joins the last word before it; here it is a word by itself.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bert_jax.data.keyed import below, chance, key, words

_MASKED, _MASKED_OR_KEPT = 0.8, 0.9  # 80 % [MASK], 10 % kept, 10 % random (paper, section 3.1)
_PLACES, _PIECES = 1, 2  # consumers of an example's key
_NOWHERE = np.uint32(2**32 - 1)  # sorts after every position


class Vocabulary(Protocol):
    """What examples need to know of a tokenizer; `tokenization.Tokenizer` is one."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    starts_word: np.ndarray  # bool [vocab_size]


@dataclass(frozen=True)
class Masked:
    """A masked batch; columns past an example's predictions hold 0."""

    input_ids: np.ndarray  # int32 [B, L]
    positions: np.ndarray  # int32 [B, P], ascending
    ids: np.ndarray  # int32 [B, P], what stood there
    weights: np.ndarray  # float32 [B, P], 1 for a prediction, 0 for padding


def mask_tokens(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    keys: np.ndarray,
    vocabulary: Vocabulary,
    *,
    wanted: np.ndarray,
    max_predictions: int,
    whole_word: bool,
) -> Masked:
    """Choose positions without replacement, and mask them.

    Args:
      input_ids: int32 [B, L], not changed; L is at most 65,536.
      maskable: bool [B, L], false at [CLS], [SEP] and padding.
      keys: uint64 [B], from which every choice in a row follows.
      vocabulary: of the ids; random pieces are drawn from all of it, as in the original.
      wanted: int64 [B], predictions a row, as `count_predictions` gives them.
      max_predictions: P, at least every `wanted`.
      whole_word: take or leave all pieces of a word together; a word that would go beyond
        `wanted` is skipped.
    """
    length = input_ids.shape[1]
    places = words(key(keys, _PLACES), (length + 1) // 2).view(np.uint32)[:, :length]
    if whole_word:
        word = _first_pieces(vocabulary.starts_word[input_ids], maskable)
        order = _random_order(np.take_along_axis(places, word, axis=1), maskable)
        chosen = _choose_words(order, word, wanted)
    else:
        order = _random_order(places, maskable)[:, :max_predictions]
        chosen = _choose_pieces(order, wanted)
    positions = np.sort(np.where(chosen, order, _NOWHERE), axis=1)[:, :max_predictions]

    real = positions != _NOWHERE
    positions = np.where(real, positions, 0).astype(np.int32)
    originals = np.take_along_axis(input_ids, positions, axis=1)
    uniform = words(key(keys, _PIECES), max_predictions)
    replacements = _replace(originals, uniform, vocabulary)
    masked = input_ids.copy()
    np.put_along_axis(masked, positions, np.where(real, replacements, originals), axis=1)
    return Masked(masked, positions, originals * real, real.astype(np.float32))


def count_predictions(lengths: np.ndarray, mask_prob: float, max_predictions: int) -> np.ndarray:
    """Predictions an example of `lengths` pieces, [CLS] and [SEP] included; int64 [B].

    Rounded half to even, at least 1 and at most `max_predictions`, as in the original.
    """
    rounded = np.rint(lengths * mask_prob).astype(np.int64)
    return np.clip(rounded, 1, max_predictions)


def _random_order(places: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Maskable positions of each row by their uint32 place, then `_NOWHERE`; uint32 [B, L].

    Sorting words that carry the position in their low bits is many times faster than argsort;
    positions whose other bits tie (16 or more are left) come in their own order.
    """
    length = places.shape[1]
    low = np.uint32((1 << (length - 1).bit_length()) - 1)
    tagged = (places & ~low) | np.arange(length, dtype=np.uint32)
    tagged = np.sort(np.where(maskable, tagged, _NOWHERE), axis=1)
    return np.where(tagged == _NOWHERE, _NOWHERE, tagged & low)


def _choose_pieces(order: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The first `wanted` of each row; bool, as `order`."""
    return (np.arange(order.shape[1]) < wanted[:, None]) & (order != _NOWHERE)


def _first_pieces(starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Position of the first piece of the word that each piece is of; int64 [B, L].

    A word ends at whatever is not maskable: a piece after [CLS] or [SEP] starts one.
    """
    starts = starts | ~maskable
    starts[:, 1:] |= ~maskable[:, :-1]
    return np.maximum.accumulate(np.where(starts, np.arange(starts.shape[1]), 0), axis=1)


def _choose_words(order: np.ndarray, word: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Fill up to `wanted` with words in order, skipping any that would overflow; bool, as `order`.

    `order` holds the pieces of a word side by side. What has been skipped stays skipped, as room
    only shrinks; so a round drops the words too large for what is left and takes, of the others,
    all before the next one that overflows. Few rounds do: room is then less than that word.
    """
    present = order != _NOWHERE
    position = np.where(present, order, 0)
    starts = (np.take_along_axis(word, position, axis=1) == position) | ~present
    ranks = np.arange(order.shape[1])
    first = np.maximum.accumulate(np.where(starts, ranks, 0), axis=1)
    ends = np.ones_like(starts)
    ends[:, :-1] = starts[:, 1:]
    last = np.where(ends, ranks, len(ranks))[:, ::-1]
    last = np.minimum.accumulate(last, axis=1)[:, ::-1]
    sizes = last - first + 1

    chosen = np.zeros_like(present)
    room, left = wanted[:, None], present
    while (left := left & (sizes <= room)).any():
        filled = np.take_along_axis(np.cumsum(left, axis=1), last, axis=1)
        fits = left & (filled <= room)
        chosen |= fits
        left = left & ~fits
        room = room - fits.sum(axis=1, keepdims=True)
    return chosen


def _replace(originals: np.ndarray, uniform: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """What stands at a predicted position, drawn a piece (also for whole words); int32 [B, P]."""
    masked, masked_or_kept = chance(uniform, _MASKED), chance(uniform, _MASKED_OR_KEPT)
    # The remainder hangs on the low bits, which those above leave free.
    random_ids = below(uniform, vocabulary.vocab_size).astype(np.int32)
    unmasked = np.where(masked_or_kept, originals, random_ids)
    return np.where(masked, np.int32(vocabulary.mask_id), unmasked)
