import dataclasses
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bert_jax
from bert_jax.config import DataConfig
from bert_jax.data import keyed
from bert_jax.data.pairs import open_plan
from bert_jax.data.pipeline import (
    Batch,
    PairExamples,
    majority_baseline,
    train_dataset,
)
from bert_jax.data.shards import Shard, build_shard
from bert_jax.data.spans import Spans, truncate
from bert_jax.errors import UserError

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


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return make_documents(60, 0)


def unmasked(batch: Batch) -> np.ndarray:
    """`input_ids` with the predicted pieces put back."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return ids


def assert_equal(left: Batch, right: Batch) -> None:
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def joined(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def epoch(examples: PairExamples, number: int, duplicates: int) -> Batch:
    """All examples of one epoch: rows of one batch that is long enough to hold them."""
    cycle, variant = divmod(number, duplicates)
    first = cycle * int(examples._ends[-1]) + int(examples._counts[:variant].sum())
    end = first + int(examples._counts[variant])
    return examples.batch(0, end, slice(first, end))


@pytest.mark.parametrize("next_sentence", [True, False])
def test_batch_has_its_shapes_and_types(
    tmp_path: Path, documents: list[Document], next_sentence: bool
) -> None:
    data = DataConfig(next_sentence=next_sentence, duplicates=2)
    batch = make_examples(tmp_path, documents, data).batch(3, 12)
    whole = ("input_ids", "token_type_ids", "attention_mask")
    expected = dict.fromkeys(whole, (np.int32, (12, 64)))
    expected |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (np.int32, (12, 10)))
    expected |= {"masked_lm_weights": (np.float32, (12, 10))}
    if next_sentence:
        expected |= {"next_sentence_labels": (np.int32, (12,))}
        expected |= {"next_sentence_weights": (np.float32, (12,))}
        assert np.all(batch["next_sentence_weights"] == 1)
    assert {name: (array.dtype, array.shape) for name, array in batch.items()} == expected


@pytest.mark.parametrize("shards", [1, 3])
def test_pairs_are_what_they_say(tmp_path: Path, documents: list[Document], shards: int) -> None:
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=1), shards=shards)
    batch = examples.batch(0, 600)
    bounds = [int(document[0][0]) for document in documents]
    sentence_ends = {int(s[-1]) for document in documents for s in document}
    crossed = 0
    for row, ids in enumerate(unmasked(batch)):
        first_sep, last_sep = np.flatnonzero(ids == SEP)
        length = last_sep + 1
        assert ids[0] == CLS
        assert length <= 64
        assert not ids[length:].any()
        assert np.array_equal(batch["attention_mask"][row], np.arange(64) < length)
        types = (np.arange(64) > first_sep) & (np.arange(64) < length)
        assert np.array_equal(batch["token_type_ids"][row], types)
        count = min(10, max(1, round(int(length) * 0.15)))
        real = batch["masked_lm_weights"][row] == 1
        assert np.array_equal(real, np.arange(10) < min(count, length - 3))
        assert np.all(ids[batch["masked_lm_positions"][row, real]] >= FIRST)
        a, b = ids[1:first_sep], ids[first_sep + 1 : last_sep]
        assert len(a)
        assert len(b)
        assert np.all(np.diff(a) == 1)  # consecutive tokens of the corpus
        assert np.all(np.diff(b) == 1)
        spans = [(a[0], a[-1]), (b[0], b[-1])]
        (of_a, a_end), (of_b, b_end) = np.searchsorted(bounds, spans, side="right") - 1
        assert of_a == a_end
        assert of_b == b_end
        if batch["next_sentence_labels"][row] == 1:
            assert of_a != of_b
            crossed += of_a * shards // len(bounds) != of_b * shards // len(bounds)
        else:
            assert of_a == of_b
            assert a[-1] < b[0]
            if length < 64:
                assert a[-1] + 1 == b[0]
        if length < 64:
            assert int(a[-1]) in sentence_ends
    assert bool(crossed) == (shards > 1)


def test_without_next_sentence_examples_are_spans(
    tmp_path: Path, documents: list[Document]
) -> None:
    data = DataConfig(next_sentence=False, duplicates=1, short_seq_prob=0.0)
    examples = make_examples(tmp_path, documents, data)
    batch = epoch(examples, 0, 1)
    ends = {int(document[-1][-1]) for document in documents}
    starts = []
    for ids in unmasked(batch):
        (last,) = np.flatnonzero(ids == SEP)
        text = ids[1:last]
        assert np.all(np.diff(text) == 1)
        assert last == 63 or int(text[-1]) in ends
        starts.append(text[0])
    assert len(set(starts)) == len(starts)
    assert not batch["token_type_ids"].any()


def test_any_number_of_hosts_builds_the_same_batch(
    tmp_path: Path, documents: list[Document]
) -> None:
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=3))
    for step in (0, 7, 10**9):
        whole = examples.batch(step, 32)
        for hosts in (1, 2, 4, 8):
            rows = 32 // hosts
            parts = [
                examples.batch(step, 32, slice(h * rows, h * rows + rows)) for h in range(hosts)
            ]
            assert_equal(whole, joined(parts))


def test_an_example_does_not_depend_on_the_batch_size(
    tmp_path: Path, documents: list[Document]
) -> None:
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=2))
    small = [examples.batch(step, 8) for step in range(100)]
    assert_equal(examples.batch(0, 800), joined(small))


def test_a_far_step_is_as_near_as_the_first(tmp_path: Path, documents: list[Document]) -> None:
    """Nothing is stepped over: the same examples are gathered, at positions found by arithmetic."""
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=2))
    total = int(examples._ends[-1])
    # With static masking a step that is a whole number of cycles later holds the same variants.
    far = 10**15 // total * total
    seen = unmasked(examples.batch(far, total))
    again = unmasked(examples.batch(0, total))
    assert np.array_equal(np.unique(seen, axis=0), np.unique(again, axis=0))
    assert not np.array_equal(seen, again)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_static_masks_repeat_and_dynamic_ones_do_not(
    tmp_path: Path, documents: list[Document], masking: str
) -> None:
    data = DataConfig(duplicates=2, masking=masking)
    examples = make_examples(tmp_path, documents, data)

    def rows(number: int) -> set[bytes]:
        return {row.tobytes() for row in epoch(examples, number, 2)["input_ids"]}

    first, second, third = rows(0), rows(1), rows(2)
    assert len(first & second) < 0.05 * len(first)
    if masking == "static":
        assert first == third
    else:
        assert len(first & third) < 0.05 * len(first)


def test_an_epoch_holds_every_example_once(tmp_path: Path, documents: list[Document]) -> None:
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=2), max_predictions=1)
    for number in (0, 1, 4):
        batch = epoch(examples, number, 2)
        # The first piece of A, or a truncated one of the same sentences, tells the record.
        records = examples._records[: examples._counts[0]]
        if number % 2:
            records = examples._records[examples._counts[0] :]
        assert len(batch["input_ids"]) == len(records)
        random_b = np.sort(batch["next_sentence_labels"])
        assert np.array_equal(random_b, np.sort((records["b"] == 0).astype(np.int32)))
        assert len(np.unique(unmasked(batch), axis=0)) == len(records)


def literal_truncation(a: int, b: int, pieces: int) -> tuple[int, int]:
    while a + b > pieces:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def spans(lengths: list[int]) -> Spans:
    zeros = np.zeros(len(lengths), np.int64)
    return Spans(zeros, zeros, np.array(lengths))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=20),
    st.integers(2, 130),
)
def test_truncation_is_that_of_one_piece_at_a_time(
    pairs: list[tuple[int, int]], pieces: int
) -> None:
    before_a, before_b = (list(lengths) for lengths in zip(*pairs, strict=True))
    a, b = truncate(spans(before_a), spans(before_b), pieces, keyed.key(1, np.arange(len(pairs))))
    kept = list(zip(a.length.tolist(), b.length.tolist(), strict=True))
    assert kept == [literal_truncation(x, y, pieces) for x, y in pairs]
    for span, before in ((a, before_a), (b, before_b)):
        assert np.all(span.start >= 0)
        assert np.all(span.start + span.length <= before)


@pytest.mark.parametrize("tosses", [1, 2, 63, 64, 65, 200])
def test_front_losses_are_binomial(tosses: int) -> None:
    count = 20_000
    keys = keyed.key(9, np.arange(count))
    a, _ = truncate(spans([10 + tosses] * count), spans([0] * count), 10, keys)
    heads = a.start
    assert np.all(a.length == 10)
    assert heads.min() >= 0
    assert heads.max() <= tosses
    variance = tosses / 4
    assert abs(heads.mean() - tosses / 2) < 5 * np.sqrt(variance / count)
    assert abs(heads.var() - variance) < 5 * variance * np.sqrt(2 / count)


def reference_example(
    documents: list[list[int]], index: int, seq_len: int, rng: random.Random
) -> list[tuple[int, int, int]]:
    """(pieces of A, of B, label) of a document's examples, by the published algorithm."""
    document, most = documents[index], seq_len - 3
    target = rng.randint(2, most) if rng.random() < 0.1 else most
    found, chunk, i = [], [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(chunk) >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a, b, label = sum(chunk[:split]), sum(chunk[split:]), 0
            if len(chunk) == 1 or rng.random() < 0.5:
                label, b = 1, 0
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for length in documents[other][start:]:
                    b += length
                    if b >= target - a:
                        break
                i -= len(chunk) - split
            found.append((*literal_truncation(a, b, most), label))
            chunk = []
        i += 1
    return found


@pytest.mark.parametrize("seq_len", [32, 128])
def test_statistics_are_the_originals(tmp_path: Path, seq_len: int) -> None:
    documents, passes, rng = make_documents(150, 5), 12, random.Random(6)
    data = DataConfig(duplicates=passes)
    examples = make_examples(tmp_path, documents, data, seq_len=seq_len, max_predictions=20)
    lengths = [[len(sentence) for sentence in document] for document in documents]
    ours, theirs = [], []
    for number in range(passes):
        batch = epoch(examples, number, passes)
        sizes = batch["attention_mask"].sum(axis=1)
        b = batch["token_type_ids"].sum(axis=1) - 1
        label, predictions = batch["next_sentence_labels"], batch["masked_lm_weights"].sum(axis=1)
        ours.append(_summary(sizes - b - 3, b, label, predictions, seq_len))
        rows = [r for i in range(len(lengths)) for r in reference_example(lengths, i, seq_len, rng)]
        a, b, label = np.array(rows).T
        counts = [min(20, max(1, round(int(n) * 0.15))) for n in a + b + 3]
        theirs.append(_summary(a, b, label, np.array(counts), seq_len))
    difference = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    error = np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / (passes - 1))
    assert np.all(abs(difference) <= 5 * error), (difference, error)


