"""Vocabularies as others have written them, checked: vocab.txt, tokenizer.json, .model.

A vocabulary with a doubled, blank or misread line loads without complaint elsewhere and gives
every later piece a wrong id; here each is an error that names file and line.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError

MAX_FILE_BYTES = 64 * 2**20  # the largest published tokenizer.json files have about 35 MB
# The longest pieces published, runs of spaces or dashes, have 128 characters. The time to find a
# SentencePiece model's merges grows with the square of it.
MAX_PIECE = 256
# Rules of normalisation may replace a character by several; more than this fills the memory.
MAX_GROWTH = 100
WORD_MARK = "▁"  # SentencePiece's mark of a space


def vocabulary_file(directory: Path) -> Path:
    """The first of tokenizer.json, vocab.txt, spiece.model and *.model that a directory has.

    A vocab.txt that lists the pieces of a SentencePiece model counts after that model.

    Raises:
      UserError: it has none.
    """
    known = [directory / name for name in ("tokenizer.json", "vocab.txt", "spiece.model")]
    found = [path for path in [*known, *sorted(directory.glob("*.model"))] if path.exists()]
    if not found:
        raise UserError(f"{directory}: has no tokenizer.json, vocab.txt or .model")
    first, *models = found
    if models and first.name == "vocab.txt" and of_sentencepiece(read_vocab(first)):
        return models[0]
    return first


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Say in a line what `tokenizers` raises: bare exceptions, and panics, which are none."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {error}") from error


def read_vocab(path: Path) -> list[str]:
    """The pieces of a vocab.txt, one a line.

    Raises:
      UserError: the file is not UTF-8, has a byte order mark, carriage returns, a blank line, an
        endless one or a piece twice.
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
        if len(piece) > MAX_PIECE:
            raise UserError(f"{path}:{number}: {len(piece)} characters, which no piece has")
        if piece in seen:
            raise UserError(f"{path}:{number}: {piece!r} stands on line {seen[piece]} already")
        seen[piece] = number
    return lines


def of_sentencepiece(pieces: list[str]) -> bool:
    """Whether a vocab.txt lists the pieces of a SentencePiece model, as those of KoBERT do."""
    marked = any(len(piece) > 1 and piece.startswith(WORD_MARK) for piece in pieces)
    return marked and not any(piece.startswith("##") for piece in pieces)


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
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}: not JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply to be a tokenizer's") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: a JSON object is expected")
    return content


def read_added_tokens(path: Path, pieces: list[str]) -> list[str]:
    """What an added_tokens.json, where there is one, puts after the pieces of a vocab.txt.

    Older versions of transformers keep there what a user has added; in the order of the ids.

    Raises:
      UserError: the ids are not those that follow, or a piece has another id in the vocabulary.
    """
    if not path.exists():
        return []
    ids = read_json(path)
    added = sorted(ids.keys() - set(pieces), key=lambda piece: str(ids[piece]).zfill(20))
    places = {piece: index for index, piece in enumerate(pieces + added)}
    wrong = [piece for piece in ids if type(ids[piece]) is not int or ids[piece] != places[piece]]
    if wrong:
        raise UserError(
            f"{path}: {wrong[0]!r} has the id {ids[wrong[0]]!r}: {places[wrong[0]]} is expected, "
            f"after the {len(pieces)} pieces of the vocabulary"
        )
    return added


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
    if _growth(document.get("normalizer")) > MAX_GROWTH:
        raise UserError(f"{path}: field normalizer: replaces characters by very long texts")
    document |= {"truncation": None, "padding": None}
    unigram = model["type"] == "Unigram"
    unknown = model.get("unk_id" if unigram else "unk_token")
    if unknown not in (range(len(model["vocab"])) if unigram else (None, *model["vocab"])):
        raise UserError(f"{path}: field model: unknown text is to become {unknown!r}, no piece")
    if model["type"] == "BPE":
        model["dropout"] = None  # it would cut the same text differently each time
    with library_errors(f"{path}: not a tokenizer.json"):
        return tokenizers.Tokenizer.from_str(json.dumps(document))


