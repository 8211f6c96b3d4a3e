"""Parquet, in which the Hugging Face hub keeps its data sets: text to pretrain on, and examples.

A file is read a few rows at a time, so that memory does not grow with its length.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.data.compressed import unreadable
from bert_jax.data.documents import Piece, Pieces
from bert_jax.errors import UserError

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

_ROWS = 64  # read at once; a row may be a book
_BUFFER = 2**20  # bytes of a column held at once; by itself pyarrow holds a row group's


def open_parquet(paths: Sequence[Path], text_field: str) -> tuple[int, Pieces]:
    """The size of some files, in bytes on disk, and what starts a pass over their texts.

    A row is a piece; one of null is empty.

    Args:
      paths: the files.
      text_field: the column of the text.

    Raises:
      UserError: as `_opened`; or a file has no text in that column.
    """
    for path in paths:
        with _opened(path) as file:
            _check_column(path, file.schema_arrow, text_field)
    return sum(path.stat().st_size for path in paths), partial(_pieces, paths, text_field)


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file: the place of each, and its values by column.

    Columns that the hub's `datasets` wrote as classes (ClassLabel, or lists of them) give their
    names, None where a class is not known (-1).

    Raises:
      UserError: as `_opened`.
    """
    with _opened(path) as file:
        classes = _classes(file.schema_arrow.metadata or {})
        batches = file.iter_batches(_ROWS, use_threads=False)
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for index, row in enumerate(rows):
            named = {key: _named(row[key], classes[key]) for key in classes.keys() & row.keys()}
            yield f"{path}[{index}]", row | named


def _pieces(paths: Sequence[Path], text_field: str) -> Iterator[tuple[Piece, int]]:
    """Each text, with the bytes on disk read so far: those of a file in step with its rows."""
    import pyarrow

    done = 0
    for path in paths:
        size = path.stat().st_size
        with _opened(path) as file:
            count = max(1, file.metadata.num_rows)
            batches = file.iter_batches(_ROWS, columns=[text_field], use_threads=False)
            columns = (batch.column(0).cast(pyarrow.large_binary()) for batch in batches)
            texts = itertools.chain.from_iterable(column.to_pylist() for column in columns)
            for index, text in enumerate(texts):
                share = min(index + 1, count)  # a damaged file may have more rows than it says
                yield Piece(f"{path}[{index}]", text or b""), done + size * share // count
        done += size


@contextmanager
def _opened(path: Path) -> "Iterator[ParquetFile]":
    """A Parquet file whose columns have names of their own.

    Raises:
      UserError: two columns have one name; the file cannot be read, is no Parquet or damaged; or,
        in here, a text that is asked for as one is not UTF-8.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with path.open("rb") as raw:
            file = ParquetFile(raw, buffer_size=_BUFFER, pre_buffer=False)
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise UserError(f"{path}: two columns have the same name: {', '.join(names)}")
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a text is not UTF-8 ({error.reason})") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise unreadable(path, "Parquet", error) from error


def _check_column(path: Path, schema: "pyarrow.Schema", text_field: str) -> None:
    """Refuse a file that has no text in a column of that name."""
    texts = [column.name for column in schema if _is_text(column.type)]
    if text_field not in texts:
        raise UserError(
            f"{path}: no text in a column {text_field!r}; there is text in "
            f"{', '.join(map(repr, texts)) or 'none'}: choose one with text_field"
        )


def _is_text(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):  # pandas' categories
        return _is_text(kind.value_type)
    # Some programs write text without saying that it is more than bytes.
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary)
    return any(test(kind) for test in tests)


def _classes(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes of each column that has some, as `datasets` notes them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        names = {column: _class_names(feature) for column, feature in features.items()}
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        return {}  # what another program notes under that name is no concern of ours
    return {column: labels for column, labels in names.items() if labels}


def _class_names(feature: Any) -> list[str]:
    """The names of a feature's classes, or of those of what it is a list of; [] for others."""
    match feature:
        case {"_type": "ClassLabel", "names": [*names]}:
            return [str(name) for name in names]
        case {"feature": inner} | [inner]:  # `datasets` before version 4 notes some lists as one
            return _class_names(inner)
        case _:
            return []


def _named(value: Any, names: Sequence[str]) -> Any:
    """The name of a class, None of one that is not known; of a list, of each."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None
