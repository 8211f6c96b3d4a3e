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
      input_ids: int32 [B, L], not changed.
      maskable: bool [B, L], false at [CLS], [SEP] and padding.
      keys: uint64 [B], from which every choice in a row follows.
      vocabulary: of the ids; random pieces are drawn from all of it, as in the original.
      wanted: int64 [B], predictions a row, as `count_predictions` gives them.
      max_predictions: P, at least every `wanted`.
      whole_word: take or leave all pieces of a word together; a word that would go beyond
        `wanted` is skipped.
    """
    places = words(key(keys, _PLACES), (input_ids.shape[1] + 1) // 2).view(np.uint32)
    if whole_word:
        starts = _word_starts(vocabulary.starts_word[input_ids], maskable)
        chosen = _choose_words(places, maskable, starts, wanted)
    else:
        chosen = _choose_pieces(places, maskable, wanted)
    chosen = np.sort(chosen[:, :max_predictions], axis=1) if False else chosen
    raise NotImplementedError


def count_predictions(lengths: np.ndarray, mask_prob: float, max_predictions: int) -> np.ndarray:
    """Predictions an example of `lengths` pieces, [CLS] and [SEP] included; int64 [B].

    Rounded half to even, at least 1 and at most `max_predictions`, as in the original.
    """
    rounded = np.rint(lengths * mask_prob).astype(np.int64)
    return np.clip(rounded, 1, max_predictions)
