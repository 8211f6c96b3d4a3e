"""Tasks over texts from a table to a model: each learns, and transformers computes the same."""

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
from bert_jax.finetuning import finetune
from bert_jax.tasks.multilabel import MultiLabel
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.task import Task

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
