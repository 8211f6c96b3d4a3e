import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numbered_examples import (
    CLS,
    FIRST,
    SEP,
    Document,
    epoch,
    make_documents,
    make_examples,
    unmasked,
)

import bert_jax
from bert_jax.config import DataConfig
from bert_jax.data.pipeline import (
    Batch,
    PairExamples,
    majority_baseline,
    open_examples,
    train_dataset,
)
from bert_jax.data.shards import SPLITS
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return make_documents(60, 0)


def assert_equal(left: Batch, right: Batch) -> None:
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def joined(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


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


def test_neither_side_is_taken_for_the_other(shards: Path) -> None:
    """Of one cut both have plans of the same settings, beside the shards of both."""
    tokenizer = load_tokenizer(shards / "tokenizer")
    sizes = {"seq_len": 32, "max_predictions": 5, "seed": 17}

    def opened(split: str) -> PairExamples:
        return open_examples(shards, split, tokenizer, DataConfig(duplicates=1), **sizes)

    first = {split: opened(split).batch(0, 64) for split in SPLITS}
    for split in SPLITS:
        assert_equal(opened(split).batch(0, 64), first[split])


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
import numbered_examples
from bert_jax.config import DataConfig
from bert_jax.data.pipeline import train_dataset
documents = numbered_examples.make_documents(300, 0)
examples = numbered_examples.make_examples(Path(sys.argv[1]), documents, DataConfig(duplicates=1))
for _ in range(5):
    batches = train_dataset(examples, 0, 10**9, 512)
    next(batches)
sys.exit(7)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parent.parent,
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
