import dataclasses
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.shards import (
    Manifest,
    Shard,
    ShardWriter,
    Split,
    build_shard,
    checksum,
    open_shards,
    read_manifest,
    shard_file,
    tokens_dtype,
    write_manifest,
)
from bert_jax.errors import UserError

Documents = list[list[list[int]]]
VOCAB_SIZE = 300


def write_directory(directory: Path, parts: list[Documents], vocab_size: int = VOCAB_SIZE) -> None:
    """A finished directory with one training shard, appended to part by part."""
    with ShardWriter(directory, "train-00000", vocab_size) as writer:
        for part in parts:
            documents = [[np.array(ids, np.int32) for ids in document] for document in part]
            writer.append(build_shard(documents, vocab_size))
        entry = writer.finish()
    splits = {"train": Split((entry,) if entry else ()), "heldout": Split(())}
    manifest = Manifest("text:x", {"source": "text:x"}, "ab", "cd", vocab_size, splits, {"a": 1})
    write_manifest(directory, manifest)


def documents_of(shard: Shard) -> Documents:
    sentences = [ids.tolist() for ids in np.split(shard.tokens, shard.sentences[1:-1])]
    ends = shard.documents.tolist()
    return [sentences[a:b] for a, b in itertools.pairwise(ends)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_directory(tmp_path, [[[[1, 2, 3], [4]], [[5, 299]]], [[[7], [8, 9]]]])
    return tmp_path


def sentences(top: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, top - 1), max_size=5), max_size=4)


@given(data=st.data(), vocab_size=st.sampled_from([1, 65_536, 65_537, 2**20]))
def test_any_documents_come_back(
    data: st.DataObject, vocab_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    parts = data.draw(st.lists(st.lists(sentences(vocab_size), max_size=4), max_size=4))
    directory = tmp_path_factory.mktemp("shards")
    write_directory(directory, parts, vocab_size)
    found = [d for shard in open_shards(directory, "train") for d in documents_of(shard)]
    filled = [[ids for ids in document if ids] for part in parts for document in part]
    assert found == [document for document in filled if document]
    assert open_shards(directory, "heldout") == []
    assert not list(directory.glob("*.tmp"))


def test_ids_are_two_bytes_where_the_vocabulary_allows() -> None:
    assert tokens_dtype(65_536) == np.uint16
    assert tokens_dtype(65_537) == np.uint32


def test_arrays_are_read_only_maps(directory: Path) -> None:
    (shard,) = open_shards(directory, "train")
    assert isinstance(shard.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        shard.tokens[0] = 1


def test_manifest_round_trip(directory: Path) -> None:
    manifest = read_manifest(directory)
    train = manifest.splits["train"]
    assert (train.documents, train.sentences, train.tokens) == (3, 5, 9)
    assert json.loads((directory / "manifest.json").read_text())["splits"]["train"]["tokens"] == 9
    write_manifest(directory, manifest)
    assert read_manifest(directory) == manifest


def test_a_manifest_holds_paths_in_any_encoding(directory: Path) -> None:
    source = f"text:{os.fsdecode('국'.encode('cp949'))}/책/*.txt"
    manifest = dataclasses.replace(read_manifest(directory), source=source)
    write_manifest(directory, manifest)
    assert read_manifest(directory) == manifest
    assert "/책/*.txt" in (directory / "manifest.json").read_text(encoding="utf-8")


def test_fingerprint_follows_the_data_and_the_tokenizer(directory: Path) -> None:
    manifest = read_manifest(directory)
    (entry,) = manifest.splits["train"].shards
    other = dataclasses.replace(entry, checksums={**entry.checksums, "train-00000.tokens.npy": ""})
    changed = [
        dataclasses.replace(manifest, tokenizer_digest="other"),
        dataclasses.replace(manifest, vocab_size=VOCAB_SIZE + 1),
        dataclasses.replace(manifest, splits={**manifest.splits, "train": Split((other,))}),
        dataclasses.replace(manifest, splits={**manifest.splits, "heldout": Split((entry,))}),
        dataclasses.replace(manifest, splits={**manifest.splits, "heldout": Split((other,))}),
    ]
    assert len({m.fingerprint for m in [manifest, *changed]}) == 6
    moved = dataclasses.replace(manifest, source="text:elsewhere", inputs="")
    assert moved.fingerprint == manifest.fingerprint


@pytest.mark.parametrize("array", ["tokens", "sentences", "documents"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "edited", "empty", "longer"])
def test_damage_names_the_file(directory: Path, array: str, damage: str) -> None:
    path = shard_file(directory, "train-00000", array)
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "longer":
        path.write_bytes(bytes(data) + b"\0\0\0\0")
    else:
        data[-2] ^= 1
        path.write_bytes(data)
    with pytest.raises(UserError, match=path.name):
        open_shards(directory, "train")


@pytest.mark.parametrize("offset", range(0, 146, 5))
def test_every_flipped_bit_is_seen(directory: Path, offset: int) -> None:
    path = shard_file(directory, "train-00000", "tokens")
    data = bytearray(path.read_bytes())
    data[offset] ^= 16
    path.write_bytes(data)
    with pytest.raises(UserError, match=path.name):
        open_shards(directory, "train")
    if offset < 128:  # the header is compared in any case
        with pytest.raises(UserError, match=path.name):
            open_shards(directory, "train", verify=False)


def test_unverified_shards_are_still_of_the_right_shape(directory: Path) -> None:
    path = shard_file(directory, "train-00000", "tokens")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    assert len(open_shards(directory, "train", verify=False)) == 1
    np.save(path, np.zeros(8, np.uint16))
    with pytest.raises(UserError, match=path.name):
        open_shards(directory, "train", verify=False)


def forge(directory: Path, array: str, values: list[int], dtype: type) -> None:
    """Write other contents with a manifest that agrees with them."""
    path = shard_file(directory, "train-00000", array)
    np.save(path, np.array(values, dtype))
    manifest = read_manifest(directory)
    (entry,) = manifest.splits["train"].shards
    checksums = {**entry.checksums, path.name: checksum(path)}
    split = Split((dataclasses.replace(entry, checksums=checksums),))
    splits = {**manifest.splits, "train": split}
    write_manifest(directory, dataclasses.replace(manifest, splits=splits))


@pytest.mark.parametrize(
    ("array", "values", "dtype", "complaint"),
    [
        ("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 300], np.uint16, "outside the vocabulary"),
        ("sentences", [0, 3, 3, 6, 7, 9], np.uint32, "do not rise"),
        ("sentences", [0, 3, 4, 6, 7, 8], np.uint32, "do not rise"),
        ("documents", [1, 2, 3, 5], np.uint32, "do not rise"),
        ("documents", [0, 2, 3, 6], np.uint32, "do not rise"),
        ("tokens", [1] * 9, np.int64, "of type uint16"),
    ],
)
def test_contents_are_checked_too(
    directory: Path, array: str, values: list[int], dtype: type, complaint: str
) -> None:
    forge(directory, array, values, dtype)
    with pytest.raises(UserError, match=complaint):
        open_shards(directory, "train")


def test_objects_are_never_unpickled(directory: Path) -> None:
    path = shard_file(directory, "train-00000", "tokens")
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=path.name):
        open_shards(directory, "train")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"version": 2}',
        '{"version": 1, "splits": 3, "counts": {}}',
        "\xff\xfe",
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"manifest\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"vocab_size": 300', '"vocab_size": 301'),
        ('"vocab_size": 300', '"vocab_size": "300"'),
        ('"vocab_size": 300', '"vocab_size": -1'),
        ('"name": "train-00000"', '"name": "../train-00000"'),
        ('"name": "train-00000"', '"name": "train-00001"'),
        ('"fingerprint": "', '"fingerprint": "0'),
        ('"version": 1', '"version": 2'),
        ('"documents": 3,\n          "name"', '"documents": true,\n          "name"'),
    ],
)
def test_an_edited_manifest(directory: Path, old: str, new: str) -> None:
    path = directory / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=r"manifest\.json"):
        open_shards(directory, "train")


