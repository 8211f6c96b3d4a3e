"""What a tokenizer.json says of its pieces, as pure functions of its content."""

import json
from collections.abc import Set

import numpy as np

from bert_jax.data.vocabulary_files import WORD_MARK


def starts_word(pieces: list[str], document: dict) -> np.ndarray:
    """bool [len(pieces)]: False for pieces that continue a word, True for all others."""
    model = document["model"]
    if model["type"] == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        return np.array([not piece.startswith(prefix) for piece in pieces])
    byte_level = '"ByteLevel"' in json.dumps(document["pre_tokenizer"])
    mark = "Ġ" if byte_level else WORD_MARK  # how a byte-level BPE writes a space
    return np.array([piece.startswith(mark) for piece in pieces])


def unknown_piece(model: dict) -> str | None:
    """What a model makes of text that no piece covers; None where it leaves that out."""
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]
    return model["unk_token"]


def has_berts_rules(document: dict) -> bool:
    """Whether it cuts text as transformers' BertTokenizer does.

    That class takes the pieces alone from a tokenizer.json, and its own rules for the rest.
    """
    model, normalizer = document["model"], document["normalizer"] or {}
    return (
        model["type"] == "WordPiece"
        and model["continuing_subword_prefix"] == "##"
        and model["max_input_chars_per_word"] == 100
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"]
        and document["pre_tokenizer"] == {"type": "BertPreTokenizer"}
    )


def beside_vocabulary(document: dict) -> list[dict]:
    """The added tokens that text is searched for before it is cut into words.

    They come after all special pieces and keep their ids without a place in the model, which would
    find them as whole words only.
    """
    added = document["added_tokens"]
    last = max((token["id"] for token in added if token["special"]), default=-1)
    vocab = document["model"]["vocab"]
    known = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    return [t for t in added if t["id"] > last and t["content"] not in known]


def without_specials(document: dict, markers: Set[str]) -> dict:
    """`document` such that no text reaches a special piece but `markers`, ids unchanged.

    `tokenizers` looks for special pieces in the text before it cuts words, and a SentencePiece
    model finds them among its pieces afterwards. So they are no longer declared, and are renamed
    to hold a NUL and a space, which no cleaned text and no word does.
    """
    added, model = document["added_tokens"], dict(document["model"])
    special = {token["content"] for token in added if token["special"]} - markers
    # Pieces that stand outside the model get their ids by position: give them their place in it.
    beside = beside_vocabulary(document)
    extra = sorted((t for t in added if t not in beside), key=lambda token: token["id"])

    def rename(piece: str) -> str:
        return f"\0 {piece}" if piece in special else piece

    if isinstance(model["vocab"], dict):
        vocab = model["vocab"] | {token["content"]: token["id"] for token in extra}
        model["vocab"] = {rename(piece): index for piece, index in vocab.items()}
    else:
        outside = [token for token in extra if token["id"] >= len(model["vocab"])]
        vocab = model["vocab"] + [[token["content"], 0.0] for token in outside]
        model["vocab"] = [[rename(piece), score] for piece, score in vocab]
    if model.get("unk_token"):
        model["unk_token"] = rename(model["unk_token"])
    kept = [token for token in added if token["content"] not in special]
    return document | {"model": model, "added_tokens": kept, "post_processor": None}
