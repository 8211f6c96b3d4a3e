import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config import DataConfig
from bert_jax.data.pairs import RECORD, cut_documents, max_pieces, open_plan
from bert_jax.data.shards import Shard, build_shard, checksum
from bert_jax.errors import UserError

Lengths = list[list[int]]  # pieces of each sentence of each document


def shard_of(documents: Lengths) -> Shard:
    return build_shard([[np.ones(n, int) for n in sentences] for sentences in documents], 100)


def random_lengths(count: int, seed: int) -> Lengths:
    rng = random.Random(seed)
    return [[rng.randint(1, 40) for _ in range(rng.randint(1, 60))] for _ in range(count)]


def plan_of(shards: list[Shard], data: DataConfig, seq_len: int, variant: int = 0) -> np.ndarray:
    return np.concatenate(list(cut_documents(shards, data, seq_len, 0, variant)))


def reference_chunks(
    document: list[int], seq_len: int, rng: random.Random
) -> list[tuple[int, int, int, int]]:
    """(first sentence, a, b or 0 where random, target), as the published algorithm cuts."""
    most = seq_len - 3
    target = rng.randint(2, most) if rng.random() < 0.1 else most
    chunks, chunk, length, i = [], [], 0, 0
    while i < len(document):
        chunk.append(i)
        length += document[i]
        if i == len(document) - 1 or length >= target:
            a = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            if len(chunk) == 1 or rng.random() < 0.5:
                chunks.append((chunk[0], a, 0, target))
                i -= len(chunk) - a
            else:
                chunks.append((chunk[0], a, len(chunk) - a, target))
            chunk, length = [], 0
        i += 1
    return chunks


@pytest.mark.parametrize("seq_len", [32, 128])
def test_statistics_are_the_originals(seq_len: int) -> None:
    documents, passes, rng = random_lengths(300, 1), 20, random.Random(2)
    shards = [shard_of(documents)]
    ours, theirs = [], []
    for variant in range(passes):
        plan = plan_of(shards, DataConfig(), seq_len, variant)
        rows = [chunk for d in documents for chunk in reference_chunks(d, seq_len, rng)]
        a, b, target = plan["a"], plan["b"], plan["target"]
        ours.append(_summary(a, b, target, seq_len))
        _, a, b, target = np.array(rows).T
        theirs.append(_summary(a, b, target, seq_len))
    difference = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    error = np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / (passes - 1))
    assert np.all(abs(difference) < 5 * error), (difference, error)


def _summary(a: np.ndarray, b: np.ndarray, target: np.ndarray, seq_len: int) -> list[float]:
    """Examples, share of random B, share of short targets, means of sentences and targets."""
    short = target < seq_len - 3
    return [
        len(a),
        (b == 0).mean(),
        short.mean(),
        a.mean(),
        a.std(),
        b[b > 0].mean(),
        target[short].mean(),
        (a == 1).mean(),
    ]


def assert_each_sentence_once(plan: np.ndarray, documents: Lengths, next_sentence: bool) -> None:
    starts = np.cumsum([0] + [len(d) for d in documents])
    records = plan[np.argsort(plan["sentence"], kind="stable")]
    used = records["a"].astype(int) + records["b"]
    expected = np.concatenate([[0], np.cumsum(used)[:-1]])
    # Consecutive and without overlap, from the first sentence to the last, in one document each.
    assert np.array_equal(records["sentence"], expected)
    assert used.sum() == starts[-1]
    document = np.searchsorted(starts, records["sentence"], side="right")
    assert np.array_equal(document, np.searchsorted(starts, expected + used - 1, side="right"))
    assert records["a"].min() >= 1
    if not next_sentence:
        assert not records["b"].any()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=30), min_size=1, max_size=12),
    st.sampled_from([8, 32, 128]),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_sentence_is_seen_once(
    documents: Lengths, seq_len: int, next_sentence: bool, variant: int
) -> None:
    data = DataConfig(next_sentence=next_sentence, short_seq_prob=0.3)
    plan = plan_of([shard_of(documents)], data, seq_len, variant)
    assert_each_sentence_once(plan, documents, next_sentence)
    assert plan["target"].min() >= 2
    assert plan["target"].max() <= max_pieces(seq_len, next_sentence)


def test_a_short_target_is_anything_from_two_pieces_to_all() -> None:
    shards, data = [shard_of(random_lengths(300, 3))], DataConfig(short_seq_prob=1.0)
    assert set(plan_of(shards, data, seq_len=9)["target"].tolist()) == {2, 3, 4, 5, 6}


