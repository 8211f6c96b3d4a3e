"""Broken vocabularies of others: each is refused, and the message says where."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data import vocabulary_files
from bert_jax.data.tokenization import SPECIAL_PIECES, load_tokenizer, train_tokenizer
from bert_jax.data.vocabulary_training import train_sentencepiece
from bert_jax.errors import UserError

GOOD = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.replace("[MASK]\n", ""), r"vocab.txt: .*no \[MASK\]"),
        (GOOD.replace("[PAD]\n", ""), r"vocab.txt: .*no \[PAD\]"),
        (GOOD + "the\n", r"vocab.txt:8: 'the' stands on line 6"),
        (GOOD.replace("the", ""), r"vocab.txt:6: a blank line"),
        (GOOD + "\n", r"vocab.txt:8: a blank line"),
        (GOOD.replace("\n", "\r\n"), r"vocab.txt:1: a carriage return"),
        ("\ufeff" + GOOD, r"vocab.txt:1: a byte order mark"),
        (GOOD.encode() + b"\xff\xfe\n", r"vocab.txt:8: not UTF-8"),
        ("", r"vocab.txt: .*no \[PAD\]"),
    ],
)
def test_a_broken_vocab_is_refused(content, message, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        load_tokenizer(path)


def test_a_last_line_without_an_end_counts(tmp_path):
    (tmp_path / "vocab.txt").write_text(GOOD.rstrip("\n"))
    assert load_tokenizer(tmp_path).pieces[-1] == "##s"


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere: cannot be read"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no tokenizer\.json, vocab\.txt or \.model"):
        load_tokenizer(tmp_path)


def test_a_listing_of_a_sentencepiece_model_is_no_wordpiece(tmp_path):
    """KoBERT's weights come with a .model, and a vocab.txt that lists its pieces."""
    text = ["the stone walks over the bridge", "a river and another river"] * 20
    (tmp_path / "kobert.model").write_bytes(
        train_sentencepiece("unigram", text, 40, SPECIAL_PIECES)
    )
    alone = load_tokenizer(tmp_path)
    listing = tmp_path / "vocab.txt"
    listing.write_text("\n".join(alone.pieces) + "\n")
    assert load_tokenizer(tmp_path).digest == alone.digest
    listing.write_text("\n".join([*alone.pieces[:-2], *alone.pieces[:-3:-1]]) + "\n")
    with pytest.raises(UserError, match=r"vocab\.txt: not the pieces of kobert\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "kobert.model").unlink()
    with pytest.raises(UserError, match=r"vocab\.txt: lists pieces of SentencePiece"):
        load_tokenizer(tmp_path)


def test_an_endless_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary_files, "MAX_FILE_BYTES", 20)
    (tmp_path / "vocab.txt").write_text(GOOD)
    with pytest.raises(UserError, match="larger than 20 bytes"):
        load_tokenizer(tmp_path)


def test_case_of_a_bare_vocab(tmp_path):
    path = tmp_path / "vocab.txt"

    def encodes_capitals(**arguments: bool) -> bool:
        tokenizer = load_tokenizer(path, **arguments)
        return tokenizer.unk_id not in tokenizer.encode_batch(["THE"])[0]

    path.write_text(GOOD)
    assert encodes_capitals()  # no capital in the vocabulary: text is put in lower case
    assert not encodes_capitals(lowercase=False)
    path.write_text(GOOD + "<S>\n")
    assert encodes_capitals()  # as Google's Chinese vocabulary has it, which is of lower case
    path.write_text(GOOD + "The\n")
    assert not encodes_capitals()
    assert encodes_capitals(lowercase=True)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert encodes_capitals(lowercase=False)  # the file goes before the argument
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": "yes"}))
    with pytest.raises(UserError, match="do_lower_case"):
        encodes_capitals()


@pytest.mark.parametrize(
    "field", [{"word_tokenizer_type": "mecab"}, {"subword_tokenizer_type": "character"}]
)
def test_words_that_another_program_cuts_are_refused(field, tmp_path):
    (tmp_path / "vocab.txt").write_text(GOOD)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(field))
    with pytest.raises(UserError, match=r"_tokenizer_type is '(mecab|character)'"):
        load_tokenizer(tmp_path)


def test_accents_of_a_bare_vocab_stay_where_pieces_have_them(tmp_path):
    path = tmp_path / "vocab.txt"
    for pieces, text in (("한국\n##어\n", "THE 한국어"), ("über\n", "THE Über")):
        path.write_text(GOOD + pieces)
        tokenizer = load_tokenizer(path)
        assert tokenizer.unk_id not in tokenizer.encode_batch([text])[0]


