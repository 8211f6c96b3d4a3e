"""Tokens a second of the input pipeline, beside NumPy masking alone in the same run.

    python -m benchmarks.input_pipeline [DIRECTORY]

DIRECTORY holds token shards; without one, random documents stand in. "one thread" builds batches
in the calling thread, "tf.data" through `train_dataset` with two workers. The reference only pads
and masks lists of ids that were cut before the clock started, with NumPy's own generator: no
pairs, no truncation, no exact counts.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.batches import PREDICTIONS, VOCAB, random_examples
from bert_jax.config import DataConfig
from bert_jax.data.pipeline import open_examples, train_dataset
from bert_jax.data.tokenization import load_tokenizer

BATCH, STEPS = 256, 60


def pad_and_mask(rows: list[list[int]], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pad, then mask 15 % of what is not special, 80/10/10; labels are -100 elsewhere."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, pieces in zip(ids, rows, strict=True):
        row[: len(pieces)] = pieces
    special = ids < 5
    chosen = (rng.random(ids.shape) < 0.15) & ~special
    labels = np.where(chosen, ids, -100)
    masked = chosen & (rng.random(ids.shape) < 0.8)
    ids[masked] = 4
    replaced = chosen & ~masked & (rng.random(ids.shape) < 0.5)
    ids[replaced] = rng.integers(0, VOCAB, replaced.sum())
    return ids, labels


def best_seconds(work: Callable[[int], object]) -> float:
    """The fastest of `STEPS` calls, by which a shared machine disturbs least."""
    work(0)
    times = []
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        work(step)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    print("length  words   one thread      tf.data  reference   one thread / reference")
    for seq_len, max_predictions in PREDICTIONS.items():
        for whole_word in (False, True):
            data = DataConfig(whole_word=whole_word)
            if directory is None:
                examples = random_examples(seq_len, data)
            else:
                examples = open_examples(
                    directory,
                    "train",
                    load_tokenizer(directory / "tokenizer"),
                    data,
                    seq_len=seq_len,
                    max_predictions=max_predictions,
                    seed=0,
                )
            alone = best_seconds(lambda step, e=examples: e.batch(step, BATCH))
            batch = examples.batch(0, BATCH)
            rows = [ids[ids > 0].tolist() for ids in batch["input_ids"]]
            rng = np.random.default_rng(0)
            peer = best_seconds(lambda _, r=rows, g=rng: pad_and_mask(r, g))
            batches = train_dataset(examples, 0, 5 * STEPS, BATCH)
            next(batches)
            start = time.perf_counter()
            count = sum(1 for _ in batches)
            ahead = (time.perf_counter() - start) / count
            tokens = BATCH * seq_len / 1e6
            print(
                f"{seq_len:6}  {'whole' if whole_word else 'piece'}   {tokens / alone:6.1f} M/s"
                f"   {tokens / ahead:6.1f} M/s   {tokens / peer:4.1f} M/s   {peer / alone:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
