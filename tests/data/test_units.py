"""What is learnt of a unit of text is learnt once, and again where a file of it is not whole."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import CorpusConfig
from bert_jax.data.documents import Counts, Document, Piece, Unit, text_documents
from bert_jax.data.heldout import is_heldout, signature
from bert_jax.data.units import ReadTask, UnitFacts, read_documents, read_unit

DOCUMENTS = [[f"Sentence {s} of document {d}, long enough to sign." for s in (1, 2)] for d in "abc"]
TEXT = "\n\n".join("\n".join(document) for document in DOCUMENTS).encode() + b"\x00"


class Reader:
    """Reads units into a folder, and counts how often their text was parsed."""

    def __init__(self, folder: Path) -> None:
        self.text, self.parsed = folder / "unit-000000.txt", 0

    def documents(self, unit: Unit) -> tuple[list[Document], Counts]:
        self.parsed += 1
        return text_documents(CorpusConfig(sentences="lines"), unit)

    def read(self, *pieces: bytes) -> UnitFacts:
        unit = Unit(tuple(Piece("a.txt", data) for data in pieces), 1)
        return read_unit(ReadTask(unit, self.documents, 0.5, self.text))


def assert_equal(left: UnitFacts, right: UnitFacts) -> None:
    assert (left.digest, left.text_bytes) == (right.digest, right.text_bytes)
    assert left.counts == right.counts
    for name in ("hashes", "heldout", "signatures"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def test_a_unit_is_read_once_and_what_is_known_of_it_is_kept(tmp_path):
    reader = Reader(tmp_path)
    facts = reader.read(TEXT)
    assert read_documents(reader.text) == DOCUMENTS
    assert facts.text_bytes == reader.text.stat().st_size
    assert len(set(facts.hashes.tolist())) == 3
    held = [is_heldout(document, 0.5) for document in DOCUMENTS]
    assert facts.heldout.tolist() == held
    assert 0 < sum(held) < 3
    signed = [signature(document) for document in np.array(DOCUMENTS)[held].tolist()]
    assert sorted(facts.signatures.tolist()) == sorted(np.concatenate(signed).tolist())
    assert facts.counts == Counter(control_characters=1)
    assert_equal(reader.read(TEXT), facts)
    assert reader.parsed == 1


@pytest.mark.parametrize("pieces", [(TEXT + b".",), (TEXT[:9], TEXT[9:]), (TEXT, b"")])
def test_a_unit_of_other_pieces_is_read_again(tmp_path, pieces):
    reader = Reader(tmp_path)
    reader.read(TEXT)
    reader.read(*pieces)
    assert reader.parsed == 2


@pytest.mark.parametrize("suffix", [".txt", ".npz"])
@pytest.mark.parametrize("size", [None, 0, 1, 100, -1])
def test_a_unit_whose_files_are_not_whole_is_read_again(tmp_path, suffix, size):
    reader = Reader(tmp_path)
    facts = reader.read(TEXT)
    victim = reader.text.with_suffix(suffix)
    if size is None:
        victim.unlink()
    else:
        os.truncate(victim, size % victim.stat().st_size)
    assert_equal(reader.read(TEXT), facts)
    assert reader.parsed == 2
    assert read_documents(reader.text) == DOCUMENTS


def test_text_that_the_facts_are_not_of_is_read_again(tmp_path):
    """A reading of more that was killed had replaced the text, and not yet the facts."""
    reader = Reader(tmp_path)
    facts = reader.read(TEXT)
    reader.text.write_bytes(reader.text.read_bytes() + b"Another document.\n\n")
    assert_equal(reader.read(TEXT), facts)
    assert read_documents(reader.text) == DOCUMENTS
