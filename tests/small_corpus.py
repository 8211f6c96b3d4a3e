"""A corpus of made-up words in a file, what is read of a source, and what a directory holds."""

import hashlib
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config import CorpusConfig
from bert_jax.data.corpus import open_source
from bert_jax.data.documents import Counts, Document

VOCAB_SIZE = 200
SYLLABLES = ["ba", "do", "ki", "lu", "me", "no", "pa", "ri", "so", "tu"]


def make_documents(count: int, seed: int = 0) -> list[list[str]]:
    """Documents of 1 to 12 sentences of made-up words, all different."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) for _ in range(300)]
    return [
        [
            " ".join(draw.choices(words, k=draw.randint(12, 20))) + " ."
            for _ in range(draw.randint(1, 12))
        ]
        for _ in range(count)
    ]


def write_lines(path: Path, documents: list[list[str]]) -> CorpusConfig:
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    return CorpusConfig(source=f"text:{path}", sentences="lines", heldout_fraction=0.1)


def read(source: str, **settings: Any) -> tuple[list[Document], Counts]:
    """All documents of a source, and what was counted; its units add up to its size."""
    opened = open_source(CorpusConfig(source=source, **settings))
    documents, counts, progress = [], Counter(), 0
    for unit in opened.units():
        more, counted = opened.documents(unit)
        documents += more
        counts += counted
        progress += unit.progress
    assert progress == opened.total_bytes > 0
    return documents, counts


class Reading(NamedTuple):
    """Of a source in a process of its own; `kibibytes` that its memory grew by."""

    documents: int
    words: int
    kibibytes: int


def read_apart(source: str, sentences: str) -> Reading:
    """Read a source unit by unit in a process of its own."""
    program = f"""
import resource
from bert_jax.config import CorpusConfig
from bert_jax.data.corpus import open_source
source = open_source(CorpusConfig(source={source!r}, sentences={sentences!r}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
documents = words = 0
for unit in source.units():
    for document in source.documents(unit)[0]:
        documents += 1
        words += sum(len(sentence.split()) for sentence in document)
print(documents, words, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return Reading(*map(int, done.stdout.split()))


def contents(directory: Path) -> dict[str, str]:
    """Every file below a directory, by its hash."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
