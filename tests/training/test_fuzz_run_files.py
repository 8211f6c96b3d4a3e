"""A run's own files damaged by the thousand: refused, or a report, a config, a history."""

import functools
import json
import random
from pathlib import Path

import pytest
from fuzzing import INPUTS, damaged, damaged_json, fuzz, refused
from small_run import get_config

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models.config_json import bert_config_from_json, bert_config_to_json
from bert_jax.report import read_run, write_report
from bert_jax.training.metrics import read_metrics, truncate_after
from bert_jax.training.run_directory import open_run_directory
from bert_jax.training.run_files import read_json, write_json

NOISE = {"tokens_per_second": 5e3, "mfu": None, "input_wait": 0.1, "grad_norm": 1.5}
METRICS = {"mlm_loss": 4.0, "nsp_loss": 0.6, "mlm_accuracy": 0.1, "nsp_accuracy": 0.5}
RECORDS = [
    {
        "time": 1.0,
        "kind": "baseline",
        "step": 0,
        "phase": 0,
        "mlm_accuracy": 0.1,
        "nsp_accuracy": 0.5,
    },
    {"time": 1.0, "kind": "train", "step": 1, "phase": 0, "loss": 4.6, **METRICS, **NOISE},
    {"time": 1.5, "kind": "train", "step": 2, "phase": 1, "loss": 4.6, **METRICS, **NOISE},
    {"time": 2.0, "kind": "eval", "step": 2, "phase": 0, "mlm_perplexity": 54.6, **METRICS},
    {
        "time": 3.0,
        "kind": "time",
        "step": 2,
        "session": 1.0,
        "seconds": {"train": 1.0, "compile": 2.5},
    },
]
PREDICTIONS = {
    "examples": [
        {
            "text_with_mask": "the [MASK] of",
            "targets": [{"truth": "end", "predictions": [["end", 0.5], ["\u2581a", 0.1]]}],
        }
    ]
}


@functools.cache
def run_config(folder: Path) -> bytes:
    """The config.json of a run."""
    (folder / "made").mkdir(exist_ok=True)
    open_run_directory(folder / "made", get_config(), "shards", "fingerprint")
    return (folder / "made/config.json").read_bytes()


def reports_well(draw: random.Random, folder: Path) -> bool:
    """Whether a run is read; of a few its report is made too, which takes far longer."""
    try:
        page = write_report(folder).read_text("utf-8") if draw.random() < 0.005 else ""
        read_run(folder)
    except UserError as error:
        return refused(error)
    assert "<script" not in page
    return True


def write_run(folder: Path) -> None:
    (folder / "config.json").write_bytes(run_config(folder))
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line, RECORDS)))
    write_json(folder / "predictions.json", PREDICTIONS)
    write_json(folder / "environment.json", {"devices": {"cpu": 8}, "python": "3.11"})


def line(record: dict) -> bytes:
    return json.dumps(record).encode() + b"\n"


def metrics_jsonl(draw: random.Random, folder: Path) -> bool:
    write_run(folder)
    path, at = folder / "metrics.jsonl", draw.randrange(len(RECORDS))
    lines = [line(record) for record in RECORDS]
    lines[at] = damaged_json(RECORDS[at], draw) + b"\n"
    path.write_bytes(damaged(b"".join(lines), draw) if draw.random() < 0.3 else b"".join(lines))
    if not reports_well(draw, folder):
        return False
    kept = truncated(folder)
    assert {r["step"] for r in kept if r["kind"] in ("train", "eval")} <= {0, 1}
    assert truncated(folder) == kept
    return True


def truncated(folder: Path) -> list[dict]:
    truncate_after(folder, 1)
    return read_metrics(folder)


def report_files(draw: random.Random, folder: Path) -> bool:
    write_run(folder)
    path = folder / draw.choice(("config.json", "predictions.json", "environment.json"))
    path.write_bytes(damaged_json(json.loads(path.read_bytes()), draw))
    return reports_well(draw, folder)


def run_directory(draw: random.Random, folder: Path) -> bool:
    """A directory to go on in is the run's own, or refused."""
    content = {
        "config.json": run_config(folder),
        "data.json": json.dumps({"directory": "d", "fingerprint": "fingerprint"}).encode(),
    }
    name = draw.choice(list(content))
    content[name] = damaged_json(json.loads(content[name]), draw)
    for file, data in content.items():
        (folder / file).write_bytes(data)
    try:
        open_run_directory(folder, get_config(), "shards", "fingerprint")
    except UserError as error:
        return refused(error)
    return True


def config_json(draw: random.Random, folder: Path) -> bool:
    fields = bert_config_to_json(BertConfig()) | {"id2label": {"0": "a"}, "is_decoder": False}
    path = folder / "config.json"
    path.write_bytes(damaged_json(fields, draw))
    try:
        config = bert_config_from_json(read_json(path, 1 << 20) or {}, str(path))
    except UserError as error:
        return refused(error)
    assert config.hidden_size % config.num_attention_heads == 0
    assert 0 <= config.hidden_dropout_prob < 1
    assert min(config.vocab_size, config.num_hidden_layers, config.intermediate_size) > 0
    return True


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("case", [metrics_jsonl, report_files, run_directory, config_json])
def test_a_damaged_run_file_is_refused_or_right(case, inputs):
    fuzz(case, inputs)