def test_spans_reach_the_target_or_end_the_document() -> None:
    documents = random_lengths(100, 3)
    data = DataConfig(next_sentence=False, short_seq_prob=0.0)
    plan = plan_of([shard_of(documents)], data, 64)
    flat = [n for d in documents for n in d]
    ends = set(np.cumsum([len(d) for d in documents]).tolist())
    for record in plan:
        first, count = int(record["sentence"]), int(record["a"])
        assert sum(flat[first : first + count - 1]) < 62
        assert sum(flat[first : first + count]) >= 62 or first + count in ends


def test_plan_does_not_depend_on_how_documents_are_sharded() -> None:
    documents = random_lengths(30, 4)
    whole = plan_of([shard_of(documents)], DataConfig(), 64)
    parts = plan_of([shard_of(documents[:11]), shard_of(documents[11:])], DataConfig(), 64)
    base = np.array([0, sum(len(d) for d in documents[:11])])
    parts["sentence"] += base[parts["shard"]].astype(np.uint32)
    parts["shard"] = 0
    assert np.array_equal(np.sort(whole), np.sort(parts))


def test_variants_and_seeds_differ() -> None:
    shards = [shard_of(random_lengths(30, 5))]
    plans = [
        np.concatenate(list(cut_documents(shards, DataConfig(), 64, seed, variant))).tobytes()
        for seed in (0, 1)
        for variant in (0, 1)
    ]
    assert len(set(plans)) == 4


def test_a_plan_is_made_once_and_is_the_same_bytes_anywhere(tmp_path: Path) -> None:
    shards, data = [shard_of(random_lengths(40, 6))], DataConfig(duplicates=3)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    plan = open_plan(tmp_path / "one", "f", shards, data, 64, 0)
    files = sorted((tmp_path / "one" / "pairs").iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    again = open_plan(tmp_path / "one", "f", shards, data, 64, 0)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert plan.counts == again.counts
    assert np.array_equal(plan.records, again.records)
    first = plan_of(shards, data, 64)
    assert plan.records[: plan.counts[0]].tobytes() == first.tobytes()

    open_plan(tmp_path / "two", "f", shards, data, 64, 0)
    others = sorted((tmp_path / "two" / "pairs").iterdir())
    assert [f.name for f in files] == [f.name for f in others]
    assert [f.read_bytes() for f in files] == [f.read_bytes() for f in others]


def test_other_settings_make_another_plan(tmp_path: Path) -> None:
    shards = [shard_of(random_lengths(10, 7))]
    open_plan(tmp_path, "f", shards, DataConfig(), 64, 0)
    open_plan(tmp_path, "g", shards, DataConfig(), 64, 0)
    open_plan(tmp_path, "f", shards, DataConfig(), 64, 1)
    open_plan(tmp_path, "f", shards, DataConfig(), 32, 0)
    open_plan(tmp_path, "f", shards, DataConfig(duplicates=2), 64, 0)
    open_plan(tmp_path, "f", shards, DataConfig(next_sentence=False), 64, 0)
    open_plan(tmp_path, "f", shards, DataConfig(short_seq_prob=0.5), 64, 0)
    assert len(list((tmp_path / "pairs").glob("*.npy"))) == 7
    open_plan(tmp_path, "f", shards, DataConfig(whole_word=True, mask_prob=0.3), 64, 0)
    assert len(list((tmp_path / "pairs").glob("*.npy"))) == 7


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "no json", "bad json"])
def test_a_damaged_plan_is_made_again(tmp_path: Path, damage: str) -> None:
    shards, data = [shard_of(random_lengths(10, 8))], DataConfig(duplicates=2)
    plan = open_plan(tmp_path, "f", shards, data, 64, 0)
    expected = plan.records.copy()
    (path,) = (tmp_path / "pairs").glob("*.npy")
    content = bytearray(path.read_bytes())
    path.unlink()  # not in place: `plan` is mapped
    facts = path.with_suffix(".json")
    if damage == "flip":
        content[len(content) // 2] ^= 4
    elif damage == "cut":
        del content[-RECORD.itemsize :]
    elif damage == "empty":
        content.clear()
    elif damage == "no json":
        facts.unlink()
    else:
        facts.write_text("[1, 2")
    path.write_bytes(content)
    again = open_plan(tmp_path, "f", shards, data, 64, 0)
    assert np.array_equal(again.records, expected)


def test_what_a_killed_process_left_of_a_plan_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    abandoned, at_work = folder / "a.npy.1.tmp", folder / "a.npy.2.tmp"
    for path in (abandoned, at_work):
        path.touch()
    two_hours_ago = time.time() - 7200
    os.utime(abandoned, (two_hours_ago, two_hours_ago))
    open_plan(tmp_path, "f", [shard_of([[3], [4]])], DataConfig(), 32, 0)
    assert list(folder.glob("*.tmp")) == [at_work]


@pytest.mark.parametrize(
    ("field", "value"),
    [("shard", 1), ("sentence", 2**32 - 1), ("a", 0), ("a", 60_000), ("b", 60_000), ("b", None)],
)
def test_a_plan_of_sentences_that_are_not_there_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: int | None
) -> None:
    monkeypatch.setattr("bert_jax.data.pairs._RECORDS", 7)
    shards, data = [shard_of(random_lengths(10, 8))], DataConfig(duplicates=2)
    plan = open_plan(tmp_path, "f", shards, data, 64, 0)
    records = plan.records.copy()
    at = len(records) // 2
    if value is None:  # one sentence more than there are
        sentences = len(shards[0].sentences) - 1
        value = sentences - int(records["sentence"][at]) - int(records["a"][at]) + 1
    records[field][at] = value
    replace_plan(tmp_path, records, list(plan.counts))
    assert np.array_equal(open_plan(tmp_path, "f", shards, data, 64, 0).records, plan.records)


