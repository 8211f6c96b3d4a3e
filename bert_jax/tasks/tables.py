"""Rows of examples from TSV, CSV, JSON and Parquet files, by the names of their columns."""

import csv
import io
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from bert_jax.data import compressed
from bert_jax.data.parquet import parquet_rows
from bert_jax.data.tfds_source import tfds_rows
from bert_jax.errors import UserError

# The longest line that is read: a field of more characters is no text to classify.
_MAX_LINE = 1 << 24

# A split of a data set of TFDS stands in a file's place: tfds:NAME/SPLIT.
_TFDS = "tfds:"

Row = dict[str, Any]
Refuse = Callable[[UserError], None]
E = TypeVar("E")


def _raise(error: UserError) -> NoReturn:
    raise error


def read_examples(
    path: Path, header: Sequence[str], example: Callable[[str, Row], E], skip: bool
) -> list[E]:
    """What `example` makes of the place and the values of each row of a file.

    Args:
      path: the file, as in `read_rows`.
      header: as in `read_rows`.
      example: raises a `UserError` where it cannot make anything of a row.
      skip: leave out rows that cannot be read, and count them on standard error.

    Raises:
      UserError: as `read_rows`; there is no row; without `skip`, a row that cannot be read.
    """
    examples: list[E] = []
    refused: list[UserError] = []
    refuse: Refuse = refused.append if skip else _raise
    for where, row in read_rows(path, header, refuse):
        try:
            examples.append(example(where, row))
        except UserError as error:
            refuse(error)
    if not examples:
        raise UserError(f"{path}: " + (f"{refused[0]}" if refused else "has no rows"))
    if refused:
        count = len(examples) + len(refused)
        told = f"{path}: {len(refused):,} of {count:,} rows left out; the first: {refused[0]}"
        print(told, file=sys.stderr)
    return examples


def read_rows(
    path: Path, header: Sequence[str] = (), refuse: Refuse = _raise
) -> Iterator[tuple[str, Row]]:
    """The rows of a file, each with the words that name its place (`train.tsv:7`).

    By its ending, a file is .tsv (nothing is quoted, as GLUE has it), .csv (quoted as spreadsheets
    do), .jsonl (an object a line, values of any type) or .json (a list of objects, read at once),
    compressed (.gz, .bz2, .xz, .zst) or not; or .parquet, of whose classes the names are given.
    Blank lines of .tsv and .jsonl don't count. `tfds:NAME/SPLIT` is a split of a data set of TFDS,
    by its name or by the directory that holds it.

    Args:
      path: the file.
      header: names of the columns of a .tsv or .csv that doesn't name them in its first line. A
        first line that has one of these names does name them: GLUE's CoLA has such a test file.
      refuse: takes the error of a row of another width than the header, of one whose quotes are
        amiss, or of one that is no JSON object; where it raises nothing, the row is left out.

    Raises:
      UserError: another ending, no such file, text that is not UTF-8; file and line are named.
    """
    if str(path).startswith(_TFDS):
        yield from tfds_rows(str(path).removeprefix(_TFDS))
        return
    ending = compressed.kind(path)
    if ending == ".parquet":
        yield from parquet_rows(path)
        return
    if ending not in _READERS:
        endings, more = ", ".join(_READERS), ", ".join(compressed.ENDINGS)
        raise UserError(f"{path}: must end in {endings} (and {more} if compressed), or in .parquet")
    with opened(path) as lines:
        yield from _READERS[ending](path, lines, header, refuse)


def field(row: Row, name: str, where: str) -> Any:
    """The value of a column.

    Raises:
      UserError: there is no such column.
    """
    if name not in row:
        raise UserError(f"{where}: no column {name!r}; there are {', '.join(map(str, row))}")
    return row[name]


def is_missing(value: Any) -> bool:
    """Whether a column's value stands for none: null, empty, or NaN, as pandas has it."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def text_field(row: Row, name: str, where: str) -> str:
    """The text of a column.

    Raises:
      UserError: there is no such column, or it holds no text.
    """
    text = field(row, name, where)
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: column {name!r} holds {text!r}: a text is expected")
    return text


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file, compressed or not, without its byte order mark and with its own line ends.

    Raises:
      UserError: as `compressed.opened`; or, in here, the text is not UTF-8.
    """
    try:
        with compressed.opened(path) as (stream, _):
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    except UnicodeDecodeError as error:
        place = f"{error.reason} at byte {error.start}"
        raise UserError(f"{path}: not UTF-8 ({place}); save the file as UTF-8") from error


