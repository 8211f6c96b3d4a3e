"""Vocabularies damaged by the thousand: refused, or ids that stand in the vocabulary."""

import functools
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from fuzzing import (
    INPUTS,
    damaged,
    damaged_json,
    fuzz,
    hostile_text,
    refused,
)

from bert_jax.data.tokenization import SPECIAL_PIECES, load_tokenizer, train_tokenizer
from bert_jax.errors import UserError

PROSE = ["The quick brown fox jumps over the lazy dog.", "안녕하세요, tokenizers of 1915!"] * 5


@functools.cache
def vocab() -> bytes:
    pieces = [
        *SPECIAL_PIECES,
        *"abcdefghijklmnopqrstuvwxyz",
        "##a",
        "##e",
        "the",
        "qu",
        "안",
        "##녕",
    ]
    return "".join(piece + "\n" for piece in pieces).encode()


@functools.cache
def documents(folder: Path) -> list[dict]:
    """A tokenizer.json of each kind."""
    found = []
    for kind in ("wordpiece", "unigram", "bpe"):
        train_tokenizer(kind, iter(PROSE), 64, lowercase=kind == "bpe").save(folder / kind)
        found.append(json.loads((folder / kind / "tokenizer.json").read_text("utf-8")))
    return found


@functools.cache
def models() -> list[bytes]:
    """A SentencePiece model of each kind, with rules of normalisation inside."""
    return [
        sentencepiece_model(kind, rules)
        for kind in ("unigram", "bpe")
        for rules in ("identity", "nmt_nfkc")
    ]


def sentencepiece_model(kind: str, rules: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE),
        model_writer=model,
        model_type=kind,
        vocab_size=64,
        hard_vocab_limit=False,
        normalization_rule_name=rules,
        pad_id=3,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        byte_fallback=False,
        minloglevel=2,
    )
    return model.getvalue()


def encodes_well(path: Path, draw: random.Random) -> bool:
    """Whether it loads; what it then makes of hostile text must be ids of the vocabulary."""
    texts = [hostile_text(draw), hostile_text(draw), PROSE[1]]
    try:
        tokenizer = load_tokenizer(path)
        arrays = tokenizer.encode_batch(texts)
    except UserError as error:
        return refused(error)
    assert len(tokenizer.pieces) == len(set(tokenizer.pieces)) == tokenizer.vocab_size
    special = tokenizer.special_ids - {tokenizer.unk_id}
    for array in arrays:
        assert array.dtype == np.int32
        assert np.all((array >= 0) & (array < tokenizer.vocab_size))
        assert special.isdisjoint(array.tolist()), "a special id from the text"
    tokenizer.decode(range(tokenizer.vocab_size))
    return True


def vocab_txt(draw: random.Random, folder: Path) -> bool:
    (folder / "vocab.txt").write_bytes(damaged(vocab(), draw))
    return encodes_well(folder / "vocab.txt", draw)


def tokenizer_json(draw: random.Random, folder: Path) -> bool:
    path = folder / "tokenizer.json"
    path.write_bytes(damaged_json(draw.choice(documents(folder)), draw))
    return encodes_well(path, draw)


def tokenizer_config(draw: random.Random, folder: Path) -> bool:
    config = {
        "do_lower_case": draw.choice((True, False)),
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "mask_token": {"content": "[MASK]", "lstrip": False},
        "unk_token": "[UNK]",
        "model_max_length": 512,
    }
    (folder / "vocab.txt").write_bytes(vocab())
    (folder / "tokenizer_config.json").write_bytes(damaged_json(config, draw))
    return encodes_well(folder / "vocab.txt", draw)


def sentencepiece_file(draw: random.Random, folder: Path) -> bool:
    path = folder / "spiece.model"
    path.write_bytes(damaged(draw.choice(models()), draw))
    return encodes_well(path, draw)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", [vocab_txt, tokenizer_json, tokenizer_config, sentencepiece_file])
def test_a_damaged_vocabulary_is_refused_or_right(case, inputs):
    fuzz(case, inputs)
