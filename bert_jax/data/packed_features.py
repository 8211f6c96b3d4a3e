"""Fine-tuning's sequences laid into fewer rows, several in one; see `bert_jax.models.packed`."""

import numpy as np

from bert_jax.data.packing import counted, lay_out, starts


def piece_places(
    lengths: np.ndarray, padded: int, row_length: int, parts: int, accumulate: int
) -> np.ndarray:
    """Where the pieces of a batch stand in the rows that the encoder computes.

    Sequences share rows with those of the same device and micro-batch alone.

    Args:
      lengths: int [B] or [B, choices], of the sequences, each at most `row_length`; 0 where a batch
        has no example.
      padded: L, what each is padded to in the batch.
      row_length: M, pieces of a row.
      parts: that the batch is cut into, one after the other.
      accumulate: micro-batches of a part; micro-batch i has its sequences i, i + accumulate, ...

    Returns:
      `places`, int32 [parts accumulate, R, M].
    """
    choices = lengths.size // len(lengths)
    split = lengths.reshape(parts, -1, accumulate, choices).swapaxes(1, 2)
    groups = split.reshape(parts * accumulate, -1)
    laid_out = [lay_out(group.tolist(), row_length, most=row_length) for group in groups]
    rows = computed_rows(max(int(row.max()) for row, _ in laid_out) + 1)
    places = np.full((len(groups), rows * row_length), groups.shape[1] * padded, np.int32)
    for of_group, group, (row, slot) in zip(places, groups, laid_out, strict=True):
        within = counted(group)
        start = row * row_length + starts(group, row, slot, rows)
        sequence = np.arange(len(group)) * padded
        of_group[np.repeat(start, group) + within] = np.repeat(sequence, group) + within
    return places.reshape(len(groups), rows, row_length)


def computed_rows(needed: int) -> int:
    """The rows to compute: at most an eighth more than are needed, so that programs are few."""
    step = max(1, 1 << needed.bit_length() >> 4)
    return -(-needed // step) * step
