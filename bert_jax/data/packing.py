"""Packing: the sequences of a batch laid into fewer rows, several in one.

A step keeps its meaning. Its sequences, their masks and so its loss are those of the unpacked step;
what would have been padding is not computed. The lay-out follows from the lengths alone, so that
each process finds the same one and builds its own rows only.

Dimensions: B sequences of a batch, R rows they are packed into, L pieces a row, N sequences and P
predictions a row at most.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from bert_jax.config import DataConfig, Phase
from bert_jax.data.batch_shapes import SEQUENCES_A_ROW, row_predictions
from bert_jax.data.pipeline import ALL_ROWS, Batch, PairExamples, Rows


class PackedExamples:
    """The batches of `PairExamples`, packed."""

    def __init__(
        self, examples: PairExamples, phase: Phase, data: DataConfig, *, pad_id: int, multiple: int
    ) -> None:
        """See `batch`.

        Args:
          examples: of `phase` by the settings `data`.
          pad_id: what stands where there is no sequence.
          multiple: that the rows of a batch must be one of, as its sequences are.
        """
        self._examples = examples
        self._seq_len = phase.seq_len
        self._predictions = row_predictions(phase, data)
        self._pad_id = pad_id
        self._multiple = multiple

    def batch(self, step: int, batch_size: int, rows: Rows = ALL_ROWS) -> Batch:
        """The `batch_size` sequences of the global training batch of `step`, packed.

        Args:
          step, batch_size: as for `PairExamples.batch`.
          rows: of the unpacked batch, the parts of it that some devices take; the rows that come
            back are the same parts of the packed one.

        Returns:
          input_ids, token_type_ids: int32 [R, L];
          segment_ids: int32 [R, L], 1, 2, ... for the sequences of a row, 0 where there is none;
          position_ids: int32 [R, L], from 0 in each sequence;
          masked_lm_positions (of the row), masked_lm_ids: int32 [R, P];
          masked_lm_weights: float32 [R, P], 1 a prediction and 0 padding;
          and with next-sentence prediction cls_positions (of the row), next_sentence_labels:
          int32 [R, N]; next_sentence_weights: float32 [R, N], 1 a sequence and 0 padding.
        """
        cuts = self._examples.cut(step, batch_size)
        row, slot = lay_out(cuts.lengths.tolist(), self._seq_len)
        count = row_count(int(row.max()) + 1, batch_size, self._multiple)
        # Both batches are cut into equal parts: row r stands in the part of row r B / R of B.
        alike = np.arange(count) * batch_size // count
        own = np.isin(alike, np.arange(batch_size)[rows])
        here = np.flatnonzero(own[row])
        own_row = (np.cumsum(own) - 1)[row[here]]
        return self._pack(
            self._examples.read(cuts[here]),
            cuts.lengths[here],
            own_row,
            slot[here],
            int(own.sum()),
        )

    def _pack(
        self, batch: Batch, lengths: np.ndarray, row: np.ndarray, slot: np.ndarray, rows: int
    ) -> Batch:
        """Sequences of `lengths`, each at its `row` and `slot`, in so many rows."""
        length = self._seq_len
        start = starts(lengths, row, slot, rows)
        within = counted(lengths)
        source = within + np.repeat(np.arange(len(lengths)) * length, lengths)
        places = within + np.repeat(row * length + start, lengths)

        def tokens(values: np.ndarray, fill: int = 0) -> np.ndarray:
            return _placed(values, places, (rows, length), fill)

        packed = {
            "input_ids": tokens(batch["input_ids"].ravel()[source], self._pad_id),
            "token_type_ids": tokens(batch["token_type_ids"].ravel()[source]),
            "segment_ids": tokens(np.repeat(slot + 1, lengths).astype(np.int32)),
            "position_ids": tokens(within.astype(np.int32)),
        }

        real = batch["masked_lm_weights"] > 0
        counts = real.sum(axis=1)
        sequence, number = np.nonzero(real)
        shape = (rows, self._predictions)
        predictions = (row * shape[1] + starts(counts, row, slot, rows))[sequence] + number
        positions = batch["masked_lm_positions"][real] + start[sequence]
        packed["masked_lm_positions"] = _placed(positions.astype(np.int32), predictions, shape)
        for name in ("masked_lm_ids", "masked_lm_weights"):
            packed[name] = _placed(batch[name][real], predictions, shape)

        if "next_sentence_labels" in batch:
            shape = (rows, SEQUENCES_A_ROW)
            slots = row * shape[1] + slot
            packed["cls_positions"] = _placed(start.astype(np.int32), slots, shape)
            for name in ("next_sentence_labels", "next_sentence_weights"):
                packed[name] = _placed(batch[name], slots, shape)
        return packed


def lay_out(
    lengths: Sequence[int], seq_len: int, most: int = SEQUENCES_A_ROW
) -> tuple[np.ndarray, np.ndarray]:
    """Best fit, the longest first: each sequence goes where it leaves the least room.

    The same lengths give the same lay-out.

    Args:
      lengths: of the B sequences, each at most `seq_len`.
      seq_len: of a row.
      most: sequences that share a row.

    Returns:
      The row of each sequence and its slot there, both from 0 without a gap: int64 [B] each.
    """
    row, slot = np.zeros((2, len(lengths)), np.int64)
    used: list[int] = []  # slots of each row
    open_rows: list[tuple[int, int]] = []  # ascending: room that is left, and where
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        fitting = bisect_left(open_rows, (lengths[index], 0))
        if fitting < len(open_rows):
            room, chosen = open_rows.pop(fitting)
        else:
            room, chosen = seq_len, len(used)
            used.append(0)
        row[index], slot[index] = chosen, used[chosen]
        used[chosen] += 1
        if used[chosen] < most:
            insort(open_rows, (room - lengths[index], chosen))
    return row, slot


def row_count(needed: int, batch_size: int, multiple: int) -> int:
    """Rows of a packed batch: `needed` rounded up, so that few programs are compiled.

    The rows that batches of B sequences need scatter by a deviation of about 0.4 sqrt(B) (English
    text at 512), so that steps of sqrt(B) leave two or three numbers, and half a step of padding.

    Args:
      needed: rows that the lay-out takes.
      batch_size: sequences of the batch, a multiple of `multiple`; there are never more rows.
      multiple: of which the rows must be one.
    """
    step = -(-math.isqrt(batch_size) // multiple) * multiple
    return min(batch_size, -(-needed // step) * step)


def counted(lengths: np.ndarray) -> np.ndarray:
    """0, 1, ... for the pieces of each sequence, one after the other; int64 [their sum]."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def starts(sizes: np.ndarray, row: np.ndarray, slot: np.ndarray, rows: int) -> np.ndarray:
    """The sum of the sizes in the slots before each sequence's, of its row; int64 [B]."""
    table = np.zeros((rows, slot.max(initial=0) + 1), np.int64)
    table[row, slot] = sizes
    return (np.cumsum(table, axis=1) - table)[row, slot]


def _placed(
    values: np.ndarray, places: np.ndarray, shape: tuple[int, int], fill: int = 0
) -> np.ndarray:
    """An array of `shape` with `values` at `places` of it flattened, and `fill` elsewhere."""
    array = np.full(shape, fill, values.dtype)
    array.ravel()[places] = values
    return array
