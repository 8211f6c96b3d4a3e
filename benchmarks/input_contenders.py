"""What makes batches, and what makes ids of text: ours, and what one would run instead."""

import itertools
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batches import PIECES, PREDICTIONS, VOCAB, random_documents, random_examples
from bert_jax.config import CorpusConfig, DataConfig
from bert_jax.data.pipeline import train_dataset
from bert_jax.prepare import prepare as prepare_shards


def prepare(work: str, **settings: Any) -> Callable[[], Any]:
    """The work of that name."""
    return _WORKS[work](**settings)


def one_thread(seq_len: int, batch_size: int, whole_word: bool) -> Callable[[], Any]:
    """Our batches, in the calling thread."""
    examples = random_examples(seq_len, DataConfig(whole_word=whole_word))
    steps = itertools.count()
    return lambda: examples.batch(next(steps), batch_size)


def tf_data(seq_len: int, batch_size: int, whole_word: bool) -> Callable[[], Any]:
    """Our batches, as `train` gets them: ahead of it, by two workers."""
    examples = random_examples(seq_len, DataConfig(whole_word=whole_word))
    batches = train_dataset(examples, 0, 10**9, batch_size)
    return lambda: next(batches)


def original(seq_len: int, batch_size: int) -> Callable[[], Any]:
    """Instances of the same documents, by the original's algorithm."""
    from benchmarks.original_pairs import instances

    documents = [[ids.tolist() for ids in document] for document in random_documents()]
    endless = instances(documents, seq_len, PREDICTIONS[seq_len], random.Random(0))
    return lambda: list(itertools.islice(endless, batch_size))


def collator(seq_len: int, batch_size: int, whole_word: bool) -> Callable[[], Any]:
    """DataCollatorForLanguageModeling over lists of ids that are cut already, with all it reads."""
    import torch
    import transformers

    torch.set_num_threads(1)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = special + [f"w{index}" for index in range(len(special), VOCAB)]
    tokenizer = transformers.BertTokenizer(vocab={p: i for i, p in enumerate(pieces)})
    batch = random_examples(seq_len, DataConfig()).batch(0, batch_size)
    sizes = batch["attention_mask"].sum(axis=1)
    features = []
    for ids, segments, size in zip(batch["input_ids"], batch["token_type_ids"], sizes, strict=True):
        columns = {
            "input_ids": ids[:size],
            "token_type_ids": segments[:size],
            "special_tokens_mask": (ids[:size] < len(special)).astype(int),
        }
        if whole_word:
            # A word begins one character after the last one's end.
            starts = PIECES.starts_word[ids].cumsum() + np.arange(seq_len)
            columns["offset_mapping"] = np.stack([starts, starts + 1], axis=1)
        features.append({name: column.tolist() for name, column in columns.items()})
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole_word)
    return lambda: collate([dict(feature) for feature in features])


def whole_prepare(text: str, vocab: str, workers: int) -> Callable[[], Any]:
    """Our shards of a text: read, cleaned, divided, freed of duplicates, encoded, written."""
    corpus = CorpusConfig(source=f"text:{text}", sentences="lines", vocab=vocab)

    def work() -> None:
        folder = tempfile.mkdtemp()
        prepare_shards(corpus, VOCAB, Path(folder, "shards"), workers=workers, progress=False)
        shutil.rmtree(folder)

    return work


def encode_batch(text: str, vocab: str) -> Callable[[], Any]:
    """The same ids by `tokenizers` alone."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(f"{vocab}/tokenizer.json")
    sentences = [line for line in Path(text).read_text().splitlines() if line]
    return lambda: [
        encoding.ids for encoding in tokenizer.encode_batch(sentences, add_special_tokens=False)
    ]


_WORKS: dict[str, Callable[..., Callable[[], Any]]] = {
    work.__name__: work
    for work in (one_thread, tf_data, original, collator, whole_prepare, encode_batch)
}
