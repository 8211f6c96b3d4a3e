"""Token shards: a corpus as memory-mappable arrays of piece ids, with a manifest.

A directory of shards holds `manifest.json`, `tokenizer/` and, for each shard, three files:

    train-00000.tokens.npy     uint16 [tokens], uint32 where the vocabulary has over 65,536 pieces
    train-00000.sentences.npy  uint32 [sentences + 1], token offset of each sentence, and the end
    train-00000.documents.npy  uint32 [documents + 1], sentence offset of each document, and the end

Offsets count within the shard. A document never straddles shards, and no sentence or document is
empty. The manifest holds a BLAKE2b checksum of each file (`b2sum -l 128` prints the same).
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import flush_to_disk, replace_file

VERSION = 1
SPLITS = ("train", "heldout")
MANIFEST = "manifest.json"
ARRAYS = ("tokens", "sentences", "documents")

_MANIFEST_BYTES = 64 * 2**20  # 500 bytes a shard: far above any real manifest
_CHUNK = 2**22  # elements or bytes looked at together


@dataclass(frozen=True, slots=True)
class Shard:
    """Documents as ids and offsets; arrays of a shard on disk are read-only memory maps.

    Sentence `s` is `tokens[sentences[s]:sentences[s + 1]]`, and document `d` is the sentences
    `documents[d]` to `documents[d + 1]`.
    """

    tokens: np.ndarray  # uint16 or uint32 [tokens]
    sentences: np.ndarray  # uint32 [sentences + 1]
    documents: np.ndarray  # uint32 [documents + 1]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest says of a shard: its counts, and a checksum a file name."""

    name: str
    tokens: int
    sentences: int
    documents: int
    checksums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Split:
    """The shards of one side of the corpus, in order."""

    shards: tuple[ShardEntry, ...]

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def sentences(self) -> int:
        return sum(shard.sentences for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a directory of shards holds and how it was made."""

    source: str
    corpus: dict[str, Any]  # the CorpusConfig it was prepared with
    inputs: str  # hex digest of the raw text
    tokenizer_digest: str
    vocab_size: int
    splits: dict[str, Split]
    counts: dict[str, int]  # what was mended, dropped or skipped

    @property
    def fingerprint(self) -> str:
        """Hex digest of all token data: equal fingerprints give equal training examples."""
        checksums = [[s.name, s.checksums] for split in SPLITS for s in self.splits[split].shards]
        facts = json.dumps([VERSION, self.tokenizer_digest, self.vocab_size, checksums])
        return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def tokens_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def build_shard(documents: Iterable[Sequence[np.ndarray]], vocab_size: int) -> Shard:
    """Lay out documents, each a list of id arrays [n] a sentence; empty ones are left out."""
    sentences: list[np.ndarray] = []
    ends = [0]
    for document in documents:
        sentences += [ids for ids in document if len(ids)]
        if len(sentences) > ends[-1]:
            ends.append(len(sentences))
    offsets = np.cumsum([0, *map(len, sentences)])
    tokens = np.concatenate(sentences) if sentences else np.zeros(0)
    return Shard(
        tokens.astype(tokens_dtype(vocab_size)),
        offsets.astype(np.uint32),
        np.array(ends, np.uint32),
    )


class ShardWriter:
    """Write one shard from parts; its files appear under their names when all is written.

    Tokens go to disk as they come; offsets stay in memory, four bytes a sentence. A context
    manager: leaving it by an exception leaves only files named `*.tmp`.
    """

    def __init__(self, directory: Path, name: str, vocab_size: int) -> None:
        self.directory, self.name = directory, name
        self._dtype = tokens_dtype(vocab_size)
        self._tokens = self._sentence_count = 0
        self._sentences = [np.zeros(1, np.uint32)]
        self._documents = [np.zeros(1, np.uint32)]

    def __enter__(self) -> Self:
        self._file = open(self._temporary("tokens"), "wb")
        self._file.write(npy_header(self._dtype, self._tokens))
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, part: Shard) -> None:
        """Add the documents of `part` after those already there.

        Raises:
          OverflowError: the shard would pass the 2**32 tokens that an offset can count.
          OSError: the disk is full.
        """
        if self._tokens + len(part.tokens) >= 2**32:
            raise OverflowError(f"{self.name}: a shard holds fewer than 2**32 tokens")
        self._sentences.append(part.sentences[1:] + np.uint32(self._tokens))
        self._documents.append(part.documents[1:] + np.uint32(self._sentence_count))
        self._file.write(part.tokens.astype(self._dtype, copy=False).data)
        self._tokens += len(part.tokens)
        self._sentence_count += len(part.sentences) - 1

    def finish(self) -> ShardEntry | None:
        """Complete the files and return their entry; None, and no file, for an empty shard."""
        self._file.seek(0)
        self._file.write(npy_header(self._dtype, self._tokens))
        flush_to_disk(self._file)
        self._file.close()
        if not self._tokens:
            self._temporary("tokens").unlink()
            return None
        sentences, documents = np.concatenate(self._sentences), np.concatenate(self._documents)
        for array, values in (("sentences", sentences), ("documents", documents)):
            with open(self._temporary(array), "wb") as file:
                file.write(npy_header(values.dtype, len(values)))
                file.write(values.data)  # np.save would lose the errno of a full disk
                flush_to_disk(file)
        for array in ARRAYS:
            os.replace(self._temporary(array), shard_file(self.directory, self.name, array))
        paths = [shard_file(self.directory, self.name, array) for array in ARRAYS]
        checksums = {path.name: checksum(path) for path in paths}
        return ShardEntry(
            self.name, self._tokens, len(sentences) - 1, len(documents) - 1, checksums
        )

    def _temporary(self, array: str) -> Path:
        path = shard_file(self.directory, self.name, array)
        return path.with_name(path.name + ".tmp")


def shard_file(directory: Path, name: str, array: str) -> Path:
    """Path of one array (of `ARRAYS`) of the shard `name`."""
    return directory / f"{name}.{array}.npy"


def checksum(path: Path) -> str:
    """BLAKE2b of a file's bytes, 128 bits, in hex."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, last of all: its presence says that the shards are complete."""
    record = asdict(manifest) | {"version": VERSION, "fingerprint": manifest.fingerprint}
    for name, split in manifest.splits.items():
        totals = {kind: getattr(split, kind) for kind in ("documents", "sentences", "tokens")}
        record["splits"][name] = totals | record["splits"][name]
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    # Of a path that is not UTF-8, JSON can hold the bytes as Python does, in its own notation.
    replace_file(directory / MANIFEST, text.encode(errors="backslashreplace") + b"\n")


def read_manifest(directory: str | Path) -> Manifest:
    """Read and check the manifest of a directory of shards.

    Raises:
      UserError: no manifest there, or one that is not as `write_manifest` leaves it.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        raise UserError(
            f"{directory}: no token shards there ({MANIFEST} is missing); "
            "make them with python -m bert_jax.prepare"
        )
    if path.stat().st_size > _MANIFEST_BYTES:
        raise UserError(f"{path}: over {_MANIFEST_BYTES} bytes, not a manifest of token shards")
    try:
        record = json.loads(path.read_bytes())
        manifest = _parse_manifest(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: not a manifest of token shards ({error!r}); {_REMEDY}") from None
    if record.get("fingerprint") != manifest.fingerprint:
        raise UserError(f"{path}: edited or damaged (its fingerprint differs); {_REMEDY}")
    return manifest


def open_shards(directory: str | Path, split: str, *, verify: bool = True) -> list[Shard]:
    """Map the shards of `split` ("train" or "heldout") into memory.

    Args:
      directory: what `prepare` wrote.
      split: which side of the corpus.
      verify: read every file once, about 1 GB/s, and check its checksum, offsets and ids.

    Raises:
      UserError: naming the file that is missing, truncated or edited.
    """
    manifest = read_manifest(directory)
    return [
        _open_shard(Path(directory), entry, manifest.vocab_size, verify)
        for entry in manifest.splits[split].shards
    ]


_REMEDY = "delete the directory and prepare it again, or restore the file from a copy"


def _parse_manifest(record: dict[str, Any]) -> Manifest:
    if record["version"] != VERSION:
        raise ValueError(f"version {record['version']!r}, this program reads {VERSION}")
    counts = {str(name): _count(value) for name, value in record["counts"].items()}
    splits = {
        name: Split(tuple(_parse_entry(shard) for shard in record["splits"][name]["shards"]))
        for name in SPLITS
    }
    return Manifest(
        source=_text(record["source"]),
        corpus=dict(record["corpus"]),
        inputs=_text(record["inputs"]),
        tokenizer_digest=_text(record["tokenizer_digest"]),
        vocab_size=_positive(record["vocab_size"]),
        splits=splits,
        counts=counts,
    )


def _parse_entry(record: dict[str, Any]) -> ShardEntry:
    name = _text(record["name"])
    if not re.fullmatch(r"(train|heldout)-\d{5,}", name):
        raise ValueError(f"shard name {name!r}")
    return ShardEntry(
        name,
        _positive(record["tokens"]),
        _positive(record["sentences"]),
        _positive(record["documents"]),
        {f"{name}.{a}.npy": _text(record["checksums"][f"{name}.{a}.npy"]) for a in ARRAYS},
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} where a count was expected")
    return value


def _positive(value: object) -> int:
    if not _count(value):
        raise ValueError("0 where there must be something")
    return _count(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where text was expected")
    return value


def _open_shard(directory: Path, entry: ShardEntry, vocab_size: int, verify: bool) -> Shard:
    expected = {
        "tokens": (tokens_dtype(vocab_size), entry.tokens),
        "sentences": (np.dtype(np.uint32), entry.sentences + 1),
        "documents": (np.dtype(np.uint32), entry.documents + 1),
    }
    arrays = {}
    for array, (dtype, length) in expected.items():
        path = shard_file(directory, entry.name, array)
        if not path.is_file():
            raise UserError(f"{path}: missing; {_REMEDY}")
        if path.is_symlink():  # no name in a manifest leads out of its directory
            raise UserError(f"{path}: a link, where `prepare` writes a file; copy the file there")
        if verify and checksum(path) != entry.checksums[path.name]:
            raise UserError(
                f"{path}: truncated, edited or damaged (its checksum differs); {_REMEDY}"
            )
        arrays[array] = map_array(path, dtype, length)
    shard = Shard(**arrays)
    if verify:
        _check_contents(directory, entry.name, shard, vocab_size)
    return shard


def map_array(path: Path, dtype: np.dtype, length: int) -> np.ndarray:
    """Map an array whose header must be byte for byte the one that was written: none is parsed.

    Args:
      path: an .npy file.
      dtype: of its elements.
      length: their number; the array is [length].

    Raises:
      UserError: it holds something else.
    """
    header = npy_header(dtype, length)
    with open(path, "rb") as file:
        found = file.read(len(header))
    if found != header or path.stat().st_size != len(header) + length * dtype.itemsize:
        raise UserError(f"{path}: does not hold {length} numbers of type {dtype}; {_REMEDY}")
    return np.memmap(path, dtype, mode="r", offset=len(header), shape=(length,))


def _check_contents(directory: Path, name: str, shard: Shard, vocab_size: int) -> None:
    """Offsets go from 0 to the end with nothing empty; ids stand in the vocabulary."""
    ends = {"sentences": len(shard.tokens), "documents": len(shard.sentences) - 1}
    for array, end in ends.items():
        offsets = getattr(shard, array)
        rising = all(np.all(part[1:] > part[:-1]) for part in _chunks(offsets, overlap=1))
        if offsets[0] != 0 or offsets[-1] != end or not rising:
            path = shard_file(directory, name, array)
            raise UserError(f"{path}: offsets do not rise from 0 to {end}; {_REMEDY}")
    if any(part.max() >= vocab_size for part in _chunks(shard.tokens)):
        path = shard_file(directory, name, "tokens")
        raise UserError(f"{path}: an id outside the vocabulary of {vocab_size}; {_REMEDY}")


def _chunks(array: np.ndarray, overlap: int = 0) -> Iterator[np.ndarray]:
    """Consecutive pieces of `array` that share `overlap` elements: a map is never read whole."""
    return (array[start : start + _CHUNK + overlap] for start in range(0, len(array), _CHUNK))


def npy_header(dtype: np.dtype, length: int) -> bytes:
    """The start of an .npy file of [length]; NumPy pads it to one size whatever the length."""
    header = io.BytesIO()
    fields = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (length,),
    }
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()
