"""Token shards damaged by the thousand: refused, or arrays that are what their manifest says."""

import dataclasses
import functools
import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from fuzzing import INPUTS, damaged, damaged_json, fuzz, refused

from bert_jax.config import DataConfig
from bert_jax.data.pairs import open_plan
from bert_jax.data.shards import (
    ARRAYS,
    Manifest,
    ShardWriter,
    Split,
    build_shard,
    open_shards,
    read_manifest,
    shard_file,
    write_manifest,
)
from bert_jax.errors import UserError

VOCAB_SIZE = 300
NAME = "train-00000"


@functools.cache
def files(folder: Path) -> dict[str, bytes]:
    """The manifest and arrays of a small corpus, by file name."""
    draw = np.random.default_rng(0)
    documents = [[draw.integers(0, VOCAB_SIZE, 1 + i % 5) for i in range(3 + d)] for d in range(4)]
    with ShardWriter(folder, NAME, VOCAB_SIZE) as writer:
        writer.append(build_shard(documents, VOCAB_SIZE))
        entry = writer.finish()
    assert entry
    splits = {"train": Split((entry,)), "heldout": Split(())}
    write_manifest(folder, Manifest("text:x", {}, "ab", "cd", VOCAB_SIZE, splits, {"a": 1}))
    paths = [folder / "manifest.json", *(shard_file(folder, NAME, array) for array in ARRAYS)]
    return {path.name: path.read_bytes() for path in paths}


def write_agreeing(folder: Path, contents: dict[str, bytes]) -> None:
    """The files, with a manifest whose checksums and fingerprint are made to fit them."""
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    manifest = read_manifest(folder)
    (entry,) = manifest.splits["train"].shards
    arrays = [name for name in contents if name != "manifest.json"]
    sums = {n: hashlib.blake2b(contents[n], digest_size=16).hexdigest() for n in arrays}
    splits = {**manifest.splits, "train": Split((dataclasses.replace(entry, checksums=sums),))}
    write_manifest(folder, dataclasses.replace(manifest, splits=splits))


def opens_well(folder: Path, *, verify: bool) -> bool:
    try:
        opened = open_shards(folder, "train", verify=verify)
    except UserError as error:
        return refused(error)
    manifest = read_manifest(folder)
    for shard, entry in zip(opened, manifest.splits["train"].shards, strict=True):
        assert len(shard.tokens) == entry.tokens
        assert len(shard.sentences) == entry.sentences + 1
        assert len(shard.documents) == entry.documents + 1
        if verify:
            assert shard.tokens.max() < manifest.vocab_size
            assert np.all(np.diff(shard.sentences.astype(np.int64)) > 0)
            assert np.all(np.diff(shard.documents.astype(np.int64)) > 0)
            assert shard.sentences[-1] == len(shard.tokens)
            assert shard.documents[-1] == len(shard.sentences) - 1
    return True


def manifest_json(draw: random.Random, folder: Path) -> bool:
    """Damage to the manifest, half of the time with a fingerprint that agrees with it."""
    contents = files(folder)
    data = damaged_json(json.loads(contents["manifest.json"]), draw)
    for name in contents:
        (folder / name).write_bytes(data if name == "manifest.json" else contents[name])
    if draw.random() < 0.5:
        sign(folder)
    return opens_well(folder, verify=draw.random() < 0.5)


def sign(folder: Path) -> None:
    """Give a manifest the fingerprint that its own fields have, where they can be read at all."""
    path = folder / "manifest.json"
    try:
        record = json.loads(path.read_bytes())
        checksums = [
            [shard["name"], shard["checksums"]]
            for split in ("train", "heldout")
            for shard in record["splits"][split]["shards"]
        ]
        facts = json.dumps([1, record["tokenizer_digest"], record["vocab_size"], checksums])
        record["fingerprint"] = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        path.write_text(json.dumps(record))
    except (ValueError, KeyError, TypeError, RecursionError):
        return


def arrays(draw: random.Random, folder: Path) -> bool:
    """Damage to an array, half of the time with a manifest that agrees with it."""
    contents = dict(files(folder))
    name = draw.choice([name for name in contents if name != "manifest.json"])
    contents[name] = damaged(contents[name], draw)
    if draw.random() < 0.5:
        write_agreeing(folder, contents)
    else:
        for file, data in contents.items():
            (folder / file).write_bytes(data)
    return opens_well(folder, verify=draw.random() < 0.7)


@functools.cache
def plan_files(folder: Path) -> tuple[Path, bytes, bytes]:
    files(folder)
    open_plan(folder, "f", open_shards(folder, "train"), DataConfig(duplicates=2), 16, 0)
    (path,) = (folder / "pairs").glob("*.npy")
    return path, path.read_bytes(), path.with_suffix(".json").read_bytes()


def plan_of_pairs(draw: random.Random, folder: Path) -> bool:
    """Damage to a plan, often with facts that agree: what is opened fits, or was made anew."""
    path, records, facts = plan_files(folder)
    for name, data in files(folder).items():
        (folder / name).write_bytes(data)
    fact = json.loads(facts)
    if draw.random() < 0.8:
        records = damaged(records, draw)
    if draw.random() < 0.5:
        fact["checksum"] = hashlib.blake2b(records, digest_size=16).hexdigest()
    path.write_bytes(records)
    path.with_suffix(".json").write_bytes(
        damaged_json(fact, draw) if draw.random() < 0.5 else json.dumps(fact).encode()
    )
    (shard,) = open_shards(folder, "train")
    plan = open_plan(folder, "f", [shard], DataConfig(duplicates=2), 16, 0)
    assert sum(plan.counts) == len(plan.records)
    assert min(plan.counts) > 0
    last = plan.records["sentence"].astype(int) + plan.records["a"] + plan.records["b"]
    assert np.all(plan.records["shard"] == 0)
    assert np.all(plan.records["a"] > 0)
    assert np.all(last < len(shard.sentences))
    return path.read_bytes() == records  # else it was made anew


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", [manifest_json, arrays, plan_of_pairs])
def test_damaged_shards_are_refused_or_right(case, inputs):
    fuzz(case, inputs)
