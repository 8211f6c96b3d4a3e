"""Vocabularies as others have written them, checked: vocab.txt, tokenizer.json, .model.

A vocabulary with a doubled, blank or misread line loads without complaint elsewhere and gives
every later piece a wrong id; here each is an error that names file and line.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError

MAX_FILE_BYTES = 64 * 2**20  # the largest published tokenizer.json files have about 35 MB
WORD_MARK = "▁"  # SentencePiece's mark of a space


def read_vocab(path: Path) -> list[str]:
    """The pieces of a vocab.txt, one a line.

    Raises:
      UserError: the file is not UTF-8, has a byte order mark, carriage returns, a blank line or
        a piece twice.
    """
    lines = _read_text(path).split("\n")
    if lines[-1] == "":  # the end of the last line
        lines.pop()
    seen: dict[str, int] = {}
    for number, piece in enumerate(lines, 1):
        if "\r" in piece:
            raise UserError(f"{path}:{number}: a carriage return: save it with Unix line ends")
        if not piece.strip(" \t"):
            raise UserError(f"{path}:{number}: a blank line: a vocabulary has a piece on each")
        if piece in seen:
            raise UserError(f"{path}:{number}: {piece!r} stands on line {seen[piece]} already")
        seen[piece] = number
    return lines


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
      UserError: the file is not UTF-8 or not JSON, or has a key twice in one object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            double = next(key for index, key in enumerate(keys) if key in keys[:index])
            raise UserError(f"{path}: {double!r} stands twice in one object")
        return found

    try:
        content = json.loads(_read_text(path), object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply to be a tokenizer's") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a JSON object is expected")
    return content


def read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer that a tokenizer.json describes, without truncation, padding or dropout.

    Raises:
      UserError: it is none, its ids have holes or doubles, or it cuts words in a way in which
        the start of a word cannot be told from its pieces.
    """
    document = read_json(path)
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") not in ("WordPiece", "Unigram", "BPE"):
        raise UserError(f"{path}: field model.type: WordPiece, Unigram or BPE is expected")
    if model.get("end_of_word_suffix"):
        raise UserError(f"{path}: field model.end_of_word_suffix: not supported")
    _check_ids(document, path)
    document |= {"truncation": None, "padding": None}
    unigram = model["type"] == "Unigram"
    unknown = model.get("unk_id" if unigram else "unk_token")
    if unknown not in (range(len(model["vocab"])) if unigram else (None, *model["vocab"])):
        raise UserError(f"{path}: field model: unknown text is to become {unknown!r}, no piece")
    if model["type"] == "BPE":
        model["dropout"] = None  # it would cut the same text differently each time
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: not a tokenizer.json: {error}") from error


def read_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a SentencePiece .model, unigram or BPE, with its own normalisation.

    Raises:
      UserError: it is no such file.
    """
    return sentencepiece_backend(_read_bytes(path), path)


def sentencepiece_backend(data: bytes, where: str | Path) -> tokenizers.Tokenizer:
    """A SentencePiece model as a tokenizer of `tokenizers`.

    Pieces that text must not reach (control, unknown, unused) are declared special. Field names
    and piece types are those of sentencepiece_model.proto. The ids are those of `sentencepiece`
    but for two things, both as in transformers: of two cuts with equal scores unigram may take
    the other, and normalisation rules inside the model do not compose separate Hangul letters.
    """
    # protobuf makes the class at import, out of the type checker's sight
    proto = vars(sentencepiece_model_pb2)["ModelProto"]()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise UserError(f"{where}: not a SentencePiece model") from error
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    pieces = [item.piece for item in proto.pieces]
    unknown = [index for index, item in enumerate(proto.pieces) if item.type == item.UNKNOWN]
    if trainer.model_type not in (trainer.UNIGRAM, trainer.BPE) or len(unknown) != 1:
        raise UserError(f"{where}: a SentencePiece model of kind unigram or bpe is expected")
    if trainer.treat_whitespace_as_suffix:
        raise UserError(f"{where}: a model that marks the ends of words is not supported")
    if len(set(pieces)) < len(pieces):
        raise UserError(f"{where}: a piece stands twice")
    if trainer.model_type == trainer.UNIGRAM:
        vocab = [(item.piece, item.score) for item in proto.pieces]
        model = models.Unigram(vocab, unknown[0], trainer.byte_fallback)
    else:
        model = models.BPE(
            {piece: index for index, piece in enumerate(pieces)},
            _merges({item.piece: item.score for item in proto.pieces if item.type == item.NORMAL}),
            unk_token=pieces[unknown[0]],
            fuse_unk=True,
            byte_fallback=trainer.byte_fallback,
        )
    backend = tokenizers.Tokenizer(model)
    steps: list = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += single_spaces()
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_dummy_prefix else "never"
    # Words are cut one by one (which is faster) unless a piece runs over a space.
    split = not any(WORD_MARK in piece[1:] for piece in pieces)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    metaspace = decoders.Metaspace(prepend_scheme=scheme, split=split)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    for item in proto.pieces:
        if item.type == item.USER_DEFINED:
            backend.add_tokens([tokenizers.AddedToken(item.piece, normalized=False)])
        elif item.type not in (item.NORMAL, item.BYTE):
            backend.add_special_tokens([item.piece])
    return backend


def single_spaces() -> list[normalizers.Normalizer]:
    """No spaces at either end and none doubled; other white space stays, as in SentencePiece."""
    rules = (("^ +| +$", ""), (" {2,}", " "))
    return [normalizers.Replace(tokenizers.Regex(pattern), text) for pattern, text in rules]


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, best score first, as SentencePiece merges them."""
    ranked = sorted(scores, key=lambda piece: -scores[piece])
    return [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]


def _check_ids(document: dict, path: Path) -> None:
    """Every id from 0 up has exactly one piece, in the model or among the added tokens."""
    vocab, added = document["model"].get("vocab"), document.get("added_tokens", [])
    try:
        if isinstance(vocab, dict):
            owners = {number: piece for piece, number in vocab.items()}
        else:
            owners = {number: piece for number, (piece, _) in enumerate(vocab)}
        size = len(vocab)
        tokens = {token["content"]: token["id"] for token in added}
        ids = [*owners, *tokens.values()]
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"{path}: field model.vocab or added_tokens is malformed") from error
    if not all(type(number) is int for number in ids) or not all(
        isinstance(piece, str) for piece in [*owners.values(), *tokens]
    ):
        raise UserError(f"{path}: field model.vocab: ids are integers and pieces are strings")
    if len(owners) < size or len(set(owners.values())) < size:
        raise UserError(f"{path}: field model.vocab: two pieces share an id, or a piece has two")
    for piece, number in tokens.items():
        if owners.setdefault(number, piece) != piece:
            raise UserError(
                f"{path}: field added_tokens: id {number} is {piece!r} and {owners[number]!r}"
            )
    hole = next((number for number in range(len(owners)) if number not in owners), None)
    if hole is not None:
        raise UserError(f"{path}: no piece has the id {hole}: ids must run from 0 without holes")


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no vocabulary is")
    return data


def _read_text(path: Path) -> str:
    data = _read_bytes(path)
    if data.startswith(b"\xef\xbb\xbf"):
        raise UserError(f"{path}:1: a byte order mark: save it as UTF-8 without one")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 (byte {error.start})") from error