def read_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a SentencePiece .model, unigram or BPE, with its own normalisation.

    Raises:
      UserError: it is no such file, or a vocab.txt beside it lists its pieces by other ids.
    """
    with library_errors(f"{path}: not a SentencePiece model"):
        backend = sentencepiece_backend(_read_bytes(path), path)
    listing = path.with_name("vocab.txt")
    listed = read_vocab(listing) if listing.exists() else []
    if of_sentencepiece(listed) and backend.get_vocab() != {p: i for i, p in enumerate(listed)}:
        raise UserError(f"{listing}: not the pieces of {path.name} beside it, in their order")
    return backend


def sentencepiece_backend(data: bytes, where: str | Path) -> tokenizers.Tokenizer:
    """A SentencePiece model as a tokenizer of `tokenizers`.

    Pieces that text must not reach (control, unknown, unused) are declared special. Field names
    and piece types are those of sentencepiece_model.proto. The ids are those of `sentencepiece`
    but for these, all as in transformers: of two cuts with equal scores unigram may take the
    other, normalisation rules inside the model do not compose separate Hangul letters, and spaces
    beside user-defined pieces of several letters in BPE, or that these rules change, are lost.
    """
    # protobuf makes the class at import, out of the type checker's sight
    proto = vars(sentencepiece_model_pb2)["ModelProto"]()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise UserError(f"{where}: not a SentencePiece model") from error
    _check_model(proto, where)
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    pieces = [item.piece for item in proto.pieces]
    unknown = [index for index, item in enumerate(proto.pieces) if item.type == item.UNKNOWN]
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
            # The model finds it in its place, where it can; an added token takes text apart, so
            # that spaces before it are lost and what follows it is marked as a word.
            one = trainer.model_type == trainer.UNIGRAM or len(item.piece) == 1
            if not (one and backend.normalizer.normalize_str(item.piece) == item.piece):
                backend.add_tokens([tokenizers.AddedToken(item.piece, normalized=False)])
        elif item.type not in (item.NORMAL, item.BYTE):
            backend.add_special_tokens([item.piece])
    return backend


def single_spaces() -> list[normalizers.Normalizer]:
    """No spaces at either end and none doubled; other white space stays, as in SentencePiece."""
    rules = ((r"\A +| +\z", ""), (" {2,}", " "))
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


def _check_model(proto: Any, where: str | Path) -> None:
    """Refuse a kind that `tokenizers` does not run, and pieces or scores that are none."""
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    pieces = [item.piece for item in proto.pieces]
    if (
        trainer.model_type not in (trainer.UNIGRAM, trainer.BPE)
        or sum(item.type == item.UNKNOWN for item in proto.pieces) != 1
    ):
        raise UserError(f"{where}: a SentencePiece model of kind unigram or bpe is expected")
    if trainer.treat_whitespace_as_suffix:
        raise UserError(f"{where}: a model that marks the ends of words is not supported")
    if not all(isinstance(piece, str) and len(piece) <= MAX_PIECE for piece in pieces):
        raise UserError(f"{where}: a piece that is not UTF-8, or longer than any piece is")
    if not all(math.isfinite(item.score) for item in proto.pieces):
        raise UserError(f"{where}: a piece whose score is no number")
    charsmap = rules.precompiled_charsmap  # the size of a trie, the trie, texts that end in NUL
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")
    if max(map(len, texts)) > MAX_GROWTH:
        raise UserError(f"{where}: its rules replace characters by very long texts")
    if len(set(pieces)) < len(pieces):
        raise UserError(f"{where}: a piece stands twice")


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
        isinstance(piece, str) and len(piece) <= MAX_PIECE for piece in [*owners.values(), *tokens]
    ):
        raise UserError(f"{path}: field model.vocab: ids are integers and pieces short strings")
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


def _growth(rules: Any) -> int:
    """The most characters that a tokenizer.json's normalizer makes of one."""
    if not isinstance(rules, dict):
        return 1
    inner = rules.get("normalizers")
    content = rules.get("content")
    most = max(1, len(content)) if isinstance(content, str) else 1
    for rule in inner if isinstance(inner, list) else ():
        most *= _growth(rule)
    return most


def _read_bytes(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # to open a named pipe is to wait for its writer
        raise UserError(f"{path}: not a regular file")
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
