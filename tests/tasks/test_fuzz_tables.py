"""Tables damaged by the thousand: refused in a line, or features that a model can read."""

import contextlib
import csv
import functools
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import INPUTS, damaged, damaged_json, fuzz, hostile_text, refused
from peer_models import PIECES

from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.multilabel import MultiLabel
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.splits import held_out
from bert_jax.tasks.task import Task

TASKS: list[tuple[Task, tuple[Any, ...]]] = [
    (Classification(max_length=16), ("a", "b", 1, 2.5)),
    (Classification(max_length=16, pair_column="pair", id_column="id"), ("a", "b")),
    (Regression(max_length=16, label_column="label"), (0, 1.5, -2, "3")),
    (MultiLabel(max_length=16), ([0.5, 1], [0, 0.1])),
    (MultiLabel(max_length=16), (["a"], ["b", "a"], [])),
    (MultipleChoice(max_length=16), (0, 1)),
]


@functools.cache
def tokenizer(folder: Path) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(folder / "vocab.txt")


def row(draw: random.Random, labels: tuple[Any, ...]) -> dict[str, Any]:
    hostile = hostile_text(draw) if draw.random() < 0.2 else "bird"
    texts = dict.fromkeys(("text", "pair", "context"), f"river {hostile}")
    endings = {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d"}
    return texts | endings | {"label": draw.choice(labels), "id": draw.randrange(9)}


def json_file(rows: list[dict[str, Any]], kind: str, draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        rows = [{**row, "choices": ["a", "b"]} for row in rows]
    if kind == "json":
        return damaged_json(rows, draw)
    lines = [json.dumps(row).encode() for row in rows]
    lines[draw.randrange(len(lines))] = damaged_json(rows[0], draw)
    return b"\n".join(lines)


def table_file(rows: list[dict[str, Any]], kind: str, draw: random.Random) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t" if kind == "tsv" else ",")
    writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    data = text.getvalue().encode(errors="surrogatepass")
    return damaged(data, draw) if draw.random() < 0.8 else data


def table_read(draw: random.Random, folder: Path) -> bool:
    """Whether a damaged file is read; what is read must be features of the right kind."""
    task, labels = draw.choice(TASKS)
    rows = [row(draw, labels) for _ in range(draw.randrange(1, 12))]
    kind = draw.choice(("tsv", "csv", "json", "jsonl"))
    data = (json_file if kind.startswith("json") else table_file)(rows, kind, draw)
    zipped = draw.random() < 0.1
    path = folder / f"a.{kind}{'.gz' * zipped}"
    path.write_bytes(damaged(gzip.compress(data), draw) if zipped else data)
    try:
        examples = task.read(path)
        task = task.learn(examples)
        task.check(examples)
        features = task.features(examples, tokenizer(folder))
    except UserError as error:
        return refused(error)
    with contextlib.suppress(UserError):  # few texts may all be on one side
        held_out(examples, 0.5)
    for (feature,) in features:
        assert feature["input_ids"].dtype == np.int32
        assert feature["input_ids"].shape[-1] <= 16
        assert 0 <= feature["input_ids"].min() <= feature["input_ids"].max() < len(PIECES)
        assert feature["weight"] == 1
        assert np.isfinite(feature["label"]).all()
    return True


@pytest.mark.parametrize("inputs", INPUTS)
def test_damaged_tables_are_refused_in_a_line(inputs):
    fuzz(table_read, inputs)