def test_special_pieces_of_another_name(tmp_path):
    (tmp_path / "vocab.txt").write_text("<pad>\n<unk>\n<s>\n</s>\n<blank>\na\n<\n>\nblank\n")
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        load_tokenizer(tmp_path)
    config = {"mask_token": {"content": "<blank>", "__type": "AddedToken"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.mask_id == 4
    assert tokenizer.encode_batch(["<blank>"])[0].tolist() == [6, 8, 7]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    train_tokenizer("wordpiece", iter([GOOD] * 3), 64, lowercase=True).save(folder)
    return folder


def broken(saved: Path, folder: Path, change) -> Path:
    document = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    change(document)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"]["vocab"].update(far=99), "no piece has the id"),
        (lambda d: d["model"]["vocab"].update(twin=5), "share an id"),
        (lambda d: d["model"]["vocab"].update(half=1.5), "ids are integers"),
        (lambda d: d["model"]["vocab"].update(minus=-1), "no piece has the id"),
        (lambda d: d["model"].update(vocab=7), "malformed"),
        (lambda d: d["model"].update(type="Magic"), "model.type"),
        (lambda d: d.update(model=[]), "model.type"),
        (lambda d: d.update(added_tokens=[{"id": 3}]), "malformed"),
        (lambda d: d["added_tokens"][0].update(id=5), "added_tokens: id 5"),
        (lambda d: d.update(normalizer={"type": "Magic"}), "not a tokenizer.json"),
        (lambda d: d["model"].update(unk_token="nothing"), "no piece"),
    ],
)
def test_a_broken_tokenizer_json_is_refused(change, message, saved, tmp_path):
    with pytest.raises(UserError, match=message):
        load_tokenizer(broken(saved, tmp_path, change))


def test_truncation_and_padding_in_the_file_do_not_count(saved, tmp_path):
    rule = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path = broken(saved, tmp_path, lambda document: document.update(truncation=rule))
    assert len(load_tokenizer(path).encode_batch(["s s s s s s"])[0]) == 6


def test_special_pieces_outside_the_model_keep_their_ids(saved, tmp_path):
    def move(document: dict) -> None:
        vocab, last = document["model"]["vocab"], len(document["model"]["vocab"])
        del vocab["[MASK]"]
        vocab["new"] = 4
        token = next(x for x in document["added_tokens"] if x["content"] == "[MASK]")
        token["id"] = last
        document["added_tokens"].append(
            {**token, "id": last + 1, "content": "zz", "special": False}
        )

    tokenizer = load_tokenizer(broken(saved, tmp_path, move))
    assert tokenizer.pieces[tokenizer.mask_id] == "[MASK]"
    assert tokenizer.mask_id == tokenizer.vocab_size - 2
    ids = tokenizer.encode_batch(["new zz [MASK]"])[0].tolist()
    assert ids[:2] == [4, tokenizer.vocab_size - 1]
    assert tokenizer.mask_id not in ids


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"a": 1, "a": 2}', "[" * 100_000, "\ufeff{}", "NaN"]
)
def test_what_is_not_json_is_refused(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(path)


@given(data=st.binary(max_size=60))
def test_what_is_not_a_sentencepiece_model_is_refused(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "x.model"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x\.model"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"]["vocab"].update({"a" * 300: 31}), "short strings"),
        (lambda d: d["model"].update(unk_token="[PAD]"), r"unknown text is to become '\[PAD\]'"),
        (lambda d: d.update(normalizer=replacing("a", "a" * 200)), "very long texts"),
        (lambda d: d.update(normalizer=replacing(" ", "a" * 20, times=2)), "very long texts"),
    ],
)
def test_a_tokenizer_json_that_would_do_harm_is_refused(change, message, saved, tmp_path):
    with pytest.raises(UserError, match=message):
        load_tokenizer(broken(saved, tmp_path, change))


def replacing(old: str, new: str, times: int = 1) -> dict:
    rule = {"type": "Replace", "pattern": {"String": old}, "content": new}
    return {"type": "Sequence", "normalizers": [rule] * times}


def test_a_rule_that_fails_on_a_text_is_told(saved, tmp_path):
    def endless(document: dict) -> None:
        document["normalizer"] = replacing("", "")
        document["normalizer"]["normalizers"][0]["pattern"] = {"Regex": "(a+)+b"}

    tokenizer = load_tokenizer(broken(saved, tmp_path, endless))
    with pytest.raises(UserError, match="own rules fail on a text"):
        tokenizer.encode_batch(["a" * 40])


def test_a_number_of_thousands_of_digits_is_told(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": ' + "9" * 5000 + "}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not JSON"):
        load_tokenizer(tmp_path)


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="not a regular file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("value", [0, 1.0, None])
def test_settings_of_a_bare_vocab_are_true_or_false(value, tmp_path):
    (tmp_path / "vocab.txt").write_text(GOOD)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": value}))
    with pytest.raises(UserError, match="do_lower_case"):
        load_tokenizer(tmp_path)


def test_a_piece_longer_than_any_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text(GOOD + "a" * 300)
    with pytest.raises(UserError, match=r"vocab.txt:8: 300 characters"):
        load_tokenizer(tmp_path)
