"""Pieces added to a vocabulary: where they go, what text becomes them, and what is refused."""

from pathlib import Path

import pytest
import transformers

from bert_jax.data.tokenization import Tokenizer, load_tokenizer, train_tokenizer
from bert_jax.errors import UserError

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "co", "##vid", "##s", "un", "test", "the"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(tmp_path / "vocab.txt", lowercase=True)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.pieces[index] for index in tokenizer.encode_batch([text])[0]]


def test_new_pieces_follow_the_old_and_are_used(tokenizer, tmp_path):
    extended = tokenizer.extended(["covid", "##ing"])
    assert extended.pieces == [*PIECES, "covid", "##ing"]
    assert pieces(tokenizer, "the covids testing") == ["the", "co", "##vid", "##s", "[UNK]"]
    assert pieces(extended, "the covids testing") == ["the", "covid", "##s", "test", "##ing"]
    assert extended.digest != tokenizer.digest
    assert extended.special_ids == tokenizer.special_ids
    extended.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").digest == extended.digest
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.tokenize("the Covids testing") == ["the", "covid", "##s", "test", "##ing"]


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ("test", "has it already"),
        ("Covid", "no text becomes it"),
        ("covid-19", "no text becomes it"),
        ("new york", "no text becomes it"),
        ("##Ing", "no text becomes it"),
    ],
)
def test_a_piece_that_cannot_be_added(piece, said, tokenizer):
    with pytest.raises(UserError, match=said):
        tokenizer.extended([piece])


def test_sentencepiece_takes_none():
    tokenizer = train_tokenizer("unigram", ["the river walks under"] * 50, 32, lowercase=True)
    with pytest.raises(UserError, match="only a WordPiece vocabulary"):
        tokenizer.extended(["stone"])
