"""Subword vocabularies behind one small interface: trained, loaded, saved, run.

WordPiece is trained by Hugging Face `tokenizers`, SentencePiece (unigram, BPE) by `sentencepiece`.
All of them run on `tokenizers`, from what a tokenizer.json says, so that the ids of a saved
directory are those that `transformers` gives. The cutting rules of WordPiece are the original's
(github.com/google-research/bert, tokenization.py), with Hugging Face's limit of 100 characters a
word, beyond which a word is [UNK].
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Set
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.data.offsets import joined_offsets
from bert_jax.data.pair_template import pair_template, shown_pair
from bert_jax.data.tokenizer_config import (
    check_sentencepiece_config,
    follow_config,
    rules_by_pieces,
    special_markers,
    wordpiece_rules,
)
from bert_jax.data.tokenizer_json import (
    beside_vocabulary,
    has_berts_rules,
    starts_word,
    unknown_piece,
    without_specials,
)
from bert_jax.data.vocabulary_files import (
    library_errors,
    of_sentencepiece,
    read_added_tokens,
    read_json,
    read_sentencepiece,
    read_tokenizer_json,
    read_vocab,
    sentencepiece_backend,
    single_spaces,
    vocabulary_file,
)
from bert_jax.data.vocabulary_training import (
    cut_text,
    sample_text,
    train_sentencepiece,
    train_wordpiece,
)
from bert_jax.errors import UserError

# The names that each special piece goes by, ours first: BERT's and ALBERT's, then SentencePiece's.
SPECIAL_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),
    "sep_token": ("[SEP]", "<sep>", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
_OUR_NAMES = {role: names[0] for role, names in SPECIAL_NAMES.items()}
SPECIAL_PIECES = [*_OUR_NAMES.values()]  # in the order of their ids
# Characters encoded at once: time and memory of `tokenizers` grow with the length of one text.
MAX_TEXT = 8192
MIN_VOCAB_SIZE = 32  # special pieces and a handful of letters


class Tokenizer:
    """A vocabulary and the rules that cut text into its pieces. Picklable.

    Special pieces come only from `pad_id`, `cls_id` and so on: where the text itself says
    "[MASK]", that is cut as any other text. Only [UNK] stands for text that no piece covers, and
    additional ones, which a tokenizer_config.json lists, for what they say.

    Attributes:
      vocab_size: number of pieces, special ones included; ids are 0 .. vocab_size - 1.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special pieces.
      special_ids: those five and whatever else the vocabulary declares special.
      pieces: id -> piece.
      starts_word: bool [vocab_size]; False for pieces that continue a word, True for the others,
        special ones included.
      other_pair: the special pieces around a pair of texts, where the file that it was read from
        says others than ours, each with its token type; else "".
      digest: hex hash of pieces and settings; equal digests give equal ids.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, names: dict[str, str], listed: Set[str] = frozenset()
    ):
        """Wrap `backend`; `names` gives the piece of each key of SPECIAL_NAMES, all present.

        `listed` are additional special pieces, which text may say.
        """
        present = backend.get_vocab(with_added_tokens=True).keys()
        self._markers = (listed & present) - set(names.values())
        backend.add_special_tokens([*names.values(), *sorted(self._markers)])
        told = shown_pair(backend) if backend.post_processor else ""
        backend.post_processor = pair_template(backend, names)  # how its models are trained here
        self.other_pair = told if told != shown_pair(backend) else ""
        document = json.loads(backend.to_str())
        if document["model"]["type"] == "Unigram":  # the scores' last bits change when read again
            vocab = document["model"]["vocab"]
            document["model"]["vocab"] = [[piece, round(score, 6)] for piece, score in vocab]
        ids = backend.get_vocab(with_added_tokens=True)
        added = document["added_tokens"]
        self._document = document
        self._names = names
        self.pieces = sorted(ids, key=ids.__getitem__)
        self.vocab_size = len(self.pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            ids[names[role]] for role in SPECIAL_NAMES
        )
        self.special_ids = frozenset(token["id"] for token in added if token["special"])
        self.starts_word = starts_word(self.pieces, document)
        self.starts_word[list(self.special_ids)] = True
        encoder = without_specials(document, self._markers)
        self._encoder = tokenizers.Tokenizer.from_str(json.dumps(encoder))
        settings = [document[key] for key in ("model", "normalizer", "pre_tokenizer")]
        content = json.dumps([settings, added, names, *sorted(self._markers)], sort_keys=True)
        self.digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def lowercases(self) -> bool:
        """Whether text is put in lower case before it is cut."""
        normalizer = self._encoder.normalizer
        return normalizer is not None and "a" in normalizer.normalize_str("A")

    @property
    def strips_accents(self) -> bool:
        """Whether text loses its accents, and with them the vowel signs of Hindi or Thai."""
        normalizer = self._encoder.normalizer
        return normalizer is not None and normalizer.normalize_str("\u0915\u0941") == "\u0915"

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """The ids of each text, int32 [its pieces], without [CLS] and [SEP].

        A text beyond MAX_TEXT characters is encoded in parts, cut before a space or a line
        break (the ids are then those of the whole), or anywhere if MAX_TEXT characters have none.

        Raises:
          UserError: the vocabulary's own rules of normalisation fail on a text.
        """
        parts = [list(cut_text(text, MAX_TEXT)) for text in texts]
        encodings = self._encode(parts, self._encoder.encode_batch_fast)
        return [_ids(of_text) for of_text in encodings]

    def encode_with_offsets(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ids of each text, as from `encode_batch`, and where in the text their pieces stand.

        Returns:
          For each text ids, int32 [n], and offsets, int64 [n, 2]: the characters of the text as
          it was given that each piece stands for, end exclusive, without the white space before
          it. Pieces that one character came apart into (Hangul) all have that character.

        Raises:
          UserError: as `encode_batch`.
        """
        parts = [list(cut_text(text, MAX_TEXT)) for text in texts]
        encodings = self._encode(parts, self._encoder.encode_batch)
        return [
            (_ids(of_text), joined_offsets(text_parts, [e.offsets for e in of_text]))
            for text_parts, of_text in zip(parts, encodings, strict=True)
        ]

    def _encode(
        self, parts: list[list[str]], encode: Callable[..., list[tokenizers.Encoding]]
    ) -> list[list[tokenizers.Encoding]]:
        flat = [part for text_parts in parts for part in text_parts]
        with library_errors("the tokenizer's own rules fail on a text"):
            try:
                encodings = iter(encode(flat, add_special_tokens=False))
            except TypeError:  # a lone surrogate, which JSON can carry and UTF-8 cannot
                flat = [part.encode(errors="ignore").decode() for part in flat]
                encodings = iter(encode(flat, add_special_tokens=False))
        return [[next(encodings) for _ in text_parts] for text_parts in parts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special pieces left out and words put together."""
        kept = [int(index) for index in ids if int(index) not in self.special_ids]
        return self._encoder.decode(kept)

    def extended(self, pieces: list[str]) -> "Tokenizer":
        """This vocabulary with `pieces` after its own, as any others: words, or `##` and an ending.

        Raises:
          UserError: it is not WordPiece, has the piece already, or text never becomes that piece.
        """
        document = json.loads(json.dumps(self._document))
        if document["model"]["type"] != "WordPiece":
            raise UserError("new tokens: only a WordPiece vocabulary takes them")
        prefix = document["model"]["continuing_subword_prefix"]
        for piece in pieces:
            if piece in self.pieces:
                raise UserError(f"new token {piece!r}: the vocabulary has it already")
            if _words(self._encoder, piece.removeprefix(prefix)) != [piece.removeprefix(prefix)]:
                raise UserError(
                    f"new token {piece!r}: no text becomes it: this vocabulary cuts or changes the "
                    "word (by lower case, accents, punctuation, spaces)"
                )
        # What stands beside the vocabulary keeps its ids only within it.
        beside = {token["content"]: token["id"] for token in document["added_tokens"]}
        new = {piece: self.vocab_size + number for number, piece in enumerate(pieces)}
        document["model"]["vocab"] |= beside | new
        return Tokenizer(
            tokenizers.Tokenizer.from_str(json.dumps(document)), self._names, self._markers
        )

    def save(self, directory: str | Path, max_length: int | None = None) -> None:
        """Write what `transformers.AutoTokenizer.from_pretrained(directory)` reads.

        That is tokenizer.json and tokenizer_config.json, and vocab.txt for WordPiece.

        Args:
          directory: made where it is missing.
          max_length: pieces that the model takes, to which transformers then cuts.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **self._names,
        }
        if self._markers:
            config["additional_special_tokens"] = [p for p in self.pieces if p in self._markers]
        if max_length is not None:
            config["model_max_length"] = max_length
        if self._document["model"]["type"] == "WordPiece":
            # At its end, tokens beside the vocabulary stand in tokenizer.json alone; elsewhere they
            # hold the ids of those after them.
            beside = {token["id"] for token in beside_vocabulary(self._document)}
            end = next(i for i in range(self.vocab_size, 0, -1) if i - 1 not in beside)
            vocab = "".join(piece + "\n" for piece in self.pieces[:end])
            (directory / "vocab.txt").write_text(vocab, encoding="utf-8", newline="\n")
        if has_berts_rules(self._document):
            normalizer = self._document["normalizer"]
            config["tokenizer_class"] = "BertTokenizer"
            config["do_lower_case"] = normalizer["lowercase"]
            config["strip_accents"] = normalizer["strip_accents"]
            config["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
        for name, content in [
            ("tokenizer.json", self._document),
            ("tokenizer_config.json", config),
        ]:
            text = json.dumps(content, ensure_ascii=False, indent=2)
            (directory / name).write_text(text + "\n", encoding="utf-8")


def load_tokenizer(path: str | Path, lowercase: bool | None = None) -> Tokenizer:
    """Read a directory, a vocab.txt, a tokenizer.json or a SentencePiece .model.

    In a directory, `vocabulary_file` says which file counts. The special pieces are those that a
    tokenizer_config.json beside it names, else those known (SPECIAL_NAMES). What that file says of
    case and accents goes before a tokenizer.json of BERT's class.

    Args:
      path: file or directory; a file that is not .json or .model is taken for a vocab.txt.
      lowercase: for a vocab.txt only, whether text is put in lower case. A tokenizer_config.json
        beside it goes before; None means that a vocabulary with an upper-case letter is cased. One
        without, but with accents or Hangul syllables, has both kept in the text.

    Raises:
      UserError: there is no such file, it is malformed, or it lacks a special piece.
    """
    path = Path(path)
    if path.is_dir():
        path = vocabulary_file(path)
    config_path = path.with_name("tokenizer_config.json")
    config = read_json(config_path) if config_path.exists() else {}
    if path.suffix == ".json":
        backend = read_tokenizer_json(path)
        follow_config(backend, config, config_path)
    elif path.suffix == ".model":
        check_sentencepiece_config(config, config_path)
        backend = read_sentencepiece(path)
    else:
        pieces = read_vocab(path)
        if of_sentencepiece(pieces):
            raise UserError(f"{path}: lists pieces of SentencePiece; give the .model they are of")
        names = special_names(pieces, path, config)
        rules = wordpiece_rules(config, config_path, rules_by_pieces(pieces, lowercase))
        backend = _wordpiece_backend(pieces, names["unk_token"], *rules.values())
        backend.add_tokens(read_added_tokens(path.with_name("added_tokens.json"), pieces))
    names = special_names(backend.get_vocab(), path, config)
    with library_errors(f"{path}: not a vocabulary"):
        tokenizer = Tokenizer(backend, names, special_markers(config, path, backend))
    unknown = unknown_piece(tokenizer._document["model"])
    if unknown not in (None, names["unk_token"]):
        raise UserError(
            f"{path}: unknown text is to become {unknown!r}, and not {names['unk_token']!r}"
        )
    return tokenizer


def untrained_wordpiece(lowercase: bool) -> Tokenizer:
    """The special pieces alone: it cuts text into words, and takes new pieces, as a trained one."""
    return Tokenizer(
        _wordpiece_backend(SPECIAL_PIECES, _OUR_NAMES["unk_token"], lowercase), _OUR_NAMES
    )


def train_tokenizer(
    kind: str, sentences: Iterable[str], vocab_size: int, lowercase: bool
) -> Tokenizer:
    """Train a vocabulary on an even sample of `sentences`, consumed once.

    The same sentences in the same order give the same vocabulary. The special pieces get the ids
    0 to 4: [PAD] [UNK] [CLS] [SEP] [MASK]. Memory is bounded by the sample (SAMPLE_SIZE parts of
    at most SAMPLE_CHARS characters), not by the text.

    Args:
      kind: "wordpiece", "unigram" or "bpe".
      vocab_size: the most pieces, special ones included; a small text gives fewer.
      lowercase: put text in lower case and strip its accents.

    Raises:
      UserError: there is no text, or `vocab_size` is too small to cover its characters.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise UserError(f"vocab_size={vocab_size}: must be at least {MIN_VOCAB_SIZE}")
    text = [part for part in sample_text(sentences) if part.strip()]
    if not text:
        raise UserError("there is no text to train a vocabulary on: the corpus is empty")
    if kind == "wordpiece":
        untrained = _wordpiece_backend(SPECIAL_PIECES, _OUR_NAMES["unk_token"], lowercase)
        pieces = train_wordpiece(untrained, text, vocab_size, SPECIAL_PIECES)
        return Tokenizer(_wordpiece_backend(pieces, _OUR_NAMES["unk_token"], lowercase), _OUR_NAMES)
    normalizer = _sentencepiece_normalizer(lowercase)
    text = [normalizer.normalize_str(part) for part in text]
    model = train_sentencepiece(kind, text, vocab_size, SPECIAL_PIECES)
    backend = sentencepiece_backend(model, "the trained model")
    backend.normalizer = normalizer
    return Tokenizer(backend, _OUR_NAMES)


def _ids(encodings: list[tokenizers.Encoding]) -> np.ndarray:
    return np.concatenate([np.array(encoding.ids, np.int32) for encoding in encodings])


def _wordpiece_backend(
    pieces: list[str],
    unknown: str,
    lowercase: bool,
    isolate_chinese: bool = True,
    strip_accents: bool | None = None,
) -> tokenizers.Tokenizer:
    """BERT's tokenizer over `pieces`; accents are stripped (None) where text is put in lower case.

    As in the original, stripping accents takes Hangul syllables apart into letters, too.
    """
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, handle_chinese_chars=isolate_chinese, strip_accents=strip_accents
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _sentencepiece_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """NFKC, BERT's cleaning and lower case, and single spaces; Hangul stays in syllables.

    Done here and not by rules inside the SentencePiece model, which `tokenizers` applies
    differently from `sentencepiece` where combining characters are involved.
    """
    bert = normalizers.BertNormalizer(handle_chinese_chars=False, lowercase=lowercase)
    return normalizers.Sequence([normalizers.NFKC(), bert, normalizers.NFC(), *single_spaces()])


def special_names(pieces: Iterable[str], where: str | Path, given: dict | None = None) -> dict:
    """Which piece plays each role of SPECIAL_NAMES, from `given` settings or by known names.

    Raises:
      UserError: `where` has no piece for a role.
    """
    present, names = set(pieces), {}
    for role, known in SPECIAL_NAMES.items():
        choice = (given or {}).get(role)
        choice = choice.get("content") if isinstance(choice, dict) else choice
        candidates = (choice,) if isinstance(choice, str) else known
        found = [name for name in candidates if name in present]
        if not found:
            raise UserError(
                f"{where}: the vocabulary has no {candidates[0]}: add it, or use a vocabulary "
                f"with {' '.join(SPECIAL_PIECES)}"
            )
        names[role] = found[0]
    return names


def _words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """What is cut into pieces one by one."""
    if backend.normalizer:
        text = backend.normalizer.normalize_str(text)
    if not backend.pre_tokenizer:
        return [text]
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
