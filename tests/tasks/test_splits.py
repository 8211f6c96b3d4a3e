"""What is held out, by what the examples say."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.tasks.splits import held_out, set_name
from bert_jax.tasks.task import Example


def examples(texts):
    return [Example(where=f"train.tsv:{line}", text=text) for line, text in enumerate(texts, 2)]


TEXTS = [f"text {number}" for number in range(3000)]


def test_the_share_is_held_out_and_nothing_is_lost():
    train, dev = held_out(examples(TEXTS), 0.1)
    assert abs(len(dev) / len(TEXTS) - 0.1) < 0.02
    assert sorted([*train, *dev], key=lambda example: int(example.where[10:])) == examples(TEXTS)


def test_neither_the_order_nor_the_others_matter():
    _, dev = held_out(examples(TEXTS), 0.1)
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    _, again = held_out(examples(shuffled), 0.1)
    assert {example.text for example in again} == {example.text for example in dev}
    _, half = held_out(examples(TEXTS[:1500]), 0.1)
    assert [example.text for example in half] == [e.text for e in dev if e.text in TEXTS[:1500]]
    _, more = held_out(examples(TEXTS), 0.2)
    assert {example.text for example in dev} < {example.text for example in more}


def test_the_order_of_the_examples_is_kept():
    for side in held_out(examples(TEXTS), 0.3):
        lines = [int(example.where[10:]) for example in side]
        assert lines == sorted(lines)


@given(st.lists(st.sampled_from(["a b", "A  b", "c", "d", "e", "f"]), min_size=1, max_size=30))
def test_copies_of_a_text_are_on_one_side(texts):
    try:
        train, dev = held_out(examples([*texts, *TEXTS[:100]]), 0.4)
    except UserError:
        return
    sides = [{example.text.lower().replace("  ", " ") for example in side} for side in (train, dev)]
    assert sides[0].isdisjoint(sides[1])


@pytest.mark.parametrize(("fraction", "trained", "scored"), [(0.0, 3, 0), (1.0, 0, 3)])
def test_an_empty_side_is_told(fraction, trained, scored):
    told = f"leaves {trained} of 3 examples to train on and {scored} to score"
    with pytest.raises(UserError, match=rf"dev_fraction={fraction} {told}"):
        held_out(examples(TEXTS[:3]), fraction)


def test_a_set_has_the_name_of_its_file_without_all_of_its_endings():
    assert set_name("glue/MNLI.v1/train-dev.jsonl.gz") == set_name("train-dev.tsv") == "train-dev"
