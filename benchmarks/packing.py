"""What packing gains: the share of real tokens in a row, and the time of a step over it.

    python -m benchmarks.packing DIRECTORY [SIZE]

DIRECTORY holds token shards; SIZE is mini by default. The same sequences, packed and not, take
turns of several steps in one process, in bfloat16 at length 512, so that the ratio of their times
is that of real tokens a second. Several, for packed steps differ in their rows as those of a run
do: the first step after one of another shape takes longer.
"""

import argparse
import itertools
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.batches import PREDICTIONS
from benchmarks.step_jax import Trainer
from bert_jax.config import Config, Phase, model_size
from bert_jax.data.packing import PackedExamples
from bert_jax.data.pipeline import Batch, PairExamples, open_examples
from bert_jax.data.tokenization import Tokenizer, load_tokenizer

ROUNDS, STEPS = 5, 6


def examples(
    directory: Path, tokenizer: Tokenizer, config: Config, phase: Phase
) -> tuple[PairExamples, PackedExamples]:
    """The examples of a phase, unpacked and packed."""
    unpacked = open_examples(
        directory,
        "train",
        tokenizer,
        config.data,
        seq_len=phase.seq_len,
        max_predictions=phase.max_predictions,
        seed=0,
    )
    packed = PackedExamples(unpacked, phase, config.data, pad_id=tokenizer.pad_id, multiple=1)
    return unpacked, packed


def print_shares(directory: Path, tokenizer: Tokenizer, config: Config) -> None:
    """Real tokens of all positions, over 40 batches of 256 sequences."""
    for seq_len, max_predictions in PREDICTIONS.items():
        phase = Phase(seq_len=seq_len, batch_size=256, max_predictions=max_predictions)
        unpacked, packed = examples(directory, tokenizer, config, phase)
        real = sum(unpacked.cut(step, 256).lengths.sum() for step in range(40))
        rows = [len(packed.batch(step, 256)["input_ids"]) for step in range(40)]
        before, after = real / (40 * 256 * seq_len), real / (sum(rows) * seq_len)
        numbers = dict(zip(*(column.tolist() for column in np.unique_counts(rows)), strict=True))
        print(f"length {seq_len}: real {before:.1%}, packed {after:.1%}; steps by rows: {numbers}")


def seconds(trainer: Trainer, batches: list[Batch]) -> float:
    """Of steps over batches that are on the device already, after one that is not counted."""
    placed = [trainer.place(batch) for batch in batches]
    jax.block_until_ready(trainer.step(placed[-1]))
    start = time.perf_counter()
    jax.block_until_ready([trainer.step(batch) for batch in placed])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="of token shards")
    parser.add_argument("size", nargs="?", default="mini", metavar="SIZE", help="mini by default")
    arguments = parser.parse_args()
    directory, size = arguments.directory, arguments.size
    tokenizer = load_tokenizer(directory / "tokenizer")
    config = Config(model=model_size(size))
    config.model.dtype = "bfloat16"
    config.model.vocab_size = tokenizer.vocab_size
    config.data.packing = True
    print_shares(directory, tokenizer, config)

    phase = Phase(seq_len=512, batch_size=32, max_predictions=PREDICTIONS[512])
    trainer, ratios, warm = Trainer(config), [], set()
    sources = examples(directory, tokenizer, config, phase)
    for first in range(0, ROUNDS * STEPS, STEPS):
        both = [[each.batch(first + i, 32) for i in range(STEPS)] for each in sources]
        for batch in itertools.chain(*both):
            if batch["input_ids"].shape not in warm:  # compiled
                seconds(trainer, [batch])
                warm.add(batch["input_ids"].shape)
        unpacked, packed = (seconds(trainer, batches) / STEPS for batches in both)
        ratios.append(unpacked / packed)
        rows = ", ".join(str(len(batch["input_ids"])) for batch in both[1])
        print(
            f"{size}, 32 sequences in {rows} rows: a step {1e3 * unpacked:.0f} ms "
            f"unpacked, {1e3 * packed:.0f} packed, {ratios[-1]:.2f} times the real tokens a second",
            flush=True,
        )
    print(f"median {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
