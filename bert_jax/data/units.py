"""What the worker processes of `prepare` do: a unit of raw text to clean text, then to ids.

Between the two, a unit's clean text lies in a file of the original's format (a sentence a line, a
blank line after a document), with what was learnt about its documents in a file beside it.
"""

import hashlib
import io
import json
import re
import unicodedata
import zipfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bert_jax.data.documents import Counts, Document, Parser, Unit
from bert_jax.data.heldout import is_heldout, near_duplicate, signature
from bert_jax.data.shards import Shard, build_shard
from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.files import replace_file

TRAIN, HELDOUT, DROPPED = 0, 1, 2  # the side of a document


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A unit of raw text, and where its clean text goes."""

    unit: Unit
    documents: Parser
    heldout_fraction: float
    text: Path


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What is known of a unit once it is read.

    Attributes:
      digest: hex digest of the raw bytes.
      text_bytes: size of the clean text.
      hashes: uint64 [documents], of the clean text of each.
      heldout: bool [documents], on which side the held-out rule puts each.
      signatures: uint64 [n], hashes of the long sentences of held-out documents.
      counts: what was mended or left out.
    """

    digest: str
    text_bytes: int
    hashes: np.ndarray
    heldout: np.ndarray
    signatures: np.ndarray
    counts: Counts


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """A unit of clean text, the side of each document, and what to encode them by."""

    text: Path
    sides: np.ndarray  # uint8 [documents]
    tokenizer: Path
    heldout_hashes: Path


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The documents of a unit as ids, a `Shard` a side, and what was counted on the way."""

    text_bytes: int
    train: Shard
    heldout: Shard
    counts: Counts


def read_unit(task: ReadTask) -> UnitFacts:
    """Decode, clean and split a unit, write its text, and return what is known of it.

    Nothing is done again where an earlier run left the facts of the same raw bytes.
    """
    digest = hashlib.blake2b(digest_size=16)
    for piece in task.unit.pieces:
        digest.update(len(piece.data).to_bytes(8, "little") + piece.data)
    facts = _load_facts(task.text)
    if facts and facts.digest == digest.hexdigest():
        return facts
    documents, counts = task.documents(task.unit)
    heldout = [is_heldout(document, task.heldout_fraction) for document in documents]
    signatures = [signature(d) for d, held in zip(documents, heldout, strict=True) if held]
    text = "".join("\n".join(document) + "\n\n" for document in documents).encode()
    facts = UnitFacts(
        digest=digest.hexdigest(),
        text_bytes=len(text),
        hashes=np.array([_content_hash(document) for document in documents], np.uint64),
        heldout=np.array(heldout, bool),
        signatures=np.concatenate([np.zeros(0, np.uint64), *signatures]),
        counts=counts,
    )
    replace_file(task.text, text)
    replace_file(_facts_file(task.text), _pack_facts(facts))
    return facts


def read_documents(text: Path) -> list[Document]:
    """The documents of a file that `read_unit` wrote."""
    documents = text.read_bytes().decode().split("\n\n")[:-1]
    return [document.split("\n") for document in documents]


def encode_unit(task: EncodeTask) -> EncodedUnit:
    """Encode the documents of a unit that are kept, each on its side.

    Training documents too near to held-out ones are left out here and counted.
    """
    tokenizer, heldout_hashes = _tokenizer(task.tokenizer), _mapped(task.heldout_hashes)
    counts: Counts = Counter()
    kept: dict[int, list[Document]] = {TRAIN: [], HELDOUT: []}
    for document, side in zip(read_documents(task.text), task.sides.tolist(), strict=True):
        if side == TRAIN and near_duplicate(signature(document), heldout_hashes):
            counts["near_duplicates_of_heldout"] += 1
        elif side != DROPPED:
            kept[side].append(document)
    train = _encode(kept[TRAIN], tokenizer)
    counts["unknown_pieces"] += int(np.count_nonzero(train.tokens == tokenizer.unk_id))
    if tokenizer.strips_accents:
        counts["stripped_vowel_signs"] += sum(
            len(_vowel_signs().findall(sentence)) for d in kept[TRAIN] for sentence in d
        )
    heldout = _encode(kept[HELDOUT], tokenizer)
    return EncodedUnit(task.text.stat().st_size, train, heldout, counts)


@lru_cache(maxsize=1)
def _vowel_signs() -> re.Pattern[str]:
    """Marks that are vowels: of Hindi, Bengali, Thai, Khmer and their like.

    Unicode gives them the combining class 0, and another to accents and to the points of Arabic and
    Hebrew, without which those are commonly written.
    """
    marks = (chr(code) for code in range(0x0900, 0xFE00))  # from FE00 on, variation selectors
    vowels = (m for m in marks if unicodedata.category(m) == "Mn" and not unicodedata.combining(m))
    return re.compile(f"[{''.join(vowels)}]")


def _encode(documents: list[Document], tokenizer: Tokenizer) -> Shard:
    ids = iter(tokenizer.encode_batch([s for document in documents for s in document]))
    laid_out = ([next(ids) for _ in document] for document in documents)
    return build_shard(laid_out, tokenizer.vocab_size)


@lru_cache(maxsize=1)
def _tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@lru_cache(maxsize=1)
def _mapped(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _content_hash(document: Document) -> int:
    text = "\n".join(document).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _facts_file(text: Path) -> Path:
    return text.with_suffix(".npz")


def _pack_facts(facts: UnitFacts) -> bytes:
    packed = io.BytesIO()
    np.savez(
        packed,
        digest=np.array(facts.digest),
        text_bytes=np.array(facts.text_bytes),
        hashes=facts.hashes,
        heldout=facts.heldout,
        signatures=facts.signatures,
        counts=np.array(json.dumps(facts.counts)),
    )
    return packed.getvalue()


def _load_facts(text: Path) -> UnitFacts | None:
    """What an earlier run learnt of a unit; None where its files are not there and whole."""
    try:
        with np.load(_facts_file(text), allow_pickle=False) as packed:
            facts = UnitFacts(
                digest=str(packed["digest"]),
                text_bytes=int(packed["text_bytes"]),
                hashes=packed["hashes"],
                heldout=packed["heldout"],
                signatures=packed["signatures"],
                counts=Counter(json.loads(str(packed["counts"]))),
            )
        return facts if text.stat().st_size == facts.text_bytes else None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
