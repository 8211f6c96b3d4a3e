"""Suite `inference`: pooled outputs of sequences of mixed lengths, of equal ones, and of one alone.

Ours goes through what `predict` goes through (`tasks/inference.py`): batches of similar lengths.
The peer takes the sequences as they come, a batch padded to its longest, as pipelines do; eager,
for a program is compiled anew for each length.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.contest import DTYPES, Contender, contest, in_jax
from benchmarks.tables import record
from bert_jax import allocator

BATCH = 32


def lengths(kind: str, count: int) -> list[int]:
    """Pieces of each sequence: mixed, like sentences of the web (median 24), or all 128."""
    if kind == "equal":
        return [128] * count
    drawn = np.random.default_rng(0).lognormal(np.log(24), 0.8, count)
    return np.clip(drawn, 4, 256).astype(int).tolist()


def run(quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each size and kind of work."""
    kinds = {"mixed": 64} if quick else {"mixed": 512, "equal": 64, "alone": 1}
    for size in ("tiny",) if quick else ("mini", "base"):
        for kind, count in kinds.items():
            settings = {
                "size": size,
                "lengths": lengths(kind, count),
                "batch_size": min(BATCH, count),
            }
            print(f"{size}, {kind}", flush=True)
            peers = [
                Contender(
                    f"PyTorch, {dtype}",
                    "benchmarks.inference_torch",
                    settings | {"dtype": dtype},
                    allocator.SETTINGS,
                )
                for dtype in DTYPES
            ]
            own = in_jax("ours", "benchmarks.inference_jax", settings, DTYPES, "cpu")
            results = contest(own, peers, 2 if quick else 5)
            yield {
                "name": f"{size}, {count} of {kind} lengths",
                "sequences": count,
                "results": [record(result) for result in results],
            }
