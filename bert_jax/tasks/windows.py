"""Windows over a context that is longer than a sequence, and the best spans in them.

As run_squad.py of the original has them.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.tokenization import Tokenizer
from bert_jax.tasks.task import Feature


class Span(NamedTuple):
    """Characters of a context, end exclusive, and the sum of the logits of its two ends."""

    score: float
    start: int
    end: int


def window_features(
    query_ids: np.ndarray,
    context_ids: np.ndarray,
    offsets: np.ndarray,
    tokenizer: Tokenizer,
    max_length: int,
    stride: int,
) -> list[tuple[int, Feature]]:
    """A question over each window of its context: [CLS] question [SEP] window [SEP].

    Args:
      query_ids: int32 [pieces of the question], at most max_length - 4.
      context_ids: int32 [pieces of the context].
      offsets: int64 [pieces of the context, 2], as `Tokenizer.encode_with_offsets` gives them.
      tokenizer: has the special pieces.
      max_length: of a sequence.
      stride: pieces from the beginning of one window to that of the next.

    Returns:
      For each window the piece of the context that it begins with, and what a model reads, and
      token_offsets: int32 [2, length], starts and ends of pieces in characters of the context.
      token_owned: bool [length], whether a piece is one of the context, and no other window has
        more around it.
    """
    head = np.array([tokenizer.cls_id, *query_ids, tokenizer.sep_id])
    spans = window_spans(len(context_ids), max_length - len(head) - 1, stride)
    owners = best_windows(spans, len(context_ids))
    features = []
    for number, (low, high) in enumerate(spans):
        input_ids = np.concatenate([head, context_ids[low:high], [tokenizer.sep_id]])
        length, inside = len(input_ids), slice(len(head), len(head) + high - low)
        feature = {
            "input_ids": input_ids.astype(np.int32),
            "token_type_ids": (np.arange(length) >= len(head)).astype(np.int32),
            "attention_mask": np.ones(length, np.int32),
            "token_offsets": np.zeros((2, length), np.int32),
            "token_owned": np.zeros(length, bool),
        }
        feature["token_offsets"][:, inside] = offsets[low:high].T
        feature["token_owned"][inside] = owners[low:high] == number
        features.append((low, feature))
    return features


def window_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Stretches of at most `room` pieces, each `stride` after the one before, that cover all."""
    spans, start = [], 0
    while start + room < length:
        spans.append((start, start + room))
        start += min(room, stride)
    return [*spans, (start, length)]


def best_windows(spans: Sequence[tuple[int, int]], length: int) -> np.ndarray:
    """int64 [length]: the window in which each piece has the most context on its poorer side.

    Among equals, the longer window, then the earlier (`_check_is_max_context`).
    """
    best, owners = np.full(length, -np.inf), np.zeros(length, np.int64)
    for number, (low, high) in enumerate(spans):
        piece = np.arange(low, high)
        score = np.minimum(piece - low, high - 1 - piece) + 0.01 * (high - low)
        better = score > best[low:high]
        best[low:high][better] = score[better]
        owners[low:high][better] = number
    return owners


def covering_pieces(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last piece that touch characters of a context; None where none does.

    Args:
      offsets: int64 [pieces, 2].
      start, end: of the characters, end exclusive.
    """
    touching = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(touching[0]), int(touching[-1])) if len(touching) else None


def positions_in_window(
    feature: Feature, first: int, pieces: tuple[int, int] | None
) -> tuple[int, int]:
    """Where in a window an answer begins and ends: at [CLS] where it is not all in there.

    Args:
      feature: of the window.
      first: piece of the context that the window begins with.
      pieces: of the context, the first and the last of the answer; None where there is none.
    """
    if pieces is None:
        return 0, 0
    head = int(feature["token_type_ids"].argmax())
    start, end = (head + piece - first for piece in pieces)
    return (start, end) if head <= start and end < len(feature["input_ids"]) - 1 else (0, 0)


def best_spans(
    features: Sequence[Feature],
    outputs: Sequence[Mapping[str, np.ndarray]],
    context: str,
    longest: int,
    n_best: int,
) -> list[Span]:
    """The best spans of a context over all its windows, of different texts, the best first.

    Args:
      features: of its windows, as `window_features` makes them.
      outputs: of each, token_starts and token_ends, float32 [length].
      context: what the offsets count in.
      longest: pieces of an answer.
      n_best: spans, and also the likeliest starts and ends of each window that are combined.
    """
    spans = np.concatenate(
        [
            _spans(feature, of_window, longest, n_best)
            for feature, of_window in zip(features, outputs, strict=True)
        ]
    )
    found: dict[str, Span] = {}
    for score, start, end in spans[np.argsort(-spans[:, 0], kind="stable")]:
        if len(found) == n_best:
            break
        span = Span(float(score), int(start), _with_marks(context, int(end)))
        found.setdefault(context[span.start : span.end], span)
    return list(found.values())


def null_score(outputs: Sequence[Mapping[str, np.ndarray]]) -> float:
    """The score of no answer: that of [CLS] in the window where it is least likely."""
    return min(float(o["token_starts"][0]) + float(o["token_ends"][0]) for o in outputs)


def _spans(
    feature: Feature, outputs: Mapping[str, np.ndarray], longest: int, n_best: int
) -> np.ndarray:
    """float64 [spans, 3]: score, first and last character of the spans in a window."""
    logits = [outputs[name].astype(np.float64) for name in ("token_starts", "token_ends")]
    likeliest = [np.argsort(-of_end, kind="stable")[:n_best] for of_end in logits]
    starts, ends = (grid.ravel() for grid in np.meshgrid(*likeliest, indexing="ij"))
    characters = feature["token_offsets"]
    allowed = feature["token_owned"][starts] & (starts <= ends) & (ends - starts < longest)
    # Neither [SEP] nor a piece of no characters, as SentencePiece has them, ends an answer.
    allowed &= characters[0, starts] < characters[1, ends]
    starts, ends = starts[allowed], ends[allowed]
    scores = logits[0][starts] + logits[1][ends]
    return np.stack([scores, characters[0, starts], characters[1, ends]], axis=1)


def _with_marks(context: str, end: int) -> int:
    """`end` after the accents of the last letter, which no piece has: a tokenizer strips them.

    It strips all marks of no width, with them the vowel signs of Hindi, whose combining class is 0.
    """
    while end < len(context) and unicodedata.category(context[end]) == "Mn":
        end += 1
    return end