@pytest.mark.parametrize(
    "change", [{"name": "../train-00000"}, {"name": "train-1"}, {"documents": 0}, {"tokens": -1}]
)
def test_a_manifest_with_a_fingerprint_of_its_own(directory: Path, change: dict[str, Any]) -> None:
    manifest = read_manifest(directory)
    (entry,) = manifest.splits["train"].shards
    other = dataclasses.replace(entry, **change)
    sums = {name.replace(entry.name, other.name): of for name, of in entry.checksums.items()}
    split = Split((dataclasses.replace(other, checksums=sums),))
    changed = dataclasses.replace(manifest, splits={**manifest.splits, "train": split})
    write_manifest(directory, changed)
    with pytest.raises(UserError, match=r"manifest\.json: not a manifest of token shards"):
        read_manifest(directory)


def test_no_shards_there(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bert_jax\.prepare"):
        open_shards(tmp_path / "nowhere", "train")
    shutil.rmtree(directory)
    with pytest.raises(UserError, match="no token shards"):
        read_manifest(directory)


def test_an_abandoned_shard_leaves_no_file_under_its_name(tmp_path: Path) -> None:
    def abandon() -> None:
        with ShardWriter(tmp_path, "train-00000", 10) as writer:
            writer.append(build_shard([[np.array([1])]], 10))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        abandon()
    assert not list(tmp_path.glob("*.npy"))


def test_a_shard_does_not_outgrow_its_offsets(tmp_path: Path) -> None:
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (2**32,), (0,))
    offsets = np.array([0, 1], np.uint32)
    with ShardWriter(tmp_path, "train-00000", 10) as writer, pytest.raises(OverflowError):
        writer.append(Shard(huge, offsets, offsets))


def test_a_link_out_of_the_directory_is_refused(directory: Path, tmp_path_factory) -> None:
    path = shard_file(directory, "train-00000", "tokens")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"tokens\.npy: a link"):
        open_shards(directory, "train")
