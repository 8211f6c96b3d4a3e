"""Which documents are held out, and which are too near to those to be trained on."""

import numpy as np

from bert_jax.data.documents import Document


def is_heldout(document: Document, fraction: float) -> bool:
    """Whether a document is held out: a hash of its normalised content falls below `fraction`."""
    raise NotImplementedError


def signature(document: Document) -> np.ndarray:
    """uint64 [n]: sorted distinct hashes of the document's long sentences; n may be 0."""
    raise NotImplementedError


def near_duplicate(signature: np.ndarray, heldout_hashes: np.ndarray) -> bool:
    """Whether at least half of a signature stands in `heldout_hashes` (sorted uint64)."""
    raise NotImplementedError
