"""Raw bytes to documents: decoding, cleaning and sentence splitting.

Everything here may run in worker processes: pure functions of their arguments.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sentencex import segment

from bert_jax.config import CorpusConfig
from bert_jax.errors import UserError

Document = list[str]  # cleaned sentences in order, none empty
Counts = Counter[str]  # what was mended or left out: name -> how many

# A "sentence" longer than this many characters is cut at whitespace: it is a table or a list, and
# tokenizers slow down on it. Twenty times a long sentence of prose.
MAX_SENTENCE = 2000

# All but tab, line feed, carriage return and the other separators that str.split() knows.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes of one file or record; no document runs across pieces.

    Attributes:
      name: what to call the file or record in a message.
      data: the bytes.
      offset: where `data` starts in the (decompressed) file, in bytes.
      line: number of the line that `data` starts in, from 1.
      counts: what was counted while reading.
    """

    name: str
    data: bytes
    offset: int = 0
    line: int = 1
    counts: Counts = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one call: some pieces, about 1 MiB together.

    Attributes:
      pieces: the raw text.
      progress: how far this unit takes the progress bar, in bytes of `Source.total_bytes`.
      source: the number of its source, where the corpus has several.
    """

    pieces: tuple[Piece, ...]
    progress: int
    source: int = 0


# A pass over a source: its pieces, and how many of its bytes have been read with each.
Pieces = Callable[[], Iterator[tuple[Piece, int]]]
# What reads the units of a source.
Parser = Callable[[Unit], tuple[list[Document], Counts]]


def text_documents(corpus: CorpusConfig, unit: Unit) -> tuple[list[Document], Counts]:
    """The documents of plain text, laid out as `corpus.sentences` says.

    lines: a sentence a line, a blank line between documents. split: a piece is a document, of
    paragraphs between blank lines; the lines of a paragraph are joined.

    Raises:
      UserError: in strict mode, naming the file and the byte that is not UTF-8.
    """
    documents, counts = [], Counter()
    for piece in unit.pieces:
        counts.update(piece.counts)
        text = _decode(piece, piece.data, piece.offset, corpus.strict, counts)
        blocks = _BLANK_LINES.split(_clean(text, counts))
        if corpus.sentences == "lines":
            documents += [_bounded(block.split("\n"), counts) for block in blocks]
        else:
            documents.append(_split(blocks, corpus.language, counts))
    return _without_empty(documents), +counts


def json_documents(corpus: CorpusConfig, unit: Unit) -> tuple[list[Document], Counts]:
    """The documents of JSON lines: the text of `corpus.text_field` of each object.

    A line break in the text ends a sentence (lines) or a paragraph (split).

    Raises:
      UserError: in strict mode, naming the file and line that is not UTF-8, not an object or
        lacks the text.
    """
    documents, counts = [], Counter()
    for piece in unit.pieces:
        counts.update(piece.counts)
        for text in _json_texts(corpus, piece, counts):
            documents.append(_record(corpus, text, counts))
    kept = _without_empty(documents)
    counts["empty_documents"] += len(documents) - len(kept)
    return kept, +counts


def record_documents(corpus: CorpusConfig, unit: Unit) -> tuple[list[Document], Counts]:
    """The documents of records: a piece is the text of one, laid out as in `json_documents`.

    Raises:
      UserError: in strict mode, naming the record and the byte that is not UTF-8.
    """
    documents, counts = [], Counter()
    for piece in unit.pieces:
        text = _decode(piece, piece.data, 0, corpus.strict, counts)
        documents.append(_record(corpus, text, counts))
    kept = _without_empty(documents)
    counts["empty_documents"] += len(documents) - len(kept)
    return kept, +counts


def source_documents(parsers: Sequence[Parser], unit: Unit) -> tuple[list[Document], Counts]:
    """The documents of a unit, by what reads its source.

    Args:
      parsers: of each source of a corpus.
      unit: of one of them.
    """
    return parsers[unit.source](unit)


def json_objects(data: bytes) -> Iterator[dict[str, object]]:
    """The JSON objects among some lines, whatever else there is."""
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def split_sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of a paragraph that has no line breaks, by the rules of `sentencex`."""
    return [sentence.strip() for sentence in segment(language, paragraph)]


