"""Suite `input`: batches of 256 sequences with pairs and masks, and text to ids, core against core.

The peers of a batch are DataCollatorForLanguageModeling (which only pads and masks, sequences that
were cut before the clock started) and the original's algorithm in plain Python. `prepare` with a
given vocabulary stands beside `tokenizers`' own encode_batch, which neither reads, cleans, divides
nor writes; one process and one thread each.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.batches import PREDICTIONS, VOCAB, random_examples
from benchmarks.contest import Contender, contest
from benchmarks.tables import record
from bert_jax.config import CorpusConfig, DataConfig
from bert_jax.data.docstrings import document_pieces, source_files
from bert_jax.prepare import prepare

BATCH = 256
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


def write_text(file: Path, size: int) -> int:
    """Write documents of the embedded corpus, about `size` bytes, a sentence a line; the bytes."""
    written = 0
    with file.open("w") as out:
        for document in documents():
            written += out.write(document)
            if written >= size:
                break
    return written


def documents() -> Iterator[str]:
    """Of the embedded corpus, without end: where it has no more, they come again.

    Then the words of each sentence are rotated: there are no duplicates.
    """
    for rotated in itertools.count():
        for piece, _ in document_pieces(source_files()):
            words = [line.split() for line in piece.data.decode().splitlines()]
            lines = [" ".join(line[rotated:] + line[:rotated]) for line in words]
            yield "\n".join(lines) + "\n\n"


def contender(name: str, work: str, **settings: Any) -> Contender:
    """A work of `input_contenders`."""
    settings |= {"work": work}
    return Contender(name, "benchmarks.input_contenders", settings, ONE_THREAD)


def batches(seq_len: int, whole_word: bool, rounds: int) -> dict[str, Any]:
    """Masked batches of one length."""
    sizes = {"seq_len": seq_len, "batch_size": BATCH}
    masked = sizes | {"whole_word": whole_word}
    own = [
        contender("ours, one thread", "one_thread", **masked),
        contender("ours, tf.data", "tf_data", **masked),
    ]
    peers = [contender("transformers' collator", "collator", **masked)]
    if not whole_word:
        peers.append(contender("the original's algorithm", "original", **sizes))
    examples = random_examples(seq_len, DataConfig())
    tokens = int(examples.batch(0, BATCH)["attention_mask"].sum())
    masks = "words" if whole_word else "pieces"
    return {
        "name": f"{BATCH} sequences at {seq_len}, {masks} masked, {tokens:,} tokens",
        "tokens": tokens,
        "results": [record(result) for result in contest(own, peers, rounds)],
    }


def text_to_ids(size: int, vocab_size: int, rounds: int) -> dict[str, Any]:
    """Text, with its vocabulary at hand."""
    with tempfile.TemporaryDirectory() as folder:
        text, shards = Path(folder, "text.txt"), Path(folder, "shards")
        written = write_text(text, size)
        corpus = CorpusConfig(source=f"text:{text}", sentences="lines")
        prepare(corpus, vocab_size, shards, progress=False)
        settings = {"text": str(text), "vocab": str(shards / "tokenizer")}
        own = [contender("ours, prepare", "whole_prepare", workers=1, **settings)]
        peers = [contender("tokenizers' encode_batch", "encode_batch", **settings)]
        results = contest(own, peers, rounds)
    return {
        "name": f"{written / 1e6:.1f} MB of text to ids",
        "bytes": written,
        "results": [record(result) for result in results],
    }


def run(quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each length and kind of masks, and one for text."""
    rounds = 2 if quick else 5
    lengths = (128,) if quick else PREDICTIONS
    for seq_len, whole_word in itertools.product(lengths, (False,) if quick else (False, True)):
        print(f"batches at {seq_len}", flush=True)
        yield batches(seq_len, whole_word, rounds)
    print("text to ids", flush=True)
    yield text_to_ids(300_000 if quick else 40_000_000, 2_000 if quick else VOCAB, rounds)
