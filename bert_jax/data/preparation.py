"""The stages of `prepare`: raw text to clean text, a side for each document, ids into shards."""

import hashlib
import io
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bert_jax.data import shards
from bert_jax.data.corpus import Source
from bert_jax.data.documents import Counts
from bert_jax.data.heldout import signature
from bert_jax.data.shards import ShardEntry, ShardWriter, Split
from bert_jax.data.tokenization import Tokenizer
from bert_jax.data.units import (
    DROPPED,
    HELDOUT,
    TRAIN,
    EncodedUnit,
    EncodeTask,
    ReadTask,
    encode_unit,
    read_documents,
    read_unit,
)
from bert_jax.data.workers import ordered
from bert_jax.errors import UserError
from bert_jax.files import replace_file

# Text of a pair of shards. A piece is about four bytes of English and hardly ever less than one:
# 2**26 tokens a shard, and well below the 2**32 that an offset can count.
SHARD_TEXT_BYTES = 2**28
# More text than this teaches a vocabulary nothing: of a larger corpus, evenly spaced units.
VOCABULARY_TEXT_BYTES = 2**30
# Next-sentence prediction draws the second segment from another document of the same side.
FEWEST_DOCUMENTS = 2


@dataclass(slots=True)
class Workspace:
    """The files of a preparation under way, in `root`, and how long its stages took."""

    root: Path
    workers: int
    progress: bool
    seconds: dict[str, float]  # wall time by stage

    @property
    def done(self) -> Path:
        """What becomes the output."""
        return self.root / "done"

    @property
    def tokenizer(self) -> Path:
        return self.done / "tokenizer"

    @property
    def heldout_hashes(self) -> Path:
        return self.root / "heldout.npy"

    def text(self, unit: int) -> Path:
        return self.root / "text" / f"unit-{unit:06d}.txt"

    def group(self, group: int) -> Path:
        """What is known of a pair of shards; its presence says that they are complete."""
        return self.root / f"group-{group:05d}.json"

    def tell(self, message: str) -> None:
        if self.progress:
            print(message, file=sys.stderr)

    def bar(self, description: str, total: int) -> tqdm:
        return tqdm(
            total=total,
            desc=description,
            unit="B",
            unit_scale=True,
            disable=not self.progress,
            mininterval=0.2 if sys.stderr.isatty() else 30,
        )

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Inventory:
    """A corpus as read: 9 bytes a document and 8 a held-out sentence, but no text.

    Attributes:
      text_bytes: size of the clean text of each unit.
      starts: int64 [units + 1], the first document of each unit, and their number.
      hashes: uint64 [documents], of the content of each.
      heldout: bool [documents], whether the hash rule holds it out.
      signatures: uint64 [n], sorted hashes of long sentences of those.
      counts: what was mended or left out.
      inputs: digest of all raw text.
    """

    text_bytes: list[int]
    starts: np.ndarray
    hashes: np.ndarray
    heldout: np.ndarray
    signatures: np.ndarray
    counts: Counts
    inputs: str

    def documents(self, unit: int) -> slice:
        """Where the documents of a unit stand among all."""
        return slice(int(self.starts[unit]), int(self.starts[unit + 1]))


def read_corpus(
    space: Workspace, source: Source, heldout_fraction: float, pool: ProcessPoolExecutor
) -> Inventory:
    """Turn raw text into clean text, a file a unit, and take stock of it.

    Units that an earlier run finished are compared by their raw bytes and not cleaned again.
    """
    sizes, starts, counts, inputs = [], [0], Counter(), hashlib.blake2b(digest_size=16)
    no_hashes = np.zeros(0, np.uint64)
    hashes, heldout, signatures = [no_hashes], [np.zeros(0, bool)], [no_hashes]
    steps: deque[int] = deque()

    def tasks() -> Iterator[ReadTask]:
        for index, unit in enumerate(source.units()):
            steps.append(unit.progress)
            yield ReadTask(unit, source.documents, heldout_fraction, space.text(index))

    with space.bar("reading", source.total_bytes) as bar:
        for facts in ordered(pool, read_unit, tasks(), 2 * space.workers):
            sizes.append(facts.text_bytes)
            starts.append(starts[-1] + len(facts.hashes))
            hashes.append(facts.hashes)
            heldout.append(facts.heldout)
            signatures.append(facts.signatures)
            counts += facts.counts
            inputs.update(facts.digest.encode())
            bar.set_postfix(documents=starts[-1], refresh=False)
            bar.update(steps.popleft())
    return Inventory(
        text_bytes=sizes,
        starts=np.array(starts),
        hashes=np.concatenate(hashes),
        heldout=np.concatenate(heldout),
        signatures=np.unique(np.concatenate(signatures)),
        counts=counts,
        inputs=inputs.hexdigest(),
    )


def choose_sides(hashes: np.ndarray, heldout: np.ndarray) -> np.ndarray:
    """Put each document on a side; exact duplicates of an earlier document are dropped.

    Where the hash rule holds out fewer than two documents (a small corpus), those with the
    smallest content hashes are held out as well, until there are two.

    Args:
      hashes: uint64 [documents], of their content.
      heldout: bool [documents], what the hash rule says.

    Returns:
      uint8 [documents]: TRAIN, HELDOUT or DROPPED.

    Raises:
      UserError: fewer than two documents are left on a side.
    """
    sides = np.where(heldout, HELDOUT, TRAIN).astype(np.uint8)
    _, first = np.unique(hashes, return_index=True)  # in the order of the hashes
    duplicate = np.ones(len(hashes), bool)
    duplicate[first] = False
    sides[duplicate] = DROPPED
    missing = FEWEST_DOCUMENTS - int(np.sum(sides == HELDOUT))
    if missing > 0:
        sides[first[sides[first] == TRAIN][:missing]] = HELDOUT
    check_documents(int(np.sum(sides == TRAIN)), int(np.sum(sides == HELDOUT)))
    return sides


