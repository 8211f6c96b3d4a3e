"""What a tokenizer_config.json asks of the vocabulary beside it."""

import unicodedata
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from bert_jax.data.vocabulary_files import read_json
from bert_jax.errors import UserError

_BERTS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
# Classes of transformers that do more with a SentencePiece .model than run it: ids of fairseq's in
# the first two, other quotation marks and lower case in the last.
_OF_OTHER_RULES = ("XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer")


def special_markers(config: dict, path: Path, backend: tokenizers.Tokenizer) -> frozenset[str]:
    """The special pieces that a user has added for texts to say, such as those around an entity.

    Older versions of transformers listed them in special_tokens_map.json. Those that are special
    and beside the vocabulary need no list.

    Args:
      config: of tokenizer_config.json.
      path: of the vocabulary, in the same folder.
      backend: what was read of it.

    Raises:
      UserError: special_tokens_map.json is no JSON object.
    """
    listed = _listed(config)
    special_tokens_map = path.with_name("special_tokens_map.json")
    if special_tokens_map.exists():
        listed |= _listed(read_json(special_tokens_map))
    vocabulary = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    return listed | (special - vocabulary.keys())


def _listed(config: dict) -> frozenset[str]:
    """The additional special pieces of a file of transformers."""
    listed: list[Any] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key)
        tokens = [*tokens.values()] if isinstance(tokens, dict) else tokens
        listed += tokens if isinstance(tokens, list) else []
    pieces = [token.get("content") if isinstance(token, dict) else token for token in listed]
    return frozenset(piece for piece in pieces if isinstance(piece, str))


def rules_by_pieces(pieces: list[str], lowercase: bool | None) -> dict[str, Any]:
    """The rules of a bare vocab.txt; it is of lower case by `lowercase`, or without capitals."""
    # Google's Chinese vocabulary, which is of lower case, has <S> and <T> beside [CLS].
    plain = [piece for piece in pieces if piece[:1] not in ("[", "<")]
    cased = any(piece != piece.lower() for piece in plain)
    lowercase = not cased if lowercase is None else lowercase
    accented = any(piece != _without_accents(piece) for piece in pieces)
    return {
        "do_lower_case": lowercase,
        "tokenize_chinese_chars": True,
        "strip_accents": False if accented and lowercase else None,
    }


def wordpiece_rules(config: dict, path: Path, defaults: dict[str, Any]) -> dict[str, Any]:
    """What a tokenizer_config.json says of the rules in `defaults`.

    Raises:
      UserError: it says something else than true or false, or that another program than BERT's
        cuts text into words or words into pieces (as for many a Japanese model).
    """
    for key, known in (("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")):
        if config.get(key, known) != known:
            raise UserError(f"{path}: {key} is {config[key]!r}; known is {known!r} alone")
    rules = {key: config.get(key, default) for key, default in defaults.items()}
    if not all(
        isinstance(value, bool) or (value is None and key == "strip_accents")
        for key, value in rules.items()
    ):
        raise UserError(f"{path}: {', '.join(rules)} must be true or false")
    return rules


def follow_config(backend: tokenizers.Tokenizer, config: dict, path: Path) -> None:
    """Give a tokenizer.json the rules of the tokenizer_config.json beside it, at `path`.

    BertTokenizer, which a model of BERT has where no class is named, goes by them, and so do those
    that are the same; other classes go by the tokenizer.json alone.

    Raises:
      UserError: as `wordpiece_rules`.
    """
    rules = backend.normalizer
    if str(config.get("tokenizer_class", "BertTokenizer")).removesuffix("Fast") not in _BERTS:
        return
    if not isinstance(rules, normalizers.BertNormalizer):
        return
    said = {
        "do_lower_case": rules.lowercase,
        "tokenize_chinese_chars": rules.handle_chinese_chars,
        "strip_accents": rules.strip_accents,
    }
    lowercase, isolate_chinese, strip_accents = wordpiece_rules(config, path, said).values()
    backend.normalizer = normalizers.BertNormalizer(
        rules.clean_text, isolate_chinese, strip_accents, lowercase
    )


def check_sentencepiece_config(config: dict, path: Path) -> None:
    """Check that a .model beside the file at `path` is all that there is to its tokenizer.

    Raises:
      UserError: the file asks for text in lower case, or for a class with ids or rules of its own.
    """
    name = str(config.get("tokenizer_class"))
    asked = f"tokenizer_class is {name}" if name.removesuffix("Fast") in _OF_OTHER_RULES else ""
    if config.get("do_lower_case"):
        asked = "do_lower_case is true"
    if asked:
        raise UserError(
            f"{path}: {asked}, which the .model beside it does not say; make a tokenizer.json of "
            "both with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )


def _without_accents(piece: str) -> str:
    """As `strip_accents` leaves it: Hangul syllables are taken apart too."""
    letters = unicodedata.normalize("NFD", piece)
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")