@pytest.mark.parametrize("last", [[], [0], [-1], [True], [1, 1]])
def test_a_plan_of_other_counts_is_made_again(tmp_path: Path, last: list[int]) -> None:
    """Their sum is right, but they are not counts of examples, or not of two variants."""
    shards, data = [shard_of(random_lengths(10, 8))], DataConfig(duplicates=2)
    plan = open_plan(tmp_path, "f", shards, data, 64, 0)
    replace_plan(tmp_path, plan.records, [len(plan.records) - sum(last), *last])
    assert open_plan(tmp_path, "f", shards, data, 64, 0).counts == plan.counts


@pytest.mark.parametrize(
    "facts", ["[]", "3", "{}", "[" * 100_000, '{"counts": 3}', f'{{"counts": [{2**70}, {2**70}]}}']
)
def test_a_plan_whose_facts_are_none_is_made_again(tmp_path: Path, facts: str) -> None:
    shards, data = [shard_of(random_lengths(10, 8))], DataConfig(duplicates=2)
    plan = open_plan(tmp_path, "f", shards, data, 64, 0)
    (path,) = (tmp_path / "pairs").glob("*.json")
    whole = f', "checksum": "{checksum(path.with_suffix(".npy"))}"}}'
    path.write_text(facts[:-1] + whole if "counts" in facts else facts)
    assert open_plan(tmp_path, "f", shards, data, 64, 0).counts == plan.counts


def replace_plan(directory: Path, records: np.ndarray, counts: list[int]) -> None:
    """Put another plan, whole by its checksum, in the place of the one that is there."""
    (path,) = (directory / "pairs").glob("*.npy")
    path.unlink()  # not in place: it is mapped
    np.save(path, records)
    facts = {"counts": counts, "checksum": checksum(path)}
    path.with_suffix(".json").write_text(json.dumps(facts))


def test_too_few_documents(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 document,"):
        open_plan(tmp_path, "f", [shard_of([[3, 4]])], DataConfig(), 32, 0)
    with pytest.raises(UserError, match="no documents"):
        open_plan(tmp_path, "f", [], DataConfig(next_sentence=False), 32, 0)
    open_plan(tmp_path, "f", [shard_of([[3, 4]])], DataConfig(next_sentence=False), 32, 0)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("a file where the folder goes")
    with pytest.raises(UserError, match="cannot be written"):
        open_plan(tmp_path, "f", [shard_of([[3], [4]])], DataConfig(), 32, 0)


def test_a_plan_of_shards_that_may_only_be_read_is_kept_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_disk
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    disk = small_disk("64k,ro")
    shards, data = [shard_of(random_lengths(10, 8))], DataConfig()
    plan = open_plan(disk, "f", shards, data, 64, 0)
    (path,) = (tmp_path / "cache/bert_jax/pairs").glob("*.npy")
    written = path.stat().st_mtime_ns
    assert np.array_equal(open_plan(disk, "f", shards, data, 64, 0).records, plan.records)
    assert path.stat().st_mtime_ns == written, "made once"
    (tmp_path / "beside").mkdir()
    open_plan(tmp_path / "beside", "f", shards, data, 64, 0)
    assert (tmp_path / "beside/pairs" / path.name).read_bytes() == path.read_bytes()


def test_a_full_disk_is_told_and_leaves_no_half_plan(small_disk) -> None:
    disk = small_disk("64k")
    shards = [shard_of(random_lengths(300, 6))]
    with pytest.raises(UserError, match=r"pairs: the plan .* cannot be written there .*No space"):
        open_plan(disk, "f", shards, DataConfig(), 64, 0)
    assert list((disk / "pairs").iterdir()) == []
