"""Examples from documents in which every token is another id: what stands where is seen."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.pairs import open_plan
from bert_jax.data.pipeline import Batch, PairExamples
from bert_jax.data.shards import Shard, build_shard

PAD, CLS, SEP, MASK, FIRST = 0, 2, 3, 4, 5
Document = list[np.ndarray]


@dataclass
class Pieces:
    vocab_size: int
    starts_word: np.ndarray
    pad_id: int = PAD
    cls_id: int = CLS
    sep_id: int = SEP
    mask_id: int = MASK


def make_documents(count: int, seed: int) -> list[Document]:
    """Documents in which every token is another id, so that an id says where it stood."""
    rng, following, documents = np.random.default_rng(seed), FIRST, []
    for _ in range(count):
        document = []
        for _ in range(rng.integers(1, 40)):
            length = int(rng.integers(1, 40))
            document.append(np.arange(following, following + length))
            following += length
        documents.append(document)
    return documents


def vocab_size(documents: list[Document]) -> int:
    return int(documents[-1][-1][-1]) + 1


def make_shards(documents: list[Document], count: int) -> list[Shard]:
    parts = np.array_split(np.arange(len(documents)), count)
    return [build_shard([documents[i] for i in part], vocab_size(documents)) for part in parts]


def make_examples(
    directory: Path,
    documents: list[Document],
    data: DataConfig,
    *,
    seq_len: int = 64,
    max_predictions: int = 10,
    shards: int = 2,
    seed: int = 0,
) -> PairExamples:
    size = vocab_size(documents)
    mapped = make_shards(documents, shards)
    plan = open_plan(directory, f"{len(documents)} {shards}", mapped, data, seq_len, seed)
    pieces = Pieces(size, np.arange(size) % 4 > 0)
    return PairExamples(
        mapped,
        plan,
        pieces,
        data,
        seq_len=seq_len,
        max_predictions=max_predictions,
        seed=seed,
    )


def unmasked(batch: Batch) -> np.ndarray:
    """`input_ids` with the predicted pieces put back."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return ids


def epoch(examples: PairExamples, number: int, duplicates: int) -> Batch:
    """All examples of one epoch: rows of one batch that is long enough to hold them."""
    cycle, variant = divmod(number, duplicates)
    first = cycle * int(examples._ends[-1]) + int(examples._counts[:variant].sum())
    end = first + int(examples._counts[variant])
    return examples.batch(0, end, slice(first, end))
