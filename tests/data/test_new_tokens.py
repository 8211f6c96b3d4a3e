"""Pieces added to a vocabulary: where they go, what text becomes them, and what is refused."""

import json
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


@pytest.mark.parametrize("special", [True, False])
def test_pieces_beside_the_vocabulary_keep_their_ids(special, tokenizer, tmp_path):
    """Those that `add_tokens` of transformers gave a vocabulary before."""
    tokenizer.save(tmp_path / "plain")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
    theirs.add_tokens(["<e1>", "</e1>"], special_tokens=special)
    theirs.save_pretrained(tmp_path / "added")
    extended = load_tokenizer(tmp_path / "added").extended(["covid", "##ing"])
    assert extended.pieces == [*PIECES, "<e1>", "</e1>", "covid", "##ing"]
    extended.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again.digest == extended.digest
    for text in ("<e1> covid</e1> the", "testing<e1>"):
        ids = extended.encode_batch([text])[0].tolist()
        assert again.encode_batch([text])[0].tolist() == ids
        assert other(text, add_special_tokens=False)["input_ids"] == ids
        assert PIECES.index("the") in ids or len(PIECES) + 3 in ids


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


@pytest.mark.parametrize(
    "words", [["covid", "mRNA"], ["##eae", "a b"], [f"w{i}" for i in range(12)]]
)
def test_pieces_that_transformers_kept_apart_are_read(words, tmp_path):
    """Older versions wrote them to added_tokens.json, beside special pieces that need no place."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    added = {word: index for index, word in enumerate(words, len(PIECES))} | {"[MASK]": 4}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert ours.pieces == PIECES + words
    for text in ("the covid mRNA a b", "test##eae uncovids w11w1", "The Covid", " ".join(words)):
        ids = ours.encode_batch([text])[0].tolist()
        for other in (theirs, again):
            assert other(text, add_special_tokens=False)["input_ids"] == ids, text
    assert set(range(len(PIECES), len(PIECES) + len(words))) == set(ids)


@pytest.mark.parametrize(
    "added", [{"x": 12}, {"x": "11"}, {"the": 11}, {"x": 11, "y": 11}, {"x": {}}]
)
def test_pieces_kept_apart_under_other_ids_are_refused(added, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError, match=r"added_tokens\.json: '\w+' has the id"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_is_saved_whole_where_a_piece_is_declared_twice(tmp_path):
    """transformers lists a token that it was told of as added though the model has it too."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    load_tokenizer(tmp_path).save(tmp_path / "first")
    document = json.loads((tmp_path / "first" / "tokenizer.json").read_text())
    token = {**document["added_tokens"][0], "special": False}
    document["added_tokens"] += [
        {**token, "id": len(PIECES) - 3, "content": PIECES[-3]},
        {**token, "id": len(PIECES), "content": "covid"},
    ]
    (tmp_path / "first" / "tokenizer.json").write_text(json.dumps(document))
    load_tokenizer(tmp_path / "first").save(tmp_path / "second")
    assert (tmp_path / "second" / "vocab.txt").read_text().split("\n") == [*PIECES, ""]
