"""Batches of sequences of about the same length, so that little padding is computed.

A batch is padded to one of a few lengths, so that few programs are compiled. Which examples are in
which batch is a function of (seed, epoch) alone.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_jax.data.keyed import key, words

# Lengths to pad to: at most a third more than needed, from 16 on.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
# Batches that are sorted together: within them order follows length, across them chance.
_SORTED_TOGETHER = 50
# Consumers of randomness, as in `bert_jax.data.keyed`.
_ORDER, _WITHIN = 0x0F1E, 0x0F1F


def padded_length(length: int, sizes: Sequence[int] = LENGTHS) -> int:
    """The length to pad to: the next of `sizes`, or of multiples of 128 beyond."""
    return next((size for size in sizes if size >= length), -(-length // 128) * 128)


def cheapest_sizes(
    lengths: np.ndarray, batch_size: int, passes: int, program: int
) -> tuple[int, ...]:
    """Those of LENGTHS that a run is done soonest with, compilation included.

    The more there are, the less padding is computed, and the more programs are compiled. It is a
    function of all lengths, not of batches, so that runs of other seeds have the same programs.

    Args:
      lengths: int [examples], of their sequences.
      batch_size: examples of a batch.
      passes: times that a position of each is computed.
      program: positions that are computed in the time that a program for one size is compiled in.

    Returns:
      Ascending; the last is the longest sequence's.
    """
    ordered = np.sort(lengths).tolist()
    starts = range(0, len(ordered), batch_size)
    padded = [padded_length(ordered[start : start + batch_size][-1]) for start in starts]
    sizes, batches = np.unique(padded, return_counts=True)
    rows = batches * batch_size * passes
    # For each number of the shortest sizes, what they cost at least, and by which that is.
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    for end, size in enumerate(sizes.tolist(), start=1):
        ways = (
            (cost + program + size * int(rows[start:end].sum()), (*chosen, size))
            for start, (cost, chosen) in enumerate(best)
        )
        best.append(min(ways))
    return best[-1][1]


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The examples of each batch of an epoch: each example once, the last batch maybe smaller.

    Args:
      lengths: int [examples], of their sequences.
      seed, epoch: what the order is a function of.
    """
    order = _shuffled(len(lengths), seed, epoch, _ORDER)
    stretch = batch_size * _SORTED_TOGETHER
    batches = []
    for start in range(0, len(order), stretch):
        part = order[start : start + stretch]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    return [batches[i] for i in _shuffled(len(batches), seed, epoch, _WITHIN)]


def batches_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[np.ndarray]:
    """Batches for prediction: examples in the order of their lengths, the longest first.

    What needs most memory and the longest compilation comes first.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    yield from (order[i : i + batch_size] for i in range(0, len(order), batch_size))


def collate(
    features: Sequence[Mapping[str, np.ndarray]],
    batch_size: int,
    pad_id: int,
    longest: int | None = None,
    *,
    sizes: Sequence[int] = LENGTHS,
) -> dict[str, np.ndarray]:
    """Features as a batch: padded to one length, and with rows of weight 0 to `batch_size`.

    Args:
      features: at least one; input_ids, token_type_ids, attention_mask and arrays whose names begin
        with "token_" have the sequence as last axis, all others one shape.
      batch_size: rows of the batch.
      pad_id: pads input_ids; everything else is padded with 0.
      longest: sequence that the model takes; no feature is longer, and none is padded beyond.
      sizes: lengths to pad to, ascending.
    """
    length = padded_length(max(feature["input_ids"].shape[-1] for feature in features), sizes)
    length = min(length, longest or length)
    batch = {}
    for name, first in features[0].items():
        ragged = is_sequence(name)
        shape = (*first.shape[:-1], length) if ragged else first.shape
        fill = pad_id if name == "input_ids" else 0
        array = np.full((batch_size, *shape), fill, first.dtype)
        for row, feature in enumerate(features):
            value = feature[name]
            array[(row, ..., slice(value.shape[-1])) if ragged else row] = value
        batch[name] = array
    return batch


def is_sequence(name: str) -> bool:
    """Whether the last axis of a feature's array is the sequence."""
    return name in ("input_ids", "attention_mask") or name.startswith("token_")


def _shuffled(count: int, seed: int, epoch: int, consumer: int) -> np.ndarray:
    draws = words(key(seed, consumer, epoch), count).ravel()
    return np.argsort(draws, kind="stable")