def _json_texts(corpus: CorpusConfig, piece: Piece, counts: Counts) -> Iterator[str]:
    offset = piece.offset
    for number, line in enumerate(piece.data.split(b"\n"), piece.line):
        if line.strip():
            text = _decode(piece, line, offset, corpus.strict, counts)
            try:
                record = _text_of(json.loads(text.removeprefix("\ufeff")), corpus.text_field)
            except (ValueError, RecursionError, LookupError, TypeError) as error:
                if corpus.strict:
                    raise UserError(f"{piece.name}:{number}: {error}") from error
                broken = isinstance(error, ValueError | RecursionError)
                counts["bad_json" if broken else "missing_text"] += 1
            else:
                yield _mend_surrogates(record, counts)
        offset += len(line) + 1


def _text_of(record: object, text_field: str) -> str:
    if not isinstance(record, dict):
        raise TypeError(f"a JSON object is wanted, not {type(record).__name__}")
    if text_field not in record:
        raise LookupError(f"no field {text_field!r}; there are {', '.join(map(repr, record))}")
    text = record[text_field]
    if not isinstance(text, str):
        raise TypeError(f"field {text_field!r} is not text but {type(text).__name__}")
    return text


def _record(corpus: CorpusConfig, text: str, counts: Counts) -> Document:
    lines = _clean(text, counts).split("\n")
    if corpus.sentences == "lines":
        return _bounded(lines, counts)
    return _split(lines, corpus.language, counts)


def _decode(piece: Piece, data: bytes, offset: int, strict: bool, counts: Counts) -> str:
    """UTF-8 to text, mended and counted, or refused."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if strict:
            raise UserError(
                f"{piece.name}: byte {offset + error.start} is not valid UTF-8 ({error.reason}); "
                "convert the file to UTF-8, or leave strict off to replace and count such bytes"
            ) from error
    text = data.decode(errors="replace")
    counts["invalid_utf8"] += text.count("\ufffd") - data.count("\ufffd".encode())
    return text


def _mend_surrogates(text: str, counts: Counts) -> str:
    r"""Half a pair, which a JSON escape such as "\ud83d" can leave, has no UTF-8 form."""
    text, mended = _SURROGATE.subn("\ufffd", text)
    counts["invalid_utf8"] += mended
    return text


def _clean(text: str, counts: Counts) -> str:
    """One kind of line break, and no byte order mark, NUL or other control characters."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    cleaned = _CONTROL.sub("", text)
    counts["control_characters"] += len(text) - len(cleaned)
    return cleaned


def _split(paragraphs: Iterable[str], language: str, counts: Counts) -> Document:
    flat = (" ".join(paragraph.split()) for paragraph in paragraphs)
    split = (split_sentences(paragraph, language) for paragraph in flat if paragraph)
    return _bounded(itertools.chain.from_iterable(split), counts)


def _bounded(sentences: Iterable[str], counts: Counts) -> Document:
    """The sentences with whitespace collapsed, empty ones dropped and endless ones cut."""
    document = []
    for sentence in sentences:
        text, start = " ".join(sentence.split()), 0
        counts["long_sentences"] += len(text) > MAX_SENTENCE
        while len(text) - start > MAX_SENTENCE:
            cut = text.rfind(" ", start + 1, start + MAX_SENTENCE + 1)
            cut = cut if cut > 0 else start + MAX_SENTENCE
            document.append(text[start:cut])
            start = cut + (text[cut] == " ")
        if text:
            document.append(text[start:])
    return document


def _without_empty(documents: list[Document]) -> list[Document]:
    return [document for document in documents if document]
