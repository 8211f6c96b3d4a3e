"""Suite `inference`: pooled outputs of sequences of mixed lengths, of equal ones, and of one alone.

Ours goes through what `predict` goes through (`tasks/inference.py`): batches of similar lengths.
The peer takes the sequences as they come, a batch padded to its longest, as pipelines do; and once
more sorted by length where they are mixed, compiled where they are of one length.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.contest import CONTESTS, DTYPES, Contender, in_jax
from benchmarks.tables import record
from bert_jax import allocator

SIZES = {"cpu": ("mini", "base"), "cuda": ("base", "large")}
QUICK_SIZES = {"cpu": ("tiny",), "cuda": ("base",)}
# How many sequences; and how many of them are a batch.
COUNTS = {
    "cpu": {"mixed": 512, "equal": 64, "alone": 1},
    "cuda": {"mixed": 4096, "equal": 1024, "alone": 1},
}
QUICK_COUNTS = {"cpu": {"mixed": 64}, "cuda": COUNTS["cuda"]}
BATCH = {"cpu": 32, "cuda": 128}


def lengths(kind: str, count: int) -> list[int]:
    """Pieces of each sequence: mixed, like sentences of the web (median 24), or all 128."""
    if kind == "equal":
        return [128] * count
    drawn = np.random.default_rng(0).lognormal(np.log(24), 0.8, count)
    return np.clip(drawn, 4, 256).astype(int).tolist()


def ways(lengths: list[int]) -> dict[str, dict[str, Any]]:
    """The peer's settings, by how it is called: as it comes, and what a user may do for it."""
    if len(set(lengths)) > 1:
        return {"": {}, ", sorted": {"lengths": sorted(lengths)}}
    return {"": {}, ", compiled": {"mode": "default"}}


def run(device: str, quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each size and kind of work; on a GPU anew with each contender."""
    counts = (QUICK_COUNTS if quick else COUNTS)[device]
    for size in (QUICK_SIZES if quick else SIZES)[device]:
        for kind, count in counts.items():
            settings: dict[str, Any] = {
                "size": size,
                "lengths": lengths(kind, count),
                "batch_size": min(BATCH[device], count),
            }
            print(f"{size}, {kind}", flush=True)
            peers = [
                Contender(
                    f"PyTorch{way}, {dtype}",
                    "benchmarks.inference_torch",
                    settings | {"dtype": dtype, "device": device} | more,
                    allocator.SETTINGS,
                )
                for way, more in ways(settings["lengths"]).items()
                for dtype in DTYPES
            ]
            own = in_jax("ours", "benchmarks.inference_jax", settings, DTYPES, device)
            results: list[dict[str, Any]] = []
            for result in CONTESTS[device](own, peers, rounds=2 if quick else 5):
                results.append(record(result))
                yield {
                    "name": f"{size}, {count} of {kind} lengths",
                    "sequences": count,
                    "results": results,
                }
