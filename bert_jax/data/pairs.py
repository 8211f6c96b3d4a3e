"""The plan: which sentences make which example, for every epoch, before any batch is built.

One variant of the plan is one run of the original's `create_instances_from_document`
(create_pretraining_data.py) over all documents: the sentences of a document fill up a target
length and are split into A and B; half of the time B will come from another document, and the
sentences it displaces are used again. A variant sees each sentence of each document once (a
displaced one comes again). Randomness is keyed by document, so that a plan is the same wherever
it is made; it is kept beside the shards, or for a user who may only read those in the user's
cache, and mapped into memory.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.keyed import below, chance, key, words
from bert_jax.data.shards import Shard, checksum, map_array, npy_header
from bert_jax.errors import UserError
from bert_jax.files import flush_to_disk
from bert_jax.user_cache import user_cache

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
_FACTS_BYTES = 2**20  # of the JSON beside a plan: far above any real one
_RECORDS = 2**20  # looked at together
_ABANDONED_SECONDS = 3600.0  # in which nothing was written to a file that is being written
_PLAN, _TARGET, _CHUNK = 1, 2, 3  # consumers of the seed, and of a document's key


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
    """One variant of the plan: arrays of RECORD, always the same and in the same order."""
    pieces = max_pieces(seq_len, data.next_sentence)
    variant_key = key(_PLAN, seed, seq_len, variant)
    first_document = 0
    for number, shard in enumerate(shards):
        bounds = shard.documents.astype(np.int64)
        documents = first_document + np.arange(len(bounds) - 1)
        first_document += len(documents)
        keys = key(variant_key, documents)
        uniform = words(key(keys, _TARGET), 2)
        short = chance(uniform[:, 0], data.short_seq_prob)
        targets = np.where(short, 2 + below(uniform[:, 1], pieces - 1), pieces)
        for chunk in _cut_shard(shard, bounds, targets, keys, data.next_sentence):
            chunk["shard"] = number
            yield chunk


def _cut_shard(
    shard: Shard, bounds: np.ndarray, targets: np.ndarray, keys: np.ndarray, next_sentence: bool
) -> Iterator[np.ndarray]:
    """The first chunk of every document, then the second of those that have one, and so on.

    Args:
      bounds: int64 [documents + 1], sentence offsets.
      targets: int64 [documents], pieces a chunk is filled to.
      keys: uint64 [documents].
    """
    offsets = np.asarray(shard.sentences)
    start, end, ordinal = bounds[:-1], bounds[1:], 0
    while len(start):
        # The sentence that reaches the target belongs to the chunk. uint32, as the offsets: a
        # search by another type would first convert them all.
        full = offsets[start] + targets.astype(np.uint32)
        count = np.minimum(np.searchsorted(offsets, full), end) - start
        uniform = words(key(keys, _CHUNK, ordinal), 2)
        if next_sentence:
            a = 1 + below(uniform[:, 0], np.maximum(count - 1, 1))
            random_b = (count == 1) | chance(uniform[:, 1], 0.5)
            used = np.where(random_b, a, count)
        else:
            a = used = count
        chunk = np.zeros(len(start), RECORD)
        chunk["sentence"], chunk["target"], chunk["a"], chunk["b"] = start, targets, a, used - a
        yield chunk
        start, ordinal = start + used, ordinal + 1
        more = start < end
        start, end, targets, keys = start[more], end[more], targets[more], keys[more]


def open_plan(
    directory: str | Path,
    fingerprint: str,
    shards: Sequence[Shard],
    data: DataConfig,
    seq_len: int,
    seed: int,
) -> Plan:
    """Map the plan of these settings, made first where there is none, or none that is whole.

    Args:
      directory: that of the shards; the plan stands under `pairs/`, there or in the user's cache.
      fingerprint: what the shards hold, in words that differ where they differ.
      shards: one split.
      data: `duplicates` is the number of variants.
      seq_len: pieces a sequence.
      seed: of the run.

    Raises:
      UserError: too few documents, or neither folder can be written.
    """
    documents = sum(len(shard.documents) - 1 for shard in shards)
    if documents < (2 if data.next_sentence else 1):
        raise UserError(
            f"{directory}: {documents} document, and next-sentence prediction needs two: add "
            "text, or set config.data.next_sentence=False"
            if documents
            else f"{directory}: no documents: add text, or change config.corpus.heldout_fraction"
        )
    settings = [_VERSION, fingerprint, seed, seq_len]
    settings += [data.duplicates, data.next_sentence, data.short_seq_prob]
    name = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
    path = Path(directory) / "pairs" / f"{name}.npy"
    plan = _read_plan(path, data.duplicates, shards)
    if plan is None and not _may_write(path.parent):
        path = user_cache() / "pairs" / path.name
        plan = _read_plan(path, data.duplicates, shards)
    _remove_abandoned(path.parent)
    if plan is None:
        try:
            _write_plan(path, shards, data, seq_len, seed)
        except OSError as error:
            raise UserError(
                f"{path.parent}: the plan of sentence pairs cannot be written there ({error}); "
                "make room, or copy the shards to where you may write"
            ) from None
        plan = _read_plan(path, data.duplicates, shards)
    if plan is None:
        raise UserError(f"{path}: damaged as soon as it was written; check the disk")
    return plan


def _may_write(folder: Path) -> bool:
    """Whether there can be files in a folder, which need not be there yet."""
    return os.access(folder if folder.exists() else folder.parent, os.W_OK)


def _write_plan(
    path: Path, shards: Sequence[Shard], data: DataConfig, seq_len: int, seed: int
) -> None:
    """Write the records, and last the counts and checksum that say they are complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = []
    with _whole_file(path) as file:
        file.write(npy_header(RECORD, 0))
        for variant in range(data.duplicates):
            count = 0
            for chunk in cut_documents(shards, data, seq_len, seed, variant):
                file.write(chunk.tobytes())
                count += len(chunk)
            counts.append(count)
        file.seek(0)
        file.write(npy_header(RECORD, sum(counts)))
    with _whole_file(path.with_suffix(".json")) as file:
        file.write(json.dumps({"counts": counts, "checksum": checksum(path)}).encode())


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when all is written, or not at all.

    Processes and hosts that share a disk may write the same bytes at once, so the temporary
    name is each one's own.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            flush_to_disk(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed have left of their plans, as large as those."""
    with contextlib.suppress(OSError):  # no folder yet, or one that may only be read
        for path in folder.glob("*.tmp"):
            if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                path.unlink()


def _read_plan(path: Path, variants: int, shards: Sequence[Shard]) -> Plan | None:
    """The plan at `path`, or None where it is absent, unfinished or damaged."""
    try:
        with open(path.with_suffix(".json"), "rb") as file:
            facts = json.loads(file.read(_FACTS_BYTES))
        if facts["checksum"] != checksum(path):
            return None
        counts = tuple(facts["counts"])
        if len(counts) != variants or not all(type(count) is int and count > 0 for count in counts):
            return None
        records = np.asarray(map_array(path, RECORD, sum(counts)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UserError):
        return None
    return Plan(records, counts) if _fits(records, shards) else None


def _fits(records: np.ndarray, shards: Sequence[Shard]) -> bool:
    """Whether every example has an A, and only sentences that its shard has."""
    sentences = np.array([len(shard.sentences) - 1 for shard in shards])
    for start in range(0, len(records), _RECORDS):
        part = records[start : start + _RECORDS]
        if part["shard"].max() >= len(shards) or part["a"].min() == 0:
            return False
        ends = part["sentence"].astype(np.int64) + part["a"] + part["b"]
        if np.any(ends > sentences[part["shard"]]):
            return False
    return True
