"""The vocabulary that the settings of a corpus ask for: given or trained, with its new tokens."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np

from bert_jax.config import CorpusConfig
from bert_jax.data.preparation import Inventory, Workspace, training_sentences
from bert_jax.data.tokenization import (
    MIN_VOCAB_SIZE,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
    untrained_wordpiece,
)
from bert_jax.data.vocabulary_files import read_vocab
from bert_jax.errors import UserError


def new_pieces(corpus: CorpusConfig, vocab_size: int) -> list[str]:
    """What `corpus.new_tokens` adds; a vocabulary that is trained will take it and has room for it.

    Raises:
      UserError: the file is no list of pieces; or there is none to add them to yet, and the one
        that is to be trained takes none, cuts one of them, or would be left too small.
    """
    if not corpus.new_tokens:
        return []
    new = read_vocab(Path(corpus.new_tokens))
    if corpus.vocab:
        return new
    if corpus.tokenizer != "wordpiece":
        raise UserError(
            f"tokenizer={corpus.tokenizer!r} takes no new_tokens ({corpus.new_tokens}); "
            "wordpiece does"
        )
    if new and vocab_size - len(new) < MIN_VOCAB_SIZE:
        raise UserError(
            f"vocab_size={vocab_size}: {corpus.new_tokens} adds {len(new)} of these pieces, and at "
            f"least {MIN_VOCAB_SIZE} must be left to train"
        )
    untrained_wordpiece(corpus.lowercase).extended(new)  # refuses what text never becomes
    return new


def digest(new: list[str]) -> str | None:
    """Of new pieces in their order; None where there are none."""
    return hashlib.blake2b("\n".join(new).encode(), digest_size=16).hexdigest() if new else None


def given_vocabulary(corpus: CorpusConfig, new: list[str]) -> Tokenizer:
    """What `corpus.vocab` names, with its new tokens.

    Raises:
      UserError: as `load_tokenizer`; or its own rules put text in lower case, which the corpus is
        not to be.
    """
    tokenizer = load_tokenizer(corpus.vocab, lowercase=None if corpus.lowercase else False)
    if tokenizer.lowercases and not corpus.lowercase:
        raise UserError(
            f"{corpus.vocab}: says itself that text is put in lower case; leave lowercase=False "
            "(--no-lowercase) out, or give a cased vocabulary"
        )
    return tokenizer.extended(new) if new else tokenizer


def make_vocabulary(
    space: Workspace,
    corpus: CorpusConfig,
    vocab_size: int,
    new: list[str],
    inventory: Inventory,
    sides: np.ndarray,
    given: Tokenizer | None,
) -> Tokenizer:
    """Take the given vocabulary or train one, and save it in the output."""
    if not space.tokenizer.is_dir():
        tokenizer = given
        if tokenizer is None:
            size = vocab_size - len(new)  # the model has rows for vocab_size pieces in all
            space.tell(f"training a vocabulary of {size:,} pieces")
            sentences = training_sentences(space, inventory, sides)
            tokenizer = train_tokenizer(corpus.tokenizer, sentences, size, corpus.lowercase)
            # Which of them training has found by itself nobody can know before.
            lacking = [piece for piece in new if piece not in tokenizer.pieces]
            tokenizer = tokenizer.extended(lacking) if lacking else tokenizer
        temporary = space.root / "tokenizer.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        tokenizer.save(temporary)
        os.replace(temporary, space.tokenizer)
    return load_tokenizer(space.tokenizer)
