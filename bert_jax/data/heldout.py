"""Which documents are held out, and which are too near to those to be trained on.

A document is held out by a hash of its content, so neither the order of files nor what else is in
the corpus matters, and exact copies land on the same side. A training document is left out where
at least `NEAR_DUPLICATE` of its long sentences stand in held-out documents: copies with another
title, mirrors, later editions. Short sentences ("See also.") say nothing about that. A document
without a long sentence is no near-duplicate of any.
"""

import hashlib

import numpy as np

from bert_jax.data.documents import Document

LONG_SENTENCE = 40  # characters, normalised
NEAR_DUPLICATE = 0.5  # share of the distinct long sentences


def normalise(text: str) -> str:
    """Case folded and whitespace collapsed: what two copies of a text still share."""
    return " ".join(text.casefold().split())


def is_heldout(document: Document, fraction: float) -> bool:
    """Whether the document is held out: the hash of its normalised content, uniform in [0, 1),
    is below `fraction`."""
    return int(_hash(normalise(" ".join(document)))) < fraction * 2**64


def signature(document: Document) -> np.ndarray:
    """uint64 [n]: sorted distinct hashes of the document's long sentences; n may be 0."""
    normalised = map(normalise, document)
    hashes = {_hash(sentence) for sentence in normalised if len(sentence) >= LONG_SENTENCE}
    return np.array(sorted(hashes), np.uint64)


def near_duplicate(signature: np.ndarray, heldout_hashes: np.ndarray) -> bool:
    """Whether at least `NEAR_DUPLICATE` of a document's long sentences are held out.

    Args:
      signature: uint64 [n], of the document.
      heldout_hashes: uint64 [m], sorted: the signatures of all held-out documents together.
    """
    if not len(signature) or not len(heldout_hashes):
        return False
    places = np.searchsorted(heldout_hashes, signature)
    found = heldout_hashes[np.minimum(places, len(heldout_hashes) - 1)] == signature
    return bool(found.mean() >= NEAR_DUPLICATE)


def _hash(text: str) -> int:
    """A 64-bit hash, the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
