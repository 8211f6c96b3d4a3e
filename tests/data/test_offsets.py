"""Where pieces stand in the text, against transformers, by hand and as properties."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.tokenization import MAX_TEXT, Tokenizer, load_tokenizer, train_tokenizer

PROSE = [
    "The naïve tokenizer cuts words into pieces; 단어를 자른다.",
    "Cut the word, cut words.",
] * 9
# Marks, letters that come apart or together, spaces of many kinds, controls, halves of characters.
HOSTILE = [
    "e\u0301",
    "é",
    "\u0301",
    "İ",
    "ß",
    "ﬁ",
    "각",
    "\u1100\u1161",
    "漢",
    "🇰🇷",
    "👩‍🔬",
    "\x00",
    "\u200b",
]
HOSTILE += [
    "\u3000",
    "\u2028",
    "\n",
    " ",
    "  ",
    "\ud800",
    "\udfff",
    "[MASK]",
    "don't",
    "words",
    ",",
    "x",
]
TEXTS = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=6))).map("".join)


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bpe"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, iter(PROSE), 200, lowercase=True)


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return train_tokenizer("wordpiece", iter(PROSE), 200, lowercase=True)


def covered(tokenizer: Tokenizer, text: str) -> list[str]:
    ((_, offsets),) = tokenizer.encode_with_offsets([text])
    return [text[start:end] for start, end in offsets]


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_released_vocabularies_give_the_offsets_of_transformers(case, test_data: Path):
    from transformers import BertTokenizer

    vocab = test_data / f"vocab/bert-base-{case}-vocab.txt"
    lowercase = case == "uncased"
    theirs = BertTokenizer(str(vocab), do_lower_case=lowercase, split_special_tokens=True)
    articles = json.loads((test_data / "squad/dev-subset-v1.1.json").read_text())["data"]
    texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    texts += (test_data / "korean/nsmc-20k.tsv").read_text(encoding="utf-8").split("\n")[:2_000]
    texts += ["".join(pair) for pair in itertools.product(HOSTILE, repeat=2)]
    texts = [text.encode(errors="ignore").decode() for text in texts]
    expected = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    actual = load_tokenizer(vocab).encode_with_offsets(texts)
    assert [ids.tolist() for ids, _ in actual] == expected["input_ids"]
    pairs = [[tuple(pair) for pair in offsets.tolist()] for _, offsets in actual]
    assert pairs == expected["offset_mapping"]


@given(texts=st.lists(TEXTS))
def test_ids_are_those_without_offsets_and_offsets_are_in_order(trained, texts):
    for text, ids, (same, offsets) in zip(
        texts, trained.encode_batch(texts), trained.encode_with_offsets(texts), strict=True
    ):
        assert np.array_equal(ids, same)
        assert (same.dtype, offsets.dtype, offsets.shape) == (np.int32, np.int64, (len(ids), 2))
        assert np.all((offsets[:, 0] >= 0) & (offsets[:, 1] <= len(text)))
        assert np.all(offsets[:, 0] <= offsets[:, 1])
        assert np.all(np.diff(offsets, axis=0) >= 0)


@given(text=TEXTS)
def test_the_characters_of_a_word_give_its_pieces(wordpiece, text):
    ((ids, offsets),) = wordpiece.encode_with_offsets([text])
    edges = [*np.flatnonzero(wordpiece.starts_word[ids]), len(ids)]
    for first, end in itertools.pairwise(edges):
        word = text[offsets[first, 0] : offsets[end - 1, 1]]
        assert wordpiece.encode_batch([word])[0].tolist() == ids[first:end].tolist()
        assert word == word.strip()


def test_pieces_cover_what_was_written_not_what_it_became(wordpiece):
    assert covered(wordpiece, "The NAÏVE, \x00word") == ["The", "NAÏVE", ",", "word"]
    assert covered(wordpiece, "漢字 cut🇰🇷") == ["漢", "字", "cut🇰🇷"]
    assert set(covered(wordpiece, "단어")) == {"단", "어"}  # each letter has its syllable


def test_lone_surrogates_are_counted(wordpiece):
    assert covered(wordpiece, "\ud800cut \udfff the\ud800 word") == ["cut", "the", "word"]
    assert covered(wordpiece, "wo\ud800rd\udfff") == ["wo\ud800rd"]


def test_pieces_of_long_texts_stand_where_they_do(trained):
    sentence = "Cut  words,\n\ud800 cut word \u3000" + "words " * 8
    text = sentence * 1000
    assert len(text) > 5 * MAX_TEXT
    ((ids, offsets),) = trained.encode_with_offsets([text])
    assert len(ids) % 1000 == 0
    starts = np.arange(0, len(text), len(sentence))
    by_sentence = offsets.reshape(1000, -1, 2) - starts[:, None, None]
    assert np.all(by_sentence == by_sentence[0])
    words = ["Cut", "words", ",", "cut", "word", *["words"] * 8]
    assert [sentence[start:end] for start, end in by_sentence[0]] == words


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_piece_that_is_a_space_stands_for_the_next_letter_wherever_the_word_is(kind):
    tokenizer = train_tokenizer(kind, iter(PROSE), 200, lowercase=False)
    text = "Ŷcut words  Ŷcut Ŷ "
    ((ids, offsets),) = tokenizer.encode_with_offsets([text])
    pieces = [tokenizer.pieces[number] for number in ids]
    spaces = [tuple(pair) for piece, pair in zip(pieces, offsets, strict=True) if piece == "\u2581"]
    assert spaces == [(0, 1), (12, 13), (17, 18)]


def test_the_space_before_a_word_is_not_covered(trained):
    assert covered(trained, " cut  word\u3000words") == ["cut", "word", "words"]
