"""Where in a text its pieces stand, counted in the characters of the text as it was given."""

from collections.abc import Sequence

import numpy as np


def joined_offsets(
    parts: Sequence[str], offsets: Sequence[Sequence[tuple[int, int]]]
) -> np.ndarray:
    """Where the pieces of a text stand in it, int64 [pieces, 2], end exclusive.

    Args:
      parts: what the text was cut into.
      offsets: of the pieces of each part, in the part without its lone surrogates.
    """
    starts = np.cumsum([0, *map(len, parts[:-1])])
    return np.concatenate(
        [
            start + _in_part(part, np.array(of_part, np.int64).reshape(-1, 2))
            for start, part, of_part in zip(starts, parts, offsets, strict=True)
        ]
    )


def _in_part(part: str, offsets: np.ndarray) -> np.ndarray:
    """`offsets` with lone surrogates counted, and without the white space before a piece.

    SentencePiece's pieces begin with the space before a word. One that is nothing else stands for
    the character that follows, as at the beginning of a text, where there is no space.
    """
    codes = np.frombuffer(part.encode("utf-32-le", "surrogatepass"), "<u4")
    kept = np.append(np.flatnonzero(codes >> 11 != 0xD800 >> 11), len(part))
    start, end = offsets[:, 0], offsets[:, 1]
    first = kept[start]
    last = np.where(end > start, kept[end - 1] + 1, first)
    visible = np.array([*(not character.isspace() for character in part), True])
    following = np.minimum.accumulate(np.where(visible, np.arange(len(visible)), len(part))[::-1])
    letter = following[::-1][first]
    next_first = np.append(first[1:], -1)
    space = (first < last) & (last <= letter) & (letter == next_first)
    begin = np.where(space, letter, np.minimum(letter, last))
    return np.stack([begin, np.where(space, letter + 1, last)], axis=1)
