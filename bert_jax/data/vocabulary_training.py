"""Training of vocabularies: the same text gives the same pieces, in bounded memory."""

import bisect
import io
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import sentencepiece
import tokenizers
from tokenizers import trainers

from bert_jax.errors import UserError

# What is held in memory: at most this many parts of at most this many characters, drawn evenly
# from all of the text. 2**20 sentences are some 130 MB of English, far more than the words that
# a vocabulary of 30,000 pieces can tell apart.
SAMPLE_SIZE = 2**20
SAMPLE_CHARS = 512
COVERAGE = 0.9999  # share of the characters of the text that a WordPiece vocabulary has to spell


def cut_text(text: str, limit: int) -> Iterator[str]:
    """Parts of at most `limit` characters that add up to `text`, cut before a space if one is."""
    start = 0
    while len(text) - start > limit:
        end = max(text.rfind(mark, start + 1, start + limit + 1) for mark in " \n")
        end = end if end > start else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


def sample_text(sentences: Iterable[str], size: int = SAMPLE_SIZE) -> list[str]:
    """An even sample of `size` parts of the text (Vitter's algorithm R), always the same one."""
    rng = random.Random(0)
    kept: list[str] = []
    parts = (part for sentence in sentences for part in cut_text(sentence, SAMPLE_CHARS))
    for seen, part in enumerate(parts):
        if seen < size:
            kept.append(part)
        elif (slot := rng.randrange(seen + 1)) < size:
            kept[slot] = part
    return kept


def train_wordpiece(
    backend: tokenizers.Tokenizer, text: list[str], vocab_size: int, specials: list[str]
) -> list[str]:
    """Pieces of a WordPiece vocabulary, `specials` first; fewer than asked if the text is small.

    The trainer of `tokenizers` numbers the pieces of one letter, and with them the order of
    equally frequent pairs, by the order of a hash table that differs from run to run. So all of
    them are counted and numbered here: the most frequent letters, until they make up COVERAGE
    of the text or their pieces half of `vocab_size`; words with others become [UNK]. Where words
    leave room, as in Chinese, more of the letters that stand alone come last.

    Args:
      backend: gives the normalisation and the cutting into words, and is trained.
    """
    ranked = _letters(backend, text)
    alone = {letter for letter in ranked if not _continues(backend, letter)}
    sizes = itertools.accumulate(1 if letter in alone else 2 for letter in ranked)
    known = bisect.bisect_right([*sizes], vocab_size // 2)
    letters = sorted(ranked[:known])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        limit_alphabet=len(letters),
        initial_alphabet=letters,
        special_tokens=specials + ["##" + letter for letter in letters if letter not in alone],
        show_progress=False,
    )
    backend.train_from_iterator(text, trainer)
    ids = backend.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    others = [letter for letter in ranked[known:] if letter in alone]
    pieces += others[: vocab_size - len(pieces)]
    assert len(pieces) <= vocab_size
    return pieces


def _letters(backend: tokenizers.Tokenizer, text: list[str]) -> list[str]:
    """The characters of the normalised text that make up COVERAGE of it, most frequent first."""
    raw: Counter[str] = Counter()
    for part in text:
        raw.update(part)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for letter in backend.normalizer.normalize_str(character).strip():
            counts[letter] += count
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    if not ranked:
        raise UserError("there is no text to train a vocabulary on: all of it is cleaned away")
    covered = list(itertools.accumulate(counts[letter] for letter in ranked))
    enough = bisect.bisect_left(covered, COVERAGE * covered[-1]) + 1
    return ranked[:enough]


def _continues(backend: tokenizers.Tokenizer, letter: str) -> bool:
    """Whether a word can go on with `letter` (punctuation and CJK characters stand alone)."""
    normalised = backend.normalizer.normalize_str("a" + letter)
    return len(backend.pre_tokenizer.pre_tokenize_str(normalised)) == 1


def train_sentencepiece(kind: str, text: list[str], vocab_size: int, specials: list[str]) -> bytes:
    """A SentencePiece model, `kind` "unigram" or "bpe", of text that is already normalised.

    `specials` (padding, unknown, [CLS], [SEP], [MASK]) get the ids 0 to 4. A small text gives
    fewer pieces than asked.

    Raises:
      UserError: the text has more characters to cover than `vocab_size`.
    """
    pad, unknown, cls, sep, mask = specials
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            max_sentence_length=8 * SAMPLE_CHARS,
            num_threads=16,  # sums are split by it, so that it decides over their last bits
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece=unknown,
            bos_piece=cls,
            eos_piece=sep,
            control_symbols=[mask],
            minloglevel=2,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"vocab_size={vocab_size}: sentencepiece cannot train a {kind} vocabulary of this "
            f"size on {len(text)} sentences: {error}"
        ) from error
    return model.getvalue()
