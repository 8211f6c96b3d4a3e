"""Suite `finetune`: whole fine-tuning runs, from the command to the scored model in a folder.

Ours with nothing compiled before, and as it is the next time; the peer is `transformers`' Trainer
in PyTorch as it comes. Both begin with the same weights and do the same epochs over the same tables
of real sentences, whose labels say whether a text is in order: the words of a sentence, or the two
sentences of a pair.
"""

import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.batches import VOCAB
from benchmarks.commands import NEW, Command, in_turns, once
from benchmarks.contest import DTYPES, Result
from benchmarks.input_pipeline import documents, write_text
from benchmarks.tables import record

EPOCHS = 3


class Case(NamedTuple):
    """A model and a table.

    size: of the model.
    pairs: whether an example is two sentences, or one.
    examples: to train on; a tenth as many are scored.
    """

    size: str
    pairs: bool
    examples: int


CASES = (Case("mini", False, 4000), Case("base", True, 256))
QUICK_CASES = (Case("tiny", True, 64),)


def sentences() -> Iterator[str]:
    """Of the embedded corpus, in its order."""
    for document in documents():
        yield from document.strip().split("\n")


def write_table(file: Path, texts: Iterator[str], pairs: bool, examples: int) -> None:
    """Write so many examples, half of them out of order; columns as our recipes name them."""
    draw = random.Random(0)
    lines = ["text\tpair\tlabel" if pairs else "text\tlabel"]
    long_enough = (text for text in texts if text.count(" ") > 2)
    for label in itertools.islice(itertools.cycle((0, 1)), examples):
        parts = [next(long_enough), next(long_enough)] if pairs else next(long_enough).split()
        if not label:
            draw.shuffle(parts)
        texts_of_row = parts if pairs else [" ".join(parts)]
        lines.append("\t".join([*texts_of_row, str(label)]))
    file.write_text("\n".join(lines) + "\n")


def measured(case: Case, dtype: str, folder: Path, rounds: int) -> list[Result]:
    """Of ours in both states of the cache, then of the peer; `folder` has tables and weights."""
    given = {"train": f"{folder}/train.tsv", "dev": f"{folder}/dev.tsv"}
    model = f"{folder}/{case.size}"
    ours = [
        *("-m", "bert_jax.finetune", f"--config={'pairs' if case.pairs else 'classify'}"),
        *(f"--init_from={model}", f"--workdir={NEW}/run", f"--config.epochs={EPOCHS}"),
        *(f"--config.task.{name}={file}" for name, file in given.items()),
        f"--config.model.dtype={dtype}",
    ]
    caches = {"ours, compiled": NEW, "ours, from the cache": f"{folder}/cache-{dtype}"}
    own = [
        Command(name, ours, {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": cache})
        for name, cache in caches.items()
    ]
    own[1].run()  # fills it
    settings = given | {"model": model, "dtype": dtype, "epochs": EPOCHS, "output": f"{NEW}/run"}
    peer = ["-m", "benchmarks.finetuning_torch", json.dumps(settings)]
    return in_turns(own, [Command("transformers' Trainer", peer)], rounds)


def run(quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each model and dtype."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_text(folder / "text.txt", 300_000 if quick else 20_000_000)
        once(
            *("-m", "bert_jax.prepare", f"--source=text:{folder}/text.txt", "--sentences=lines"),
            *(f"--output={folder}/shards", f"--vocab_size={2_000 if quick else VOCAB}"),
        )
        for case in QUICK_CASES if quick else CASES:
            # Both of the two load the vocabulary that lies beside the weights.
            shutil.copytree(folder / "shards/tokenizer", folder / case.size)
            once("-m", "benchmarks.peers", case.size, f"{folder}/{case.size}")
            texts = sentences()
            write_table(folder / "train.tsv", texts, case.pairs, case.examples)
            write_table(folder / "dev.tsv", texts, case.pairs, case.examples // 10)
            for dtype in DTYPES[:1] if quick else DTYPES:
                what = "pairs" if case.pairs else "sentences"
                name = f"{case.size}, {case.examples:,} {what}, {EPOCHS} epochs, {dtype}"
                print(name, flush=True)
                results = measured(case, dtype, folder, 1 if quick else 3)
                yield {"name": name, "results": [record(result) for result in results]}
