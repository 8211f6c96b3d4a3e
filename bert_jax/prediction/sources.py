"""Where the texts to predict come from: arguments, a file, standard input, a person.

Each gives the texts of an item, one for each column, with the words that name its place.
"""

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from bert_jax.data.compressed import kind
from bert_jax.errors import UserError
from bert_jax.tasks.tables import TABLES, numbered_lines, opened, read_rows, text_field

Texts = tuple[str, tuple[str, ...]]


def from_arguments(arguments: Sequence[str], columns: Sequence[str]) -> Iterator[Texts]:
    """As many arguments an item as there are columns.

    Raises:
      UserError: their number is no multiple, or one is empty.
    """
    width = len(columns)
    if len(arguments) % width:
        raise UserError(
            f"{len(arguments)} texts are given, and each item takes {width}: {', '.join(columns)}"
        )
    for start in range(0, len(arguments), width):
        yield (
            f"argument {start + 1}",
            _checked(f"argument {start + 1}", tuple(arguments[start : start + width]), columns),
        )


def from_file(path: Path, columns: Sequence[str], header: Sequence[str] = ()) -> Iterator[Texts]:
    """The rows of a table, by the names of its columns, or the lines of any other text file.

    `header` is as in `read_rows`.

    Raises:
      UserError: no such file, no UTF-8, no such column, an empty text; file and line are named.
    """
    if kind(path) in TABLES:
        for where, row in read_rows(path, header):
            yield where, tuple(text_field(row, column, where) for column in columns)
    else:
        with opened(path) as lines:
            yield from _lines(path, lines, columns)


def from_stdin(columns: Sequence[str]) -> Iterator[Texts]:
    """The lines of standard input, as of a file."""
    name = Path("standard input")
    lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig", newline="")
    yield from _lines(name, lines, columns)


def from_person(columns: Sequence[str]) -> Iterator[Texts]:
    """What is typed after a prompt for each column, until Ctrl-D; empty lines ask again."""
    import readline  # gives `input` a history and editing

    del readline
    width = max(map(len, columns))
    while True:
        try:
            texts = tuple(input(f"{column:<{width}} > ") for column in columns)
        except EOFError:
            print()
            return
        if all(text.strip() for text in texts):
            yield "the text", texts


def _lines(name: Path, lines: TextIO, columns: Sequence[str]) -> Iterator[Texts]:
    for where, line in numbered_lines(name, lines):
        texts = tuple(line.split("\t")) if len(columns) > 1 else (line,)
        yield where, _checked(where, texts, columns)


def _checked(where: str, texts: tuple[str, ...], columns: Sequence[str]) -> tuple[str, ...]:
    """The texts of an item.

    Raises:
      UserError: another number than there are columns; an empty one.
    """
    if len(texts) != len(columns):
        raise UserError(
            f"{where}: {len(texts)} texts, and {len(columns)} are expected, with a tab between "
            f"them: {', '.join(columns)}"
        )
    empty = [column for column, text in zip(columns, texts, strict=True) if not text.strip()]
    if empty:
        raise UserError(f"{where}: the {empty[0]} is empty; take the line out")
    return texts
