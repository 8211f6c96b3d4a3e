"""Sentences whose words or characters have tags, from columns (CoNLL), JSON and Parquet."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.compressed import kind
from bert_jax.errors import UserError
from bert_jax.tasks.tables import Row, field, numbered_lines, opened, read_rows

# The line between the documents of CoNLL-2003.
_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile("[ \t]+")


class Sentence(NamedTuple):
    """Tokens (words, or characters with the spaces among them) and the tag of each, if known.

    where: the place of its first token, `dev.conll:7`.
    """

    where: str
    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None


class Columns(NamedTuple):
    """How a file says what it holds.

    token, tag: names of columns, in JSON and Parquet of what has lists.
    header: the names of all columns of a file of columns; empty where tokens are in the first
      column and tags in the last.
    comment: what lines that are no tokens begin with; empty for none.
    """

    token: str = "tokens"
    tag: str = "tags"
    header: tuple[str, ...] = ()
    comment: str = "##"


def read_sentences(path: Path, columns: Columns, labelled: bool) -> Iterator[Sentence]:
    """The sentences of a file: .jsonl, .json, .parquet, or columns under any other ending.

    In columns a token is a line, and a blank line ends a sentence. Tabs part the columns of a line
    that has one, so that a token may be a space; else spaces do.

    Args:
      path: the file.
      columns: see there.
      labelled: whether all must have tags; else those are read that there are.

    Raises:
      UserError: no such file, not UTF-8, a token without a tag or a line without a column; file and
        line are named.
    """
    if kind(path) in (".jsonl", ".json", ".parquet"):
        for where, row in read_rows(path):
            yield _of_row(where, row, columns, labelled)
        return
    with opened(path) as file:
        lines = (
            (where, _split(line))
            for where, line in numbered_lines(path, file)
            if not (columns.comment and line.startswith(columns.comment))
        )
        width = len(columns.header)
        for blank, group in itertools.groupby(lines, key=lambda line: not line[1]):
            if not blank:
                rows = list(group)
                width = width or len(rows[0][1])
                yield _of_lines(rows, columns, width, labelled)


def _split(line: str) -> list[str]:
    """The columns of a line; none of a blank one."""
    if not line.strip(" \t") or line.startswith(_DOCUMENT):
        return []
    # Not str.split(), to which a no-break space in a number is a space as well.
    return line.split("\t") if "\t" in line else _SPACES.split(line.strip(" "))


def _of_lines(
    rows: list[tuple[str, list[str]]], columns: Columns, width: int, labelled: bool
) -> Sentence:
    names = columns.header or (columns.token, *[""] * (width - 2), columns.tag)[:width]
    if columns.token not in names or (labelled and columns.tag not in names):
        raise UserError(
            f"{rows[0][0]}: a column of tokens and one of tags are expected, {columns.token!r} and "
            f"{columns.tag!r}, and the columns are {', '.join(names)}"
        )
    for where, values in rows:
        if len(values) != width:
            raise UserError(f"{where}: {len(values)} columns, and {width} are expected")
        if not all(values[names.index(n)] for n in (columns.token, columns.tag) if n in names):
            raise UserError(f"{where}: a column is empty: a token and a tag are expected")

    def column(name: str) -> tuple[str, ...]:
        return tuple(values[names.index(name)] for _, values in rows)

    tags = column(columns.tag) if columns.tag in names else None
    return Sentence(rows[0][0], column(columns.token), tags)


def _of_row(where: str, row: Row, columns: Columns, labelled: bool) -> Sentence:
    tokens = _strings(row, columns.token, where)
    if not labelled and columns.tag not in row:
        return Sentence(where, tokens, None)
    tags = _strings(row, columns.tag, where)
    if len(tokens) != len(tags):
        raise UserError(f"{where}: {len(tokens)} {columns.token} and {len(tags)} {columns.tag}")
    return Sentence(where, tokens, tags)


def _strings(row: Row, name: str, where: str) -> tuple[str, ...]:
    values: Sequence[object] = field(row, name, where)
    if not (isinstance(values, list) and values and all(_is_text(value) for value in values)):
        raise UserError(f"{where}: column {name!r} must be a list of strings, none of them empty")
    return tuple(map(str, values))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
