"""Where predictions go: a table for people, JSON lines, or arrays of vectors in .npy files."""

import io
import json
import os
import shutil
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, TextIO

import numpy as np

from bert_jax.errors import UserError
from bert_jax.prediction.predictor import Predictor

_FLOAT32, _INT64 = np.dtype("<f4"), np.dtype("<i8")
_GAP = "  "
_WIDEST = 60  # columns that a cell takes at most, where another follows it


class Sink(ABC):
    """Takes predictions in order; whatever it has taken is written."""

    @abstractmethod
    def write(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        """Write some, and flush."""

    @abstractmethod
    def close(self) -> None:
        """Nothing follows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JsonLines(Sink):
    """An object a line."""

    def __init__(self, path: Path | None):
        """Writes a file, or to standard output.

        Raises:
          UserError: the file cannot be written.
        """
        self._stream = _opened(path)

    def write(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.write`."""
        for prediction in predictions:
            text = json.dumps(prediction, ensure_ascii=False, default=_listed)
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """See `Sink.close`."""
        if self._stream is not sys.stdout:
            self._stream.close()


class Table(JsonLines):
    """Columns under each other, the last one as wide as a terminal leaves room for."""

    def __init__(self, path: Path | None, predictor: Predictor):
        """As `JsonLines`; `predictor.rows` says what the rows of a prediction are."""
        super().__init__(path)
        self._predictor = predictor
        self._header = [predictor.header]

    def write(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.write`; the header comes first."""
        rows = [row for prediction in predictions for row in self._predictor.rows(prediction)]
        for line in table([*self._header, *rows], shutil.get_terminal_size().columns):
            self._stream.write(line + "\n")
        self._header = []
        self._stream.flush()


class Vectors(Sink):
    """A float32 array [texts, E]; of vectors of pieces [pieces, E], and where each text begins.

    What is written so far is a whole array at any time: rows are appended, and the header, which
    has room for it, tells the new number. NAME.offsets.npy, int64 [texts + 1], says that the pieces
    of text i are rows offsets[i] to offsets[i + 1].
    """

    def __init__(self, path: Path):
        """Takes away what is there; `path` ends in .npy.

        Raises:
          UserError: they cannot be written.
        """
        self._path = path
        self._offsets_path = path.with_suffix(".offsets.npy")
        try:
            # Else what an earlier command wrote could be taken for this one's.
            path.unlink(missing_ok=True)
            self._offsets_path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        self._vectors: _Growing | None = None
        self._offsets: _Growing | None = None
        self._rows = 0

    def write(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.write`."""
        if not predictions:
            return
        if "vector" in predictions[0]:
            arrays = [prediction["vector"][None] for prediction in predictions]
        else:
            arrays = [prediction["vectors"] for prediction in predictions]
            self._write_offsets([len(array) for array in arrays])
        vectors = np.concatenate(arrays).astype(_FLOAT32)
        if self._vectors is None:
            self._vectors = _Growing(self._path, _FLOAT32, vectors.shape[1:])
        self._vectors.append(vectors)

    def close(self) -> None:
        """See `Sink.close`."""
        for file in (self._vectors, self._offsets):
            if file:
                file.close()

    def _write_offsets(self, lengths: Sequence[int]) -> None:
        ends = self._rows + np.cumsum(lengths)
        if self._offsets is None:
            self._offsets = _Growing(self._offsets_path, _INT64, ())
            ends = np.append(0, ends)
        self._offsets.append(ends.astype(_INT64))
        self._rows = int(ends[-1])


class _Growing:
    """A .npy file that rows are appended to."""

    def __init__(self, path: Path, dtype: np.dtype, row_shape: tuple[int, ...]):
        try:
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        self._dtype, self._row_shape, self._rows = dtype, row_shape, 0
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(rows.tobytes())
        self._rows += len(rows)
        self._write_header()
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        """Always of one size: NumPy leaves room for the first axis to grow."""
        self._file.seek(0)
        shape = (self._rows, *self._row_shape)
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, fields)


def _opened(path: Path | None) -> TextIO:
    """A text file to write, or standard output, in UTF-8."""
    # A lone surrogate, which JSON can carry, is no UTF-8.
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="replace")
        return sys.stdout
    try:
        return path.open("w", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows of cells as lines of at most `width` columns, the cells of a column below each other."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [min(_WIDEST, max(map(_columns, column))) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        line = ""
        for cell, room in zip(row[:-1], widths, strict=False):
            shown = _cut(cell, room)
            line += shown + " " * (room - _columns(shown)) + _GAP
        lines.append(_cut(line + row[-1], width).rstrip())
    return lines


def _printable(text: str) -> str:
    """Text that a terminal can be trusted with: no control characters, on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _columns(text: str) -> int:
    """Columns of a terminal that text takes: East Asian wide letters take two."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _cut(text: str, room: int) -> str:
    if _columns(text) <= room:
        return text
    while text and _columns(text) > room - 1:
        text = text[:-1]
    return text + "…"


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.round(value.astype(np.float64), 6).tolist()  # as extract_features.py has them
    raise TypeError(f"{type(value).__name__} is not JSON")
