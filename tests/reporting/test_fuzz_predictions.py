"""Predictions and scores damaged by the thousand: refused by a line, or a page."""

import json
import random
from pathlib import Path

import pytest
from fuzzing import INPUTS, damaged, damaged_json, fuzz, refused

from bert_jax.errors import UserError
from bert_jax.finetune_report import read_run
from bert_jax.report import write_report

SHARES = {"good": 0.75, "bad": 0.25}
KINDS = (
    {"text": "a b", "pair": "c", "label": "bad", "predicted": "good", "probabilities": SHARES},
    {
        "text": "a",
        "choices": ["b", "c"],
        "label": "1",
        "predicted": "0",
        "probabilities": {"0": 0.6, "1": 0.4},
    },
    {"text": "a", "label": 1.5, "predicted": 2.25},
    {"text": "a", "label": ["good"], "predicted": ["good", "bad"], "probabilities": SHARES},
    {"text": "a", "label": [0.5, 1.0], "predicted": ["bad"], "probabilities": SHARES},
    {
        "text": "a b c",
        "tokens": ["a", "b", "c"],
        "label": ["B-PER", "I-PER", "O"],
        "predicted": ["B-PER", "O", "B-LOC"],
        "probabilities": [0.5, None, 0.75],
    },
    {
        "text": "who?",
        "label": ["a b", "b"],
        "predicted": "b c",
        "around": ["a ", " d"],
        "probability": 0.5,
    },
)
CONFIG = {"task_kind": "t", "init_from": "m", "steps": 20, "model": {"hidden_size": 8}}
TOLD = {
    "score": {"name": "accuracy", "value": 0.5},
    "best_step": 10,
    "scores": {"dev": {"accuracy": 0.5, "loss": 1.5}},
    "training_examples": 100,
    "examples": {"dev": 5},
    "padding": 0.25,
}
RECORDS = [
    {"kind": "train", "step": 10, "phase": 0, "loss": 1.5, "accuracy": 0.5},
    {"kind": "eval", "step": 10, "phase": 0, "accuracy": 0.25},
    {"kind": "eval", "step": 20, "phase": 1, "accuracy": 0.5},
    {"kind": "time", "step": 20, "session": 1.0, "seconds": {"train": 1.0}},
]


def write_run(folder: Path, rows: bytes) -> None:
    (folder / "predictions").mkdir(exist_ok=True)
    (folder / "predictions/dev.jsonl").write_bytes(rows)
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line, RECORDS)))
    for name, content in (("config.json", CONFIG), ("metrics.json", TOLD)):
        (folder / name).write_text(json.dumps(content))


def line(record: dict) -> bytes:
    return json.dumps(record).encode() + b"\n"


def reported(draw: random.Random, folder: Path) -> bool:
    """Whether a run is read and its findings are made; of a few also its page, which takes long."""
    try:
        page = write_report(folder).read_text("utf-8") if draw.random() < 0.005 else ""
        for each in read_run(folder).sets:
            if each.findings:
                json.dumps(each.findings.figures())
                each.findings.baseline()
    except UserError as error:
        return refused(error)
    assert "<script" not in page
    return True


def predictions(draw: random.Random, folder: Path) -> bool:
    row = draw.choice(KINDS)
    rows = [line(row) for _ in range(draw.randrange(1, 4))]
    rows[draw.randrange(len(rows))] = damaged_json(row, draw) + b"\n"
    content = b"".join(rows)
    write_run(folder, damaged(content, draw) if draw.random() < 0.2 else content)
    return reported(draw, folder)


def run_files(draw: random.Random, folder: Path) -> bool:
    write_run(folder, line(KINDS[0]))
    name = draw.choice(("config.json", "metrics.json"))
    (folder / name).write_bytes(damaged_json(json.loads((folder / name).read_bytes()), draw))
    return reported(draw, folder)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", [predictions, run_files])
def test_damaged_files_of_a_run_are_refused_or_reported(case, inputs):
    fuzz(case, inputs)
