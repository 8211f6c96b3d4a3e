"""The held-out split: a hash of content, and a rule for near-duplicates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.heldout import LONG_SENTENCE, is_heldout, near_duplicate, signature

SENTENCES = [
    f"Sentence number {n} of this document is long enough to be told from others." for n in range(8)
]


def test_share_of_heldout_documents_is_the_fraction() -> None:
    documents = [[f"Document {n}.", "It has two sentences."] for n in range(20_000)]
    for fraction in (0.01, 0.1, 0.5):
        count = sum(is_heldout(document, fraction) for document in documents)
        deviation = np.sqrt(fraction * (1 - fraction) * len(documents))
        assert abs(count - fraction * len(documents)) < 4 * deviation
    assert not any(is_heldout(document, 0.0) for document in documents)


def test_larger_fraction_holds_out_the_same_documents_and_more() -> None:
    documents = [[str(n)] for n in range(2000)]
    small = {str(d) for d in documents if is_heldout(d, 0.05)}
    large = {str(d) for d in documents if is_heldout(d, 0.1)}
    assert small < large


@given(st.lists(st.text(min_size=1), min_size=1), st.floats(0, 1))
def test_side_does_not_depend_on_case_whitespace_or_sentence_breaks(
    document: list[str], fraction: float
) -> None:
    side = is_heldout(document, fraction)
    assert is_heldout([" ".join(document)], fraction) == side
    assert is_heldout([f"  {sentence}\n" for sentence in document], fraction) == side


def test_case_does_not_change_the_side() -> None:
    for n in range(200):
        document = [f"The Story Of Straße {n}"]  # whose capitals are STRASSE
        assert is_heldout(document, 0.5) == is_heldout([document[0].upper()], 0.5)


def test_side_is_the_same_on_every_machine() -> None:
    # Computed with hashlib by hand: a change would move documents of prepared corpora across.
    sides = [is_heldout([f"document {n}"], 0.3) for n in range(10)]
    assert sides == [True, False, False, True, True, False, True, False, False, False]


def test_signature_takes_long_sentences_sorted_and_once() -> None:
    long = "x" * LONG_SENTENCE
    assert len(signature(["x" * (LONG_SENTENCE - 1), "Short."])) == 0
    found = signature([long, long.upper(), "y" * LONG_SENTENCE, "Short."])
    assert found.dtype == np.uint64
    assert len(found) == 2
    assert (np.diff(found.astype(object)) > 0).all()


@pytest.mark.parametrize(("shared", "expected"), [(0, False), (3, False), (4, True), (8, True)])
def test_half_of_the_long_sentences_make_a_near_duplicate(shared: int, expected: bool) -> None:
    others = [sentence.replace("document", "other text") for sentence in SENTENCES]
    heldout = signature(SENTENCES[:shared] + others)
    assert near_duplicate(signature([*SENTENCES, "Short."]), heldout) == expected


def test_near_duplicate_of_nothing() -> None:
    nothing = np.zeros(0, np.uint64)
    assert not near_duplicate(nothing, signature(SENTENCES))
    assert not near_duplicate(signature(SENTENCES), nothing)


@given(
    st.sets(st.integers(0, 2**64 - 1), max_size=20), st.sets(st.integers(0, 2**64 - 1), max_size=20)
)
def test_near_duplicate_counts_as_sets_do(document: set[int], heldout: set[int]) -> None:
    heldout |= set(list(document)[::2])
    expected = bool(document) and 2 * len(document & heldout) >= len(document)
    hashes = [np.array(sorted(some), np.uint64) for some in (document, heldout)]
    assert near_duplicate(*hashes) == expected
