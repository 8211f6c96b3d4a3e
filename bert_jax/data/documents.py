"""Raw bytes to documents: decoding, cleaning and sentence splitting.

Everything here runs in worker processes and is a pure function of its arguments.
"""

from collections import Counter
from dataclasses import dataclass

Document = list[str]  # cleaned sentences in order, none empty
Counts = Counter[str]  # what was mended or left out: name -> how many


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes of one file or record; no document runs across pieces.

    Attributes:
      name: what to call the file or record in a message.
      data: the bytes.
      offset: where `data` starts in the (decompressed) file, in bytes.
      line: number of the line that `data` starts in, from 1.
      long_lines: lines too long to hold that were cut or skipped while reading this piece.
    """

    name: str
    data: bytes
    offset: int = 0
    line: int = 1
    long_lines: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one call: some pieces, about 1 MiB together.

    Attributes:
      pieces: the raw text.
      progress: how far this unit takes the progress bar, in bytes of `Source.total_bytes`.
    """

    pieces: tuple[Piece, ...]
    progress: int
