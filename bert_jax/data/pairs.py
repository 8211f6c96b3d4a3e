"""The plan: which sentences make which example, for every epoch, before any batch is built.

One variant of the plan is one run of the original's `create_instances_from_document`
(create_pretraining_data.py) over all documents: the sentences of a document fill up a target
length and are split into A and B; half of the time B will come from another document, and the
sentences it displaces are used again. A variant sees each sentence of each document once (a
displaced one comes again). Randomness is keyed by document, so that a plan is the same wherever
it is made; it is kept beside the shards, and mapped into memory.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.keyed import below, chance, key, words
from bert_jax.data.shards import Shard, checksum, replace_file
from bert_jax.errors import UserError

# An example: its first sentence and how many make A and B (0: B is random), in one shard.
RECORD = np.dtype(
    [
        ("sentence", "<u4"),  # of the shard
        ("shard", "<u2"),
        ("target", "<u2"),  # pieces that A and B were to fill
        ("a", "<u2"),  # sentences
        ("b", "<u2"),
    ]
)
_VERSION = 1  # of the rules; part of the key, so that a plan of other rules is not used
_TARGET, _CHUNK = 1, 2  # consumers of a document's key


@dataclass(frozen=True)
class Plan:
    """The examples of all variants, one variant after the other."""

    records: np.ndarray  # RECORD [examples of all variants]
    counts: tuple[int, ...]  # examples of each variant


def max_pieces(seq_len: int, next_sentence: bool) -> int:
    """Pieces of text in an example: what [CLS] A [SEP] B [SEP], or [CLS] A [SEP], leaves."""
    return seq_len - 3 if next_sentence else seq_len - 2


def cut_documents(
    shards: Sequence[Shard], data: DataConfig, seq_len: int, seed: int, variant: int
) -> Iterator[np.ndarray]:
    """One variant of the plan: arrays of RECORD, in an order that is always the same."""
    raise NotImplementedError


def open_plan(
    directory: str | Path, shards: Sequence[Shard], data: DataConfig, seq_len: int, seed: int
) -> Plan:
    """Map the plan of these settings, made first where there is none, or none that is whole.

    Raises:
      UserError: too few documents, or `directory` cannot be written.
    """
    raise NotImplementedError
