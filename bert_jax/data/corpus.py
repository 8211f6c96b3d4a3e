"""Where text comes from: `KIND:WHERE`, or several with ` + ` between them, to documents.

A source works in two halves. `Source.units`, in the main process, cuts the raw bytes into units of
about 1 MiB: cheap, in bounded memory, the same units whatever the number of workers.
`Source.documents`, in any process, turns one unit into documents.

- `text:GLOB` is plain text, compressed (`.gz`, `.bz2`, `.xz`, `.zst`) or not; `**` crosses folders.
  Laid out in `lines` (a sentence a line, a blank line between documents), a document ends with its
  file at the latest. As prose (`split`: paragraphs between blank lines), a file is a document.
  Either way a document ends, at a paragraph's, line's or word's end, before it outgrows
  `UNIT_BYTES`: a book is a few documents.
- `jsonl:GLOB` has a JSON object a line, with the text of one document in `text_field`; compressed
  or not, too.
- `parquet:GLOB` has a row a document, its text in the column `text_field`; see `parquet`.
- `tfds:NAME` is the `train` split of a TFDS data set; see `tfds_source`.
- `docstrings:` is the documentation of the Python that is installed; see `docstrings`.
"""

import codecs
import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from bert_jax.config import CorpusConfig
from bert_jax.data import compressed, docstrings, parquet, tfds_source
from bert_jax.data.documents import (
    Parser,
    Piece,
    Pieces,
    Unit,
    json_documents,
    json_objects,
    record_documents,
    source_documents,
    text_documents,
)
from bert_jax.errors import UserError

UNIT_BYTES = 2**20  # of raw text a unit, about; the longest line of text held at once
MAX_JSON_LINE = 2**28  # bytes; a longer line of JSON is skipped and counted

# Of a Wikipedia, as sentencex has them; to one that it lacks it applies the rules of English.
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")

BETWEEN_SOURCES = " + "
_NEXT_SOURCE = re.compile(re.escape(BETWEEN_SOURCES) + "(?=[a-z]+:)")

KINDS = {
    "text": "text:GLOB, plain text",
    "jsonl": "jsonl:GLOB, a JSON object a line",
    "parquet": "parquet:GLOB, a document a row",
    "tfds": "tfds:NAME, a TFDS data set",
    "docstrings": "docstrings:, the documentation of the Python installed",
}
FILE_KINDS = {"text": "*.txt", "jsonl": "*.jsonl", "parquet": "*.parquet"}  # and usual names
_SURE = {".jsonl": "jsonl", ".parquet": "parquet"}  # a .txt may hold anything


@dataclass(frozen=True)
class Source:
    """A corpus that is ready to be read, as often as one likes.

    Attributes:
      total_bytes: what the `Unit.progress` of all units adds up to, or a little more where the
        last files hold no text: bytes on disk, compressed where files are compressed.
      units: starts a pass over the raw text, in the main process; always the same units in the
        same order. Raises UserError naming the file: unreadable, damaged, truncated.
      documents: the documents of a unit and what was counted on the way. Picklable, pure and
        free of TensorFlow and JAX, for worker processes. Raises UserError in strict mode.
    """

    total_bytes: int
    units: Callable[[], Iterator[Unit]]
    documents: Parser


def named_sources(source: str) -> list[tuple[str, str]]:
    """The kind and the place of each source that `KIND:WHERE + KIND:WHERE` names.

    Raises:
      UserError: one is of no known kind, or has no place where its kind has one.
    """
    named = []
    for part in _NEXT_SOURCE.split(source):
        kind, colon, where = part.partition(":")
        if not colon or kind not in KINDS:
            raise UserError(
                f"source {part!r} is of no known kind: give {'; '.join(KINDS.values())}"
            )
        if (kind == "docstrings") == bool(where):
            raise UserError(f"source {part!r}: write it as {KINDS[kind]}")
        named.append((kind, where))
    return named


def open_source(corpus: CorpusConfig) -> Source:
    """What `corpus.source` names, one source after the other, checked as far as can be at once.

    Raises:
      UserError: unknown kind, a language that is no code, no such file, a glob without a match, a
        directory, a missing field, a TFDS data set that is neither on disk nor within reach.
    """
    if not _LANGUAGE.fullmatch(corpus.language):
        raise UserError(f"language {corpus.language!r}: give its code, such as en, ko or zh-yue")
    opened = [_open(corpus, kind, where) for kind, where in named_sources(corpus.source)]
    totals, pieces, parsers = zip(*opened, strict=True)
    return Source(sum(totals), partial(_units, pieces), partial(source_documents, parsers))


def _open(corpus: CorpusConfig, kind: str, where: str) -> tuple[int, Pieces, Parser]:
    """One source: its `total_bytes`, what starts a pass over its pieces, what reads its units."""
    if kind == "docstrings":
        # Its pieces are laid out in lines already, whatever the setting says of other text.
        parse = partial(text_documents, CorpusConfig(sentences="lines"))
        return *docstrings.open_docstrings(), parse
    if kind == "tfds":
        opened = tfds_source.open_tfds(where, corpus.text_field, corpus.tfds_data_dir)
        return *opened, partial(record_documents, corpus)
    paths = matching_files(where, kind)
    if kind == "parquet":
        opened = parquet.open_parquet(paths, corpus.text_field)
        return *opened, partial(record_documents, corpus)
    total = sum(path.stat().st_size for path in paths)
    if kind == "text":
        return total, partial(read_files, paths, cut_text), partial(text_documents, corpus)
    pieces = partial(read_files, paths, cut_json)
    _check_field(pieces(), corpus.text_field)
    return total, pieces, partial(json_documents, corpus)


