"""Entities and their scores, against seqeval and against conlleval's rules written out."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.tasks.entities import (
    Entity,
    Found,
    are_of_entities,
    compare,
    entities,
    to_iob2,
    total,
)

IOB2 = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-A-B", "I-A-B")
IOBES = (*IOB2, "E-PER", "S-PER", "E-LOC", "S-LOC")
sequences = st.lists(st.sampled_from(IOBES), max_size=12)


def random_pair(tags: tuple[str, ...], rng: random.Random) -> tuple[list[str], list[str]]:
    """Tags in any order (IOB1, IOB2 and what is neither), and as many that often agree."""
    weights = [3, *[1] * (len(tags) - 1)]
    true, other = (rng.choices(tags, weights, k=12) for _ in range(2))
    said = [a if rng.random() < 0.8 else b for a, b in zip(true, other, strict=True)]
    length = rng.randint(1, 12)
    return true[:length], said[:length]


@pytest.mark.parametrize("tags", [IOB2, IOBES], ids=["iob", "iobes"])
def test_entities_and_scores_equal_seqeval(tags):
    # Its source builds with an older setuptools_scm only, so that the test extra cannot have it.
    told = (
        "seqeval is not installed: PIP_CONSTRAINT=FILE with setuptools_scm<9, pip install seqeval"
    )
    seqeval = pytest.importorskip("seqeval.metrics.sequence_labeling", reason=told)
    rng = random.Random(1)
    pairs = [random_pair(tags, rng) for _ in range(4000)]
    true, said = ([pair[index] for pair in pairs] for index in (0, 1))
    for sequence in true:
        expected = [(kind, first, last + 1) for kind, first, last in seqeval.get_entities(sequence)]
        assert entities(sequence) == expected, sequence
    found = compare(true, said)
    report = seqeval.classification_report(true, said, output_dict=True, zero_division=0)
    assert {*found} == {*report} - {"micro avg", "macro avg", "weighted avg"}
    for kind, ours in [*found.items(), ("micro avg", total(found.values()))]:
        theirs = report[kind]
        assert ours.true == theirs["support"]
        assert [ours.precision, ours.recall, ours.f1] == pytest.approx(
            [theirs["precision"], theirs["recall"], theirs["f1-score"]], abs=1e-12
        )
    assert 0.1 < total(found.values()).f1 < 0.9


def conlleval(tags: list[str]) -> list[tuple[str, int, int]]:
    """startOfChunk and endOfChunk of conlleval, with the S that seqeval adds to them."""
    found, start = [], 0
    pieces = [tuple(tag.split("-", 1)) if "-" in tag else (tag, "") for tag in ["O", *tags, "O"]]
    for index, ((before, before_kind), (tag, kind)) in enumerate(itertools.pairwise(pieces)):
        other = before_kind != kind
        if before in ("E", "S") or (before in ("B", "I") and (tag in ("B", "S", "O") or other)):
            found.append((before_kind, start, index))
        if tag in ("B", "S") or (tag in ("E", "I") and (before in ("E", "S", "O") or other)):
            start = index
    return found


@given(st.lists(st.tuples(sequences, sequences)))
def test_entities_and_scores_are_those_of_conlleval(pairs):
    size = [min(map(len, pair)) for pair in pairs]
    true, said = ([p[i][:n] for p, n in zip(pairs, size, strict=True)] for i in (0, 1))
    theirs = [{(n, e) for n, tags in enumerate(x) for e in conlleval(tags)} for x in (true, said)]
    for tags in (*true, *said):
        assert entities(tags) == conlleval(tags)
    found = compare(true, said)
    kinds = sorted({kind for _, (kind, _, _) in theirs[0] | theirs[1]})
    assert [*found] == kinds
    for kind, ours in [*found.items(), ("", total(found.values()))]:
        of_true, of_said = ({e for e in of if kind in ("", e[1][0])} for of in theirs)
        both = len(of_true & of_said)
        assert ours == (len(of_true), len(of_said), both)
        assert ours.precision == (both / len(of_said) if of_said else 0)
        assert ours.recall == (both / len(of_true) if of_true else 0)
        sizes = len(of_true) + len(of_said)
        assert ours.f1 == (2 * both / sizes if sizes else 0)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("I-PER I-PER O", [("PER", 0, 2)]),  # IOB1
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("B-PER E-PER S-PER I-PER", [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]),
        ("O E-PER E-PER", [("PER", 1, 2), ("PER", 2, 3)]),
    ],
)
def test_entities_of_hard_sequences(tags, expected):
    assert entities(tags.split()) == [Entity(*entity) for entity in expected]


@given(sequences)
def test_iob2_has_the_same_entities_and_is_iob2(tags):
    converted = to_iob2(tags)
    assert entities(converted) == entities(tags)
    assert to_iob2(converted) == converted
    for before, tag in zip(("O", *converted), converted, strict=False):
        assert tag == "O" or tag[0] in "BI"
        assert not tag.startswith("I-") or before in (tag, "B" + tag[1:])


def test_valid_iob2_and_other_tags_stay():
    assert to_iob2(["B-PER", "I-PER", "B-PER", "O"]) == ("B-PER", "I-PER", "B-PER", "O")
    assert to_iob2(["NN", "O", "I-x"]) == ("NN", "O", "I-x")
    assert to_iob2(["O", "O"]) == ("O", "O")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-X", True),
        ("S-a-b", True),
        ("O", False),
        ("", False),
        ("B", False),
        ("U-X O", False),
        ("NN O", False),
    ],
)
def test_what_tags_are_of_entities(tags, expected):
    assert are_of_entities(tags.split()) == expected


def test_types_are_told_apart():
    found = compare([["B-PER", "O", "B-LOC"]], [["B-PER", "B-ORG", "O"]])
    assert found == {"LOC": Found(1, 0, 0), "ORG": Found(0, 1, 0), "PER": Found(1, 1, 1)}
    assert total(found.values()) == Found(2, 2, 1)
    assert (found["PER"].f1, found["LOC"].recall, found["ORG"].precision) == (1, 0, 0)
    assert total(()).f1 == 0
