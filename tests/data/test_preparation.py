"""What is held out, and what the vocabulary is trained on, by the stages of `prepare`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpus import VOCAB_SIZE, make_documents, write_lines

from bert_jax.data import corpus as corpus_module
from bert_jax.data import corpus_vocabulary, preparation
from bert_jax.data.heldout import is_heldout
from bert_jax.data.tokenization import Tokenizer, load_tokenizer, train_tokenizer
from bert_jax.prepare import prepare


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a small corpus into many units."""
    monkeypatch.setattr(corpus_module, "UNIT_BYTES", 2**13)


def test_near_copies_of_documents_held_out_for_want_of_others_are_dropped(
    tmp_path: Path, small_units: None
) -> None:
    """No hash is below the fraction: the two smallest are held out, in whatever unit they are."""
    documents = [document for document in make_documents(100) if len(document) >= 4]
    near = [[*document[:-1], "another end"] for document in documents]
    corpus = write_lines(tmp_path / "corpus.txt", documents + near)
    corpus.heldout_fraction = 1e-9
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert manifest.splits["heldout"].documents == 2
    assert manifest.counts["near_duplicates_of_heldout"] == 2
    assert manifest.splits["train"].documents == 2 * len(documents) - 4


def test_the_vocabulary_is_of_training_documents_alone(tmp_path: Path) -> None:
    snowmen = ([f"{document[0]} ☃"] for document in make_documents(200, seed=1))
    heldout = [document for document in snowmen if is_heldout(document, 0.1)]
    corpus = write_lines(tmp_path / "corpus.txt", [*make_documents(40), *heldout])
    manifest = prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert manifest.splits["heldout"].documents > len(heldout) > 2
    assert "☃" not in load_tokenizer(tmp_path / "out" / "tokenizer").pieces


def test_a_large_corpus_is_sampled_evenly_for_the_vocabulary(
    tmp_path: Path, small_units: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents(600)
    corpus = write_lines(tmp_path / "corpus.txt", documents)
    limit = (tmp_path / "corpus.txt").stat().st_size // 3
    sampled: list[str] = []

    def train(kind: str, sentences: Iterable[str], *rest: Any) -> Tokenizer:
        sampled.extend(sentences)
        return train_tokenizer(kind, sampled, *rest)

    monkeypatch.setattr(preparation, "VOCABULARY_TEXT_BYTES", limit)
    monkeypatch.setattr(corpus_vocabulary, "train_tokenizer", train)
    prepare(corpus, VOCAB_SIZE, tmp_path / "out", workers=1, progress=False)
    assert 0.5 * limit < sum(map(len, sampled)) < limit
    places = {sentence: n for n, document in enumerate(documents) for sentence in document}
    counts, _ = np.histogram([places[sentence] for sentence in sampled], bins=6, range=(0, 600))
    assert counts.min() > 0.6 * counts.max()