def check_documents(train: int, heldout: int) -> None:
    """Raise UserError where a side has too few documents."""
    if train + heldout == 0:
        raise UserError("the corpus is empty: there is no document with a sentence in it")
    if min(train, heldout) < FEWEST_DOCUMENTS:
        raise UserError(
            f"the corpus has {train} different documents to train on and {heldout} held out: "
            "pairs of segments need two of each; give more text, or mark where documents end (by "
            "a blank line in a text file of a sentence a line)"
        )


def training_sentences(space: Workspace, inventory: Inventory, sides: np.ndarray) -> Iterator[str]:
    """Sentences of training documents, from evenly spaced units of a large corpus."""
    stride = -(-sum(inventory.text_bytes) // VOCABULARY_TEXT_BYTES)
    for unit in range(0, len(inventory.text_bytes), stride):
        documents = read_documents(space.text(unit))
        for document, side in zip(documents, sides[inventory.documents(unit)], strict=True):
            if side == TRAIN:
                yield from document


def encode_corpus(
    space: Workspace,
    inventory: Inventory,
    sides: np.ndarray,
    tokenizer: Tokenizer,
    pool: ProcessPoolExecutor,
) -> tuple[dict[str, Split], Counts]:
    """Turn clean text into shards, and return them with all that was counted.

    A group of units becomes a training and a held-out shard; groups that an earlier run finished
    are kept. Training documents too near to held-out ones are left out.
    """
    _save_heldout_hashes(space, inventory, sides)
    entries: dict[str, list[ShardEntry]] = {split: [] for split in shards.SPLITS}
    counts = inventory.counts + Counter(duplicate_documents=int(np.sum(sides == DROPPED)))
    tokens = 0
    with space.bar("encoding", sum(inventory.text_bytes)) as bar:
        for index, units in enumerate(_groups(inventory.text_bytes)):
            group = read_json(space.group(index))
            if group is None:
                tasks = (
                    EncodeTask(
                        space.text(unit),
                        sides[inventory.documents(unit)],
                        space.tokenizer,
                        space.heldout_hashes,
                    )
                    for unit in units
                )
                encoded = ordered(pool, encode_unit, tasks, 2 * space.workers)
                progress = _show_progress(encoded, bar, tokens)
                group = _write_group(space, index, progress, tokenizer.vocab_size)
            else:
                bar.update(sum(inventory.text_bytes[unit] for unit in units))
            for split, entry in group["shards"].items():
                entries[split].append(ShardEntry(**entry))
                tokens += entry["tokens"]
            counts += Counter(group["counts"])
    return {split: Split(tuple(found)) for split, found in entries.items()}, counts


def read_json(path: Path) -> Any:
    """What a JSON file of the workspace holds; None where it is not there or not whole."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of the workspace, whole or not at all."""
    replace_file(path, json.dumps(value).encode())


def _save_heldout_hashes(space: Workspace, inventory: Inventory, sides: np.ndarray) -> None:
    """Write the hashes of all held-out sentences, where workers map them into memory."""
    hashes = [inventory.signatures]
    for document in np.flatnonzero((sides == HELDOUT) & ~inventory.heldout):  # two at most
        unit = int(np.searchsorted(inventory.starts, document, side="right")) - 1
        hashes.append(
            signature(read_documents(space.text(unit))[document - inventory.starts[unit]])
        )
    packed = io.BytesIO()
    np.save(packed, np.unique(np.concatenate(hashes)), allow_pickle=False)
    replace_file(space.heldout_hashes, packed.getvalue())


def _groups(text_bytes: list[int]) -> Iterator[range]:
    """Consecutive units of SHARD_TEXT_BYTES together, or of one unit."""
    start = size = 0
    for unit, unit_bytes in enumerate(text_bytes):
        if unit > start and size + unit_bytes > SHARD_TEXT_BYTES:
            yield range(start, unit)
            start, size = unit, 0
        size += unit_bytes
    yield range(start, len(text_bytes))


def _show_progress(encoded: Iterable[EncodedUnit], bar: tqdm, tokens: int) -> Iterator[EncodedUnit]:
    for unit in encoded:
        tokens += len(unit.train.tokens) + len(unit.heldout.tokens)
        bar.set_postfix(tokens=f"{tokens:,}", refresh=False)
        bar.update(unit.text_bytes)
        yield unit


def _write_group(
    space: Workspace, index: int, encoded: Iterable[EncodedUnit], vocab_size: int
) -> dict[str, Any]:
    """Write a pair of shards and what is known of them; an empty one is left out."""
    counts: Counts = Counter()
    with (
        ShardWriter(space.done, f"train-{index:05d}", vocab_size) as train,
        ShardWriter(space.done, f"heldout-{index:05d}", vocab_size) as heldout,
    ):
        for unit in encoded:
            train.append(unit.train)
            heldout.append(unit.heldout)
            counts += unit.counts
        written = {"train": train.finish(), "heldout": heldout.finish()}
    entries = {split: asdict(entry) for split, entry in written.items() if entry}
    group = {"shards": entries, "counts": counts}
    write_json(space.group(index), group)
    return group
