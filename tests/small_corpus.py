"""A corpus of made-up words in a file, and what a directory holds."""

import hashlib
import random
from pathlib import Path

from bert_jax.config import CorpusConfig

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


def contents(directory: Path) -> dict[str, str]:
    """Every file below a directory, by its hash."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
