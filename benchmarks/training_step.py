"""Suite `cpu` and `gpu`: a pretraining step, forward, backward and optimizer, beside PyTorch's.

Dropout is on, lengths are real. The peers are `transformers` as it comes, its head on every
position, and the same model with the head on the predicted positions alone, eager and compiled, in
float32 and bfloat16 (autocast). Ours also takes the same sequences packed, where they fit into
fewer rows: real tokens are what counts. Last come products alone, of as many FLOPs as the unpacked
step: the bound of whatever computes padding.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.batches import write_batch, write_packed_batch
from benchmarks.contest import DTYPES, Contender, contest, in_jax
from benchmarks.tables import record
from bert_jax import allocator

# Sequences a step, so that a step of the slowest takes some seconds on two cores.
CPU_BATCHES = {
    ("tiny", 128): 32,
    ("mini", 128): 32,
    ("small", 128): 16,
    ("base", 128): 8,
    ("tiny", 512): 8,
    ("mini", 512): 8,
    ("small", 512): 8,
    ("base", 512): 2,
}
QUICK_BATCHES = {("tiny", 512): 8}
GPU_BATCHES = {("base", 128): 256, ("base", 512): 64, ("large", 128): 128, ("large", 512): 32}


def peers(settings: dict[str, Any], device: str, quick: bool) -> Iterator[Contender]:
    """PyTorch as it comes; then the fair one with its allocator tuned, where that is the CPU's."""
    for head, dtype, compiled in itertools.product(("full", "masked"), DTYPES, (False, True)):
        if quick and (compiled or (head == "full") == (dtype == "bfloat16")):
            continue
        if device == "cuda" and dtype == "float32":
            continue
        tuned = allocator.SETTINGS if head == "masked" and device == "cpu" else {}
        mode = "compiled" if compiled else "eager"
        yield Contender(
            f"PyTorch, {head} head, {mode}, {dtype}",
            "benchmarks.step_torch",
            settings | {"head": head, "dtype": dtype, "compiled": compiled, "device": device},
            tuned,
        )


def run(device: str, quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each size and length."""
    batches = QUICK_BATCHES if quick else CPU_BATCHES if device == "cpu" else GPU_BATCHES
    rounds = 2 if quick else 5
    for (size, seq_len), batch_size in batches.items():
        print(f"{size} at {seq_len}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "batch.npz"
            tokens = write_batch(file, seq_len, batch_size)
            settings = {"size": size, "batch": str(file)}
            dtypes = DTYPES if device == "cpu" else DTYPES[1:]
            own = in_jax("ours", "benchmarks.step_jax", settings, dtypes, device)
            packed = Path(folder) / "packed.npz"
            if write_packed_batch(packed, seq_len, batch_size) < batch_size:
                fewer_rows = settings | {"batch": str(packed)}
                own += in_jax("ours, packed", "benchmarks.step_jax", fewer_rows, dtypes, device)
            others = [
                *peers(settings, device, quick),
                *in_jax("products alone", "benchmarks.products_jax", settings, dtypes, device),
            ]
            results = contest(own, others, rounds)
        yield {
            "name": f"{size} at {seq_len}, batch {batch_size}",
            "tokens": tokens,
            "results": [record(result) for result in results],
        }
