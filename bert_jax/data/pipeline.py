"""Batches: any step's batch from the step alone, in O(1), each host building only its rows."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.masking import Vocabulary
from bert_jax.data.pairs import Plan
from bert_jax.data.shards import Shard

Batch = dict[str, np.ndarray]
ALL_ROWS = slice(None)


class PairExamples:
    """The examples of one split at one sequence length; an example follows from its index."""

    def __init__(
        self,
        shards: list[Shard],
        plan: Plan,
        vocabulary: Vocabulary,
        data: DataConfig,
        *,
        seq_len: int,
        max_predictions: int,
        seed: int,
    ) -> None: ...

    def batch(self, step: int, batch_size: int, rows: slice = ALL_ROWS) -> Batch:
        """`rows` of the training batch of `step` (of this phase)."""
        raise NotImplementedError

    def evaluation_batches(
        self, batch_size: int, max_examples: int, rows: slice = ALL_ROWS
    ) -> Iterator[Batch]:
        """`rows` of each batch of epoch 0, the last padded with rows of zero weight."""
        raise NotImplementedError


def open_examples(
    directory: str | Path,
    split: str,
    vocabulary: Vocabulary,
    data: DataConfig,
    *,
    seq_len: int,
    max_predictions: int,
    seed: int,
) -> PairExamples:
    """The examples of the shards of `directory`; "heldout" has one variant of the plan.

    Raises:
      UserError: shards missing or damaged, too few documents, directory that cannot be written.
    """
    raise NotImplementedError


def train_dataset(
    examples: PairExamples,
    first_step: int,
    last_step: int,
    batch_size: int,
    rows: slice = ALL_ROWS,
    workers: int = 2,
) -> Iterator[Batch]:
    """Batches of steps first_step .. last_step - 1 in order, built ahead by tf.data."""
    raise NotImplementedError


def majority_baseline(batches: Iterable[Batch]) -> dict[str, float]:
    """Accuracies of answering always the same: `mlm_accuracy` and, with NSP, `nsp_accuracy`."""
    raise NotImplementedError
