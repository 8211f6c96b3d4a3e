"""Batches as pretraining makes them, of real lengths, in a file that any contender can read."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig, Phase
from bert_jax.data.packing import PackedExamples
from bert_jax.data.pairs import open_plan
from bert_jax.data.pipeline import PairExamples
from bert_jax.data.shards import build_shard

VOCAB = 30522
PREDICTIONS = {128: 20, 512: 76}  # the paper's, configs/base.py


@dataclass
class Pieces:
    """A vocabulary in which every fifth piece continues a word."""

    vocab_size: int = VOCAB
    pad_id: int = 0
    cls_id: int = 2
    sep_id: int = 3
    mask_id: int = 4
    starts_word: np.ndarray = field(default_factory=lambda: np.arange(VOCAB) % 5 > 0)


PIECES = Pieces()


def random_documents() -> list[list[np.ndarray]]:
    """1 to 60 sentences of 3 to 50 pieces each, about 3 million in all."""
    rng = np.random.default_rng(0)
    return [
        [rng.integers(5, VOCAB, rng.integers(3, 50)) for _ in range(rng.integers(1, 60))]
        for _ in range(4000)
    ]


def random_examples(seq_len: int, data: DataConfig) -> PairExamples:
    """Examples of `random_documents`."""
    shards = [build_shard(random_documents(), VOCAB)]
    with tempfile.TemporaryDirectory() as directory:
        plan = open_plan(directory, "", shards, data, seq_len, 0)
    return PairExamples(
        shards,
        plan,
        PIECES,
        data,
        seq_len=seq_len,
        max_predictions=PREDICTIONS[seq_len],
        seed=0,
    )


def write_batch(file: Path, seq_len: int, batch_size: int) -> int:
    """Write one batch as `.npz`, by the names of the pipeline; the number of its real tokens."""
    batch = random_examples(seq_len, DataConfig()).batch(0, batch_size)
    np.savez(file, allow_pickle=False, **batch)
    return int(batch["attention_mask"].sum())


def write_packed_batch(file: Path, seq_len: int, batch_size: int) -> int:
    """Write the sequences of `write_batch`'s batch packed; the number of rows they take."""
    data = DataConfig(packing=True)
    phase = Phase(seq_len=seq_len, max_predictions=PREDICTIONS[seq_len])
    examples = random_examples(seq_len, data)
    packed = PackedExamples(examples, phase, data, pad_id=PIECES.pad_id, multiple=1)
    batch = packed.batch(0, batch_size)
    np.savez(file, allow_pickle=False, **batch)
    return len(batch["input_ids"])


def phase_of(batch: Mapping[str, np.ndarray]) -> Phase:
    """The phase that a batch is of."""
    rows, seq_len = batch["input_ids"].shape
    return Phase(seq_len=seq_len, batch_size=rows, steps=1000, max_predictions=PREDICTIONS[seq_len])


def read_batch(file: str) -> dict[str, np.ndarray]:
    """What `write_batch` wrote."""
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)
