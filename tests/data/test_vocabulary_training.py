"""Vocabulary training: deterministic, bounded, and clear where the text is too small."""

import os
import subprocess
import sys

import pytest

from bert_jax.data.tokenization import load_tokenizer, train_tokenizer
from bert_jax.data.vocabulary_training import SAMPLE_CHARS, sample_text
from bert_jax.errors import UserError

KINDS = ["wordpiece", "unigram", "bpe"]
# Pairs of equal counts, and more letters than fit: where an unstable order would show.
SCRIPT = """if True:
    import random, sys
    from bert_jax.data.tokenization import train_tokenizer
    rng = random.Random(1)
    letters = [chr(c) for c in range(0xAC00, 0xAC00 + 300)] + list("abcdefghijklmnop")
    words = ["".join(rng.choices(letters, k=rng.randrange(1, 6))) for _ in range(2000)]
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(1500)]
    for kind in sys.argv[1:]:
        print(train_tokenizer(kind, iter(lines), 600, lowercase=False).digest)
"""


def test_training_is_the_same_in_every_process_and_with_any_number_of_threads():
    answers = set()
    for threads in ("1", "2", "7"):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *KINDS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
    (answer,) = answers
    assert len(set(answer.split())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_text_gives_a_smaller_vocabulary(kind):
    tokenizer = train_tokenizer(kind, iter(["to be or not to be"] * 9), 30_000, lowercase=True)
    assert 10 < tokenizer.vocab_size < 100
    (ids,) = tokenizer.encode_batch(["to be"])
    assert tokenizer.unk_id not in ids


MANY_LETTERS = [f"{chr(code)}a{chr(code + 1)} words" for code in range(0x4E00, 0x4E80)] * 3


def test_the_vocabulary_is_never_larger_than_asked():
    tokenizer = train_tokenizer("wordpiece", iter(MANY_LETTERS), 64, lowercase=False)
    assert tokenizer.vocab_size <= 64


def test_letters_that_stand_alone_fill_the_vocabulary_before_any_is_unknown():
    """As Han ones do: there are no words of several to learn in the place of the rarer ones."""
    han = [chr(code) for code in range(0x4E00, 0x4E00 + 600)]
    lines = ["".join(han[: 1 + 600 // rank]) + " words" for rank in range(1, 300)]
    tokenizer = train_tokenizer("wordpiece", iter(lines), 700, lowercase=True)
    assert 600 < tokenizer.vocab_size <= 700
    assert tokenizer.unk_id not in tokenizer.encode_batch(["".join(han)])[0]
    smaller = train_tokenizer("wordpiece", iter(lines), 300, lowercase=True)
    assert smaller.vocab_size == 300
    known = [smaller.encode_batch([letter])[0][0] != smaller.unk_id for letter in han]
    assert known == sorted(known, reverse=True)  # the most frequent ones


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_more_letters_than_pieces_is_an_error_of_sentencepiece(kind):
    with pytest.raises(UserError, match="vocab_size=64"):
        train_tokenizer(kind, iter(MANY_LETTERS), 64, lowercase=False)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_an_error(kind):
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(kind, iter(["", "  "]), 100, lowercase=True)


def test_a_tiny_vocabulary_is_an_error():
    with pytest.raises(UserError, match="vocab_size=8"):
        train_tokenizer("wordpiece", iter(["text"]), 8, lowercase=True)


def test_text_that_is_cleaned_away_is_an_error():
    with pytest.raises(UserError, match="cleaned away"):
        train_tokenizer("wordpiece", iter(["\u200b", "\u200d"]), 100, lowercase=True)


def test_case_and_accents():
    lines = ["Éclair ÉCLAIR éclair Straße"] * 5
    uncased = train_tokenizer("wordpiece", iter(lines), 200, lowercase=True)
    cased = train_tokenizer("wordpiece", iter(lines), 200, lowercase=False)
    assert "eclair" in uncased.pieces
    assert {"Éclair", "ÉCLAIR", "éclair"} <= set(cased.pieces)


def test_hangul_stays_whole_in_sentencepiece():
    tokenizer = train_tokenizer("unigram", iter(["단어를 자른다 단어"] * 20), 60, lowercase=True)
    assert any("단" in piece for piece in tokenizer.pieces)


def test_special_pieces_in_training_text_are_text(tmp_path):
    tokenizer = train_tokenizer("wordpiece", iter(["[MASK] mask"] * 5), 100, lowercase=False)
    assert tokenizer.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert "MASK" in tokenizer.pieces
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path / "vocab.txt").digest == tokenizer.digest


def test_the_sample_is_bounded_and_even():
    sample = sample_text((str(number) for number in range(10_000)), size=500)
    assert len(sample) == 500
    assert sample == sample_text((str(number) for number in range(10_000)), size=500)
    mean = sum(map(int, sample)) / 500
    assert 4_400 < mean < 5_600  # 4.6 deviations of the mean of 500 even draws
    assert max(map(len, sample_text(["word " * 1000]))) <= SAMPLE_CHARS