def _summary(
    a: np.ndarray, b: np.ndarray, label: np.ndarray, predictions: np.ndarray, seq_len: int
) -> list[float]:
    """Means and spreads of an epoch: they are compared over passes with different draws."""
    full = a + b == seq_len - 3
    return [
        *(len(a), a.mean(), a.std(), b.mean(), b.std(), label.mean(), full.mean()),
        *(predictions.mean(), predictions.std(), b[label == 1].mean(), a[label == 1].mean()),
    ]


def test_evaluation_is_the_same_each_time_and_weighs_nothing_twice(
    tmp_path: Path, documents: list[Document]
) -> None:
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=1))
    count = int(examples._counts[0])
    batches = list(examples.evaluation_batches(32, 10**6))
    assert len(batches) == -(-count // 32)
    assert all(batch["input_ids"].shape == (32, 64) for batch in batches)
    whole = joined(batches)
    assert whole["next_sentence_weights"].sum() == count
    assert not whole["masked_lm_weights"][count:].any()
    assert np.all(whole["masked_lm_weights"][:count].sum(axis=1) >= 1)
    assert np.all(whole["attention_mask"].sum(axis=1) >= 5)  # rows of padding are valid too
    training = examples.batch(0, count)
    assert_equal(training, {name: array[:count] for name, array in whole.items()})

    for again, batch in zip(examples.evaluation_batches(32, 10**6), batches, strict=True):
        assert_equal(again, batch)
    few = joined(list(examples.evaluation_batches(32, 50)))
    assert few["next_sentence_weights"].sum() == 50
    halves = [list(examples.evaluation_batches(32, 50, slice(h, h + 16))) for h in (0, 16)]
    for batch, top, bottom in zip(examples.evaluation_batches(32, 50), *halves, strict=True):
        assert_equal(batch, joined([top, bottom]))


def test_smallest_corpus(tmp_path: Path) -> None:
    documents = [[np.array([5])], [np.array([6])]]
    examples = make_examples(
        tmp_path, documents, DataConfig(duplicates=1), seq_len=8, max_predictions=2
    )
    batch = examples.batch(10**9, 64)
    assert np.all(batch["next_sentence_labels"] == 1)
    assert np.all(batch["attention_mask"].sum(axis=1) == 5)
    assert {tuple(row[:5]) for row in unmasked(batch)} == {(2, 5, 3, 6, 3), (2, 6, 3, 5, 3)}


def test_majority_baseline() -> None:
    one = {
        "masked_lm_ids": np.array([[7, 7], [9, 0]]),
        "masked_lm_weights": np.array([[1, 1], [1, 0]], np.float32),
        "next_sentence_labels": np.array([1, 0]),
        "next_sentence_weights": np.array([1, 1], np.float32),
    }
    two = {
        "masked_lm_ids": np.array([[100, 7]]),
        "masked_lm_weights": np.array([[1, 1]], np.float32),
        "next_sentence_labels": np.array([1]),
        "next_sentence_weights": np.array([1], np.float32),
    }
    assert majority_baseline([one, two]) == {"mlm_accuracy": 3 / 5, "nsp_accuracy": 2 / 3}
    spans_only = [{name: b[name] for name in list(b)[:2]} for b in (two, one)]
    assert majority_baseline(spans_only) == {"mlm_accuracy": 3 / 5}


def test_train_dataset_gives_the_batches_in_order(
    tmp_path: Path, documents: list[Document]
) -> None:
    examples = make_examples(tmp_path, documents, DataConfig(duplicates=2))
    first = 10**9
    batches = train_dataset(examples, first, first + 40, 16, slice(4, 12), workers=3)
    count = 0
    for step, batch in enumerate(batches, first):
        assert_equal(batch, examples.batch(step, 16, slice(4, 12)))
        count += 1
    assert count == 40


def test_train_dataset_raises_what_a_batch_raised(
    tmp_path: Path, documents: list[Document]
) -> None:
    class Damaged(PairExamples):
        def batch(self, step: int, batch_size: int, rows: slice = slice(None)) -> Batch:
            if step >= 5:
                raise UserError(f"step {step}: damaged")
            return super().batch(step, batch_size, rows)

    examples = make_examples(tmp_path, documents, DataConfig(duplicates=1))
    examples.__class__ = Damaged
    batches = train_dataset(examples, 2, 40, 16)
    for _ in range(3):
        next(batches)
    with pytest.raises(UserError, match="step 5: damaged"):
        next(batches)


def test_a_process_ends_with_batches_under_way(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import test_pipeline
from bert_jax.config import DataConfig
from bert_jax.data.pipeline import train_dataset
documents = test_pipeline.make_documents(300, 0)
examples = test_pipeline.make_examples(Path(sys.argv[1]), documents, DataConfig(duplicates=1))
for _ in range(5):
    batches = train_dataset(examples, 0, 10**9, 512)
    next(batches)
sys.exit(7)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": str(Path(bert_jax.__path__[0]).parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 7, result.stderr


def test_settings_that_change_examples(tmp_path: Path, documents: list[Document]) -> None:
    data = DataConfig(duplicates=1)
    base = make_examples(tmp_path, documents, data).batch(0, 8)["input_ids"].tobytes()
    changed = [
        make_examples(tmp_path, documents, data, seed=1),
        make_examples(tmp_path, documents, dataclasses.replace(data, whole_word=True)),
        make_examples(tmp_path, documents, dataclasses.replace(data, mask_prob=0.05)),
    ]
    assert all(other.batch(0, 8)["input_ids"].tobytes() != base for other in changed)