def _units(sources: Sequence[Pieces]) -> Iterator[Unit]:
    for number, pieces in enumerate(sources):
        yield from pack(pieces(), number)


def pack(pieces: Iterable[tuple[Piece, int]], source: int = 0) -> Iterator[Unit]:
    """Units of at least `UNIT_BYTES`, of pieces that come with the position they end at.

    Args:
      pieces: each with how much of the source's `total_bytes` has been read with it.
      source: the number of the source.
    """
    packed, size, start, end = [], 0, 0, 0
    for piece, end in pieces:
        packed.append(piece)
        size += len(piece.data)
        if size >= UNIT_BYTES:
            yield Unit(tuple(packed), end - start, source)
            packed, size, start = [], 0, end
    if packed:
        yield Unit(tuple(packed), end - start, source)


def matching_files(pattern: str, kind: str) -> list[Path]:
    """The files that a path or glob names, sorted.

    Raises:
      UserError: there is none, the path is a directory, or a file is of another kind by its name:
        Parquet and JSON would pass for text, though not for any that one wants to train on.
    """
    path = Path(os.path.expanduser(pattern))
    if path.is_dir():
        example = path / FILE_KINDS[kind]
        raise UserError(f"{pattern} is a directory: name its files, such as '{example}'")
    if path.exists():
        files = [path]
    elif glob.has_magic(pattern):
        found = (Path(name) for name in glob.iglob(str(path), recursive=True))
        files = sorted(file for file in found if file.is_file())
    else:
        raise UserError(f"{pattern}: no such file")
    if not files:
        raise UserError(f"{pattern}: no file matches")
    for file in files:
        named = _SURE.get(compressed.kind(file), kind)
        if named != kind:
            raise UserError(f"{file} is {named} by its name, not {kind}: write {named}:{pattern}")
    return files


def read_files(
    paths: Iterable[Path], cut: Callable[[str, BinaryIO], Iterator[Piece]]
) -> Iterator[tuple[Piece, int]]:
    """The pieces that `cut` makes of each file, with the bytes on disk read so far.

    Raises:
      UserError: as `compressed.opened`.
    """
    done = 0
    for path in paths:
        with compressed.opened(path) as (stream, raw):
            for piece in cut(str(path), stream):
                yield piece, done + raw.tell()
            done += raw.tell()


def cut_text(name: str, stream: BinaryIO) -> Iterator[Piece]:
    """A file of text, cut where a paragraph ends, or failing that a line, or a word."""
    data, offset, line, inside_line = stream.read(2), 0, 1, False
    if data in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UserError(f"{name}: text in UTF-16, not UTF-8; convert it with `iconv -f UTF-16`")
    while more := stream.read(UNIT_BYTES - len(data)):
        data += more
        if len(data) < UNIT_BYTES:
            continue
        end = _paragraph_end(data) or data.rfind(b"\n") + 1
        counts = Counter(long_lines=int(not end and not inside_line))
        inside_line = not end
        end = end or _word_end(data)
        yield Piece(name, data[:end], offset, line, counts)
        offset, line = offset + end, line + data.count(b"\n", 0, end)
        data = data[end:]
    yield Piece(name, data, offset, line)


def cut_json(name: str, stream: BinaryIO) -> Iterator[Piece]:
    """A file of JSON lines, cut after a line; one beyond `MAX_JSON_LINE` is left out, counted."""
    offset, line = 0, 1
    while data := stream.read(UNIT_BYTES):
        counts, skipped = Counter(), 0
        if not data.endswith(b"\n"):
            rest = stream.readline(MAX_JSON_LINE)
            data += rest
            if len(rest) == MAX_JSON_LINE and not rest.endswith(b"\n"):
                whole = data.rfind(b"\n") + 1
                skipped = len(data) - whole + _skip_line(stream)
                data, counts = data[:whole], Counter(long_lines=1)
        yield Piece(name, data, offset, line, counts)
        offset += len(data) + skipped
        line += data.count(b"\n") + bool(skipped)


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the line; how many bytes that was."""
    skipped = 0
    while chunk := stream.readline(UNIT_BYTES):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


def _paragraph_end(data: bytes) -> int:
    """Just after the last blank line of `data`, or 0."""
    end = data.rfind(b"\n")
    while end > 0:
        start = data.rfind(b"\n", 0, end)
        if not data[start + 1 : end].strip():
            return end + 1
        end = start
    return 0


def _word_end(data: bytes) -> int:
    """Just after the last space of `data`, or failing that before its last character."""
    end = data.rfind(b" ") + 1
    if end:
        return end
    # A character of UTF-8 is one leading byte and up to three that continue it, 0b10xxxxxx.
    end = len(data) - 1
    while end > len(data) - 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _check_field(pieces: Iterator[tuple[Piece, int]], text_field: str) -> None:
    """Refuse, before any work, a corpus whose first lines all lack the field."""
    for piece, _ in pieces:
        fields = dict.fromkeys(name for record in json_objects(piece.data) for name in record)
        if fields and text_field not in fields:
            raise UserError(
                f"{piece.name}: no line has the field {text_field!r}; there are "
                f"{', '.join(map(repr, fields))}: choose one with text_field"
            )
        return
