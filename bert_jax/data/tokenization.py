"""Tokenizers: WordPiece and SentencePiece vocabularies behind one small interface."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np


class Tokenizer:
    """A subword vocabulary and the rules that cut text into its pieces.

    Picklable (and cheap to load again from a saved directory), so that worker processes can
    hold one.

    Attributes:
      vocab_size: number of pieces, special ones included.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the five special pieces.
      special_ids: those five, as a frozenset.
      pieces: id -> piece.
      starts_word: bool [vocab_size]; False for pieces that continue a word, True for the others,
        special ones included.
      digest: hex hash of pieces and settings: equal digests give equal ids.
    """

    vocab_size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: frozenset[int]
    pieces: list[str]
    starts_word: np.ndarray
    digest: str

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """The ids of each text, int32 [pieces of that text], without [CLS] and [SEP]."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, special pieces left out."""
        raise NotImplementedError

    def save(self, directory: str | Path) -> None:
        """Write the files that `transformers.AutoTokenizer.from_pretrained(directory)` reads."""
        raise NotImplementedError


def load_tokenizer(path: str | Path, lowercase: bool | None = None) -> Tokenizer:
    """Read a directory, a vocab.txt, a tokenizer.json or a SentencePiece .model.

    `lowercase` is for a bare vocab.txt: a tokenizer_config.json beside it goes before it, and
    None decides by the pieces (an upper-case letter in any makes the vocabulary cased).
    """
    raise NotImplementedError


def train_tokenizer(
    kind: str, sentences: Iterable[str], vocab_size: int, lowercase: bool
) -> Tokenizer:
    """Train a vocabulary: kind "wordpiece", "unigram" or "bpe"; deterministic."""
    raise NotImplementedError
