"""Tasks over texts from a table to a model: each learns, and transformers computes the same."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_finetune import WORDS, write_model

from bert_jax.config import OptimizerConfig
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_data import read_data
from bert_jax.finetuning import finetune
from bert_jax.interop import load_weights
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.multilabel import MultiLabel
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.splits import held_out
from bert_jax.tasks.tagging import Tagging
from bert_jax.tasks.task import Example, Task

COUNT = 240


def rows(kind: str) -> list[dict[str, Any]]:
    """Texts about birds in some places; what is to be said of them is where."""
    draw = random.Random(0)
    made: list[dict[str, Any]] = []
    for _ in range(COUNT):
        words, bird = draw.choices(WORDS[:5], k=6), draw.random() < 0.5
        text = " ".join([*words, "bird"] if bird else words)
        if kind == "regression":
            made.append({"text": text, "score": 2.0 * bird - 1})
        elif kind == "multilabel":
            made.append({"text": text, "label": [0.9, 0.2] if bird else [0.1, 0.2]})
        else:
            choices = [" ".join(words[:3]), " ".join(words[3:])]
            choices[bird] += " bird"
            made.append({"context": words[0], "choices": choices, "label": int(bird)})
    return made


TASKS: dict[str, tuple[type[Task], str, float]] = {
    "regression": (Regression, "pearson_spearman", 0.6),
    "multilabel": (MultiLabel, "mean_average_precision", 0.95),
    "multiple_choice": (MultipleChoice, "accuracy", 0.8),
}


def labelled_row(kind: str, text: str, label: str) -> dict[str, Any]:
    if kind == "tagging":
        words = text.split()
        return {"tokens": words, "tags": [f"B-{label}", *["O"] * (len(words) - 1)]}
    return {"text": text, "label": [label] if kind == "multilabel" else label}


@pytest.mark.parametrize("task", [Classification(), MultiLabel(), Tagging()])
def test_a_label_of_one_example_is_known_though_it_is_held_out(task: Task, tmp_path: Path):
    texts = [f"bird {number}" for number in range(60)]
    _, dev = held_out([Example(where="", text=text) for text in texts], 0.3)
    labels = {text: ("a", "b", "b")[number % 3] for number, text in enumerate(texts)}
    labels[dev[0].text] = "rare"
    rows = [labelled_row(task.kind, text, label) for text, label in labels.items()]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = dataclasses.replace(task, train=str(tmp_path / "train.jsonl"), dev_fraction=0.3)
    if isinstance(task, Classification):
        task = dataclasses.replace(task, class_weights="balanced")
    tokenizer = load_weights(write_model(tmp_path / "model")).needed_tokenizer()
    data = read_data(FinetuneConfig(task=task, batch_size=8), tokenizer, 1)
    assert [example.text for example in data.dev.examples] == [example.text for example in dev]
    learnt = data.task
    assert isinstance(learnt, Classification | MultiLabel | Tagging)
    assert {label.rpartition("-")[2] for label in learnt.labels} - {"O"} == {"a", "b", "rare"}
    if isinstance(learnt, Classification):  # what is held out is not counted
        trained = [label for text, label in labels.items() if text not in {e.text for e in dev}]
        counts = (trained.count("a"), trained.count("b"), 1)
        assert learnt.weights == pytest.approx([len(trained) / 3 / count for count in counts])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_a_task_is_learnt_and_transformers_says_the_same(kind: str, tmp_path: Path):
    task, score, reached = TASKS[kind]
    lines = [json.dumps(row) + "\n" for row in rows(kind)]
    (tmp_path / "train.jsonl").write_text("".join(lines[40:]))
    (tmp_path / "dev.jsonl").write_text("".join(lines[:40]))
    config = FinetuneConfig(
        task=task(
            train=str(tmp_path / "train.jsonl"), dev=str(tmp_path / "dev.jsonl"), max_length=24
        ),
        init_from=str(write_model(tmp_path / "model")),
        batch_size=16,
        optimizer=OptimizerConfig(learning_rate=1e-3),
    )
    config.validate()
    assert finetune(config, tmp_path / "run")
    scores = json.loads((tmp_path / "run/metrics.json").read_text())["scores"]["dev"]
    assert scores[score] > reached

    directory = tmp_path / "run/model"
    model = getattr(transformers, task.architecture).from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for line in (tmp_path / "run/predictions/dev.jsonl").read_text().splitlines()[:10]:
        said = json.loads(line)
        texts = (said["text"],)
        if kind == "multiple_choice":
            texts = ([said["text"]] * 2, said["choices"])
        inputs = tokenizer(*texts, padding=True, return_tensors="pt")
        if kind == "multiple_choice":
            inputs = {name: value[None] for name, value in inputs.items()}
        with torch.no_grad():
            logits = model(**inputs).logits[0].double()
        if kind == "regression":
            assert said["predicted"] == pytest.approx(float(logits[0]), abs=1e-5)
            continue
        shares = logits.sigmoid() if kind == "multilabel" else logits.softmax(0)
        assert list(said["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-5)
    problem = {"regression": "regression", "multilabel": "multi_label_classification"}
    assert model.config.problem_type == problem.get(kind)