def numbered_lines(path: Path, lines: TextIO) -> Iterator[tuple[str, str]]:
    """Each line of a file without its end, and the words that name its place.

    Raises:
      UserError: a line of over 16 million characters, or that is not UTF-8.
    """
    number = 0
    while line := _next_line(path, lines, number):
        number += 1
        if len(line) > _MAX_LINE:
            raise UserError(f"{path}:{number}: a line of over {_MAX_LINE:,} characters")
        yield f"{path}:{number}", line.rstrip("\r\n")


def _next_line(path: Path, lines: TextIO, number: int) -> str:
    """The line after `number` others, with its end."""
    try:
        return lines.readline(_MAX_LINE + 1)
    except UnicodeDecodeError as error:
        # A block of many lines is decoded at once; its first byte is of the next line.
        at = number + 1 + error.object.count(b"\n", 0, error.start)
        raise UserError(
            f"{path}:{at}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from error


def _tsv(
    path: Path, lines: TextIO, header: Sequence[str], refuse: Refuse
) -> Iterator[tuple[str, Row]]:
    rows = ((where, line.split("\t")) for where, line in numbered_lines(path, lines) if line)
    yield from _named(rows, header, refuse)


def _csv(
    path: Path, lines: TextIO, header: Sequence[str], refuse: Refuse
) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(_MAX_LINE)  # by itself csv ends at a field of 131,072 characters
    yield from _named(_csv_rows(path, lines, refuse), header, refuse)


def _csv_rows(path: Path, lines: TextIO, refuse: Refuse) -> Iterator[tuple[str, list[str]]]:
    """The rows that are not blank, each with the place of its first line.

    Of a row whose quotes are amiss the first line alone is refused. What was read with it is read
    again, for a quote that is not closed takes in whole rows, up to the end of the file.
    """
    rest = numbered_lines(path, lines)
    again: deque[tuple[str, str]] = deque()

    def following() -> tuple[str, str] | None:
        return again.popleft() if again else next(rest, None)

    def noted(read: list[tuple[str, str]]) -> Iterator[str]:
        for where, line in iter(following, None):
            read.append((where, line))
            yield line + "\n"  # a quoted field may hold line breaks, which the reader is to see

    while True:
        read: list[tuple[str, str]] = []
        try:
            row = next(csv.reader(noted(read), strict=True), None)
        except csv.Error as error:
            refuse(UserError(f"{read[0][0]}: not CSV ({error}); see to its quotes"))
            again.extendleft(reversed(read[1:]))
            continue
        if row is None:
            return
        if row:
            yield read[0][0], row


def _jsonl(
    path: Path, lines: TextIO, header: Sequence[str], refuse: Refuse
) -> Iterator[tuple[str, Row]]:
    for where, line in numbered_lines(path, lines):
        if not line.strip():
            continue
        try:
            row = _loaded(line)
        except (ValueError, RecursionError) as error:
            refuse(UserError(f"{where}: not JSON ({error})"))
            continue
        if isinstance(row, dict):
            yield where, row
        else:
            refuse(UserError(f"{where}: a JSON object is expected"))


def _json(
    path: Path, lines: TextIO, header: Sequence[str], refuse: Refuse
) -> Iterator[tuple[str, Row]]:
    text = lines.read()
    try:
        rows = _loaded(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    if not isinstance(rows, list):
        raise UserError(f"{path}: a list of JSON objects is expected")
    for index, row in enumerate(rows):
        if isinstance(row, dict):
            yield f"{path}[{index}]", row
        else:
            refuse(UserError(f"{path}[{index}]: a JSON object is expected"))


def _loaded(text: str) -> Any:
    """The value of a JSON text; ValueError or RecursionError where it is none."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode()  # an escaped half of a character is no text
    return value


def _named(
    rows: Iterable[tuple[str, list[str]]], header: Sequence[str], refuse: Refuse
) -> Iterator[tuple[str, Row]]:
    names: list[str] = []
    for where, values in rows:
        if not names:
            named = not header or not (set(header) - {""}).isdisjoint(values)
            names = values if named else list(header)
            called = [name for name in names if name]  # spreadsheets leave empty columns behind
            if len(set(called)) < len(called):
                raise UserError(f"{where}: the header names a column twice: {', '.join(names)}")
            if named:
                continue
        if len(values) == len(names):
            yield where, dict(zip(names, values, strict=True))
        else:
            refuse(
                UserError(
                    f"{where}: {len(values)} columns, and the header has {len(names)}: "
                    f"{', '.join(names)}"
                )
            )


_READERS = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".json": _json}
TABLES = (*_READERS, ".parquet")  # endings of the files that `read_rows` takes
