"""Suite `cpu` and `gpu`: a pretraining step, forward, backward and optimizer, beside PyTorch's.

Dropout is on, lengths are real. The peers are `transformers` as it comes, its head on every
position, and the same model with the head on the predicted positions alone, eager and compiled, in
float32 and bfloat16 (autocast). Ours also takes the same sequences packed, where they fit into
fewer rows: real tokens are what counts. Products alone are of as many FLOPs as the unpacked step:
the bound of whatever computes padding.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.batches import phase_of, read_batch, write_batch, write_packed_batch
from benchmarks.contest import CONTESTS, DTYPES, Contender, in_jax
from benchmarks.machine import gpus
from benchmarks.tables import record
from bert_jax import allocator
from bert_jax.config import model_size
from bert_jax.training.flops import peak_flops, step_flops

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
# As many as leave the peer that takes the most memory, its head on all positions, within 80 GB.
GPU_BATCHES = {("base", 128): 512, ("large", 512): 64, ("base", 512): 128, ("large", 128): 256}
BATCHES = {"cpu": CPU_BATCHES, "cuda": GPU_BATCHES}
QUICK_BATCHES = {"cpu": {("tiny", 512): 3}, "cuda": dict(itertools.islice(GPU_BATCHES.items(), 2))}
DTYPES_ON = {"cpu": DTYPES, "cuda": ("bfloat16",)}
# Heads, dtypes and modes of PyTorch. A mode that tries out a GPU's kernels is ready after minutes.
HEADS, COMPILED = ("masked", "full"), ("eager", "default")
PEERS = {
    "cpu": [*itertools.product(HEADS, DTYPES, COMPILED)],
    "cuda": [*itertools.product(HEADS, ("bfloat16",), (*COMPILED, "max-autotune"))],
}
QUICK_PEERS = {
    "cpu": [("full", "float32", "eager"), ("masked", "bfloat16", "eager")],
    "cuda": [*itertools.product(HEADS, ("bfloat16",), COMPILED)],
}


def mode_name(mode: str) -> str:
    """What a mode of `benchmarks.step_torch` is called in a table."""
    return "compiled" if mode == "default" else mode


def peers(settings: dict[str, Any], device: str, quick: bool) -> list[Contender]:
    """PyTorch as it comes; then the fair one with its allocator tuned, where that is the CPU's."""
    return [
        Contender(
            f"PyTorch, {head} head, {mode_name(mode)}, {dtype}",
            "benchmarks.step_torch",
            settings | {"head": head, "dtype": dtype, "mode": mode, "device": device},
            allocator.SETTINGS if head == "masked" and device == "cpu" else {},
        )
        for head, dtype, mode in (QUICK_PEERS if quick else PEERS)[device]
    ]


def contenders(
    settings: dict[str, Any], packed: Path | None, device: str, quick: bool
) -> tuple[list[Contender], list[Contender]]:
    """Ours and the others, by a size and a batch, and by the same sequences packed if there are."""
    dtypes = DTYPES_ON[device]
    own = in_jax("ours", "benchmarks.step_jax", settings, dtypes, device)
    if packed:
        fewer_rows = settings | {"batch": str(packed)}
        own += in_jax("ours, packed", "benchmarks.step_jax", fewer_rows, dtypes, device)
    products = in_jax("products alone", "benchmarks.products_jax", settings, dtypes, device)
    return own, [*peers(settings, device, quick), *products]


def utilization(contender: Contender, seconds: float) -> float | None:
    """MFU, of what ours computes of these rows; None where the GPU's peak is not known."""
    peak = peak_flops(next(iter(gpus("name")), ""))
    size, batch = contender.settings["size"], read_batch(contender.settings["batch"])
    return peak and step_flops(model_size(size), phase_of(batch)) / seconds / peak


def run(device: str, quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each size and length; on a GPU anew with each contender that is measured."""
    for (size, seq_len), batch_size in (QUICK_BATCHES if quick else BATCHES)[device].items():
        print(f"{size} at {seq_len}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            batch, packed = Path(folder) / "batch.npz", Path(folder) / "packed.npz"
            tokens = write_batch(batch, seq_len, batch_size)
            fewer = write_packed_batch(packed, seq_len, batch_size) < batch_size
            settings = {"size": size, "batch": str(batch)}
            own, others = contenders(settings, packed if fewer else None, device, quick)
            results: list[dict[str, Any]] = []
            case = {"name": f"{size} at {seq_len}, batch {batch_size}", "tokens": tokens}
            measured = CONTESTS[device](own, others, rounds=2 if quick else 5)
            for contender, result in zip((*own, *others), measured, strict=True):
                results.append(record(result))
                if device == "cuda":
                    results[-1]["mfu"] = utilization(contender, results[-1]["seconds"][0])
                yield case | {"results": results}
