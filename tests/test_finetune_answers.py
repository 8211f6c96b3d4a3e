"""Question answering from files to a model: it learns, and transformers computes the same."""

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
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.registry import load_task

COUNT = 300


def write_squad(path: Path, count: int, seed: int) -> Path:
    """Where there is a Bird, with its accents and its punctuation, that is the answer."""
    draw = random.Random(seed)
    paragraphs: list[dict[str, Any]] = []
    for number in range(count):
        words: list[str] = draw.choices(WORDS[:4], k=draw.randint(6, 40))
        bird = draw.choice(["Bird", "bírd", "BIRD"])
        entry = {"id": f"{path.stem}{number}", "question": "which bird?", "answers": []}
        if draw.random() < 0.7:
            words.insert(draw.randrange(len(words)), f"({bird}),")
            start = " ".join(words).index(bird)
            entry |= {"answers": [{"text": bird, "answer_start": start}], "is_impossible": False}
        else:
            entry["is_impossible"] = True
        paragraphs.append({"context": " ".join(words), "qas": [entry]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
    return path


def test_another_true_answer_of_dev_makes_it_another_set(tmp_path: Path):
    """A model is scored by all true answers, and what it reads has the first alone."""
    train = write_squad(tmp_path / "train.json", 8, seed=0)
    dev = write_squad(tmp_path / "dev.json", 8, seed=1)
    task = QuestionAnswering(train=str(train), dev=str(dev), max_length=32, stride=10)
    config = FinetuneConfig(task=task, batch_size=8)
    tokenizer = load_weights(write_model(tmp_path / "start")).needed_tokenizer()
    data = read_data(config, tokenizer, 1)
    assert data.training_examples == 8 < len(data.train), "windows are several"
    before = data.fingerprint
    content = json.loads(dev.read_text())
    question = next(p["qas"][0] for p in content["data"][0]["paragraphs"] if p["qas"][0]["answers"])
    answer = question["answers"][0]
    question["answers"].append(answer | {"text": answer["text"][:-1]})
    dev.write_text(json.dumps(content))
    assert read_data(config, tokenizer, 1).fingerprint != before


@pytest.mark.slow
def test_answers_are_learnt_and_transformers_says_the_same(tmp_path: Path, capsys):
    config = FinetuneConfig(
        task=QuestionAnswering(
            train=str(write_squad(tmp_path / "train.json", COUNT, seed=0)),
            dev=str(write_squad(tmp_path / "dev.json", 50, seed=1)),
            max_length=32,
            stride=10,
        ),
        init_from=str(write_model(tmp_path / "start")),
        batch_size=16,
        epochs=4,
        optimizer=OptimizerConfig(learning_rate=2e-3),
    )
    config.validate()
    assert finetune(config, tmp_path / "run")

    told = json.loads((tmp_path / "run/metrics.json").read_text())
    assert told["training_examples"] == COUNT, "questions, not windows"
    assert f"{COUNT} to train on, 50 to score" in capsys.readouterr().out
    scores = told["scores"]["dev"]
    assert scores["f1"] > 0.9
    assert scores["no_answer_f1"] > 0.8
    lines = (tmp_path / "run/predictions/dev.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in lines]
    official = json.loads((tmp_path / "run/predictions/dev_answers.json").read_text())
    assert official == {prediction["id"]: prediction["predicted"] for prediction in said}
    assert sum([p["predicted"]] == p["label"] for p in said if p["label"]) > 25

    # Another process has all it needs in the model directory: windows, threshold and weights.
    directory = tmp_path / "run/model"
    weights = load_weights(directory)
    task = load_task(directory, weights)
    assert isinstance(task, QuestionAnswering)
    assert task.unanswerable
    assert weights.tokenizer
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory)
    examples = task.read(tmp_path / "dev.json")[:20]
    for example, prediction in zip(examples, said, strict=False):
        (features,) = task.features([example], weights.tokenizer)
        outputs = []
        for feature in features:
            names = ("input_ids", "token_type_ids", "attention_mask")
            with torch.no_grad():
                theirs = model(**{name: torch.tensor(feature[name][None]).long() for name in names})
            starts, ends = theirs.start_logits[0].numpy(), theirs.end_logits[0].numpy()
            outputs.append({"token_starts": starts, "token_ends": ends})
        (again,) = task.predictions([example], [features], [outputs])
        assert again["predicted"] == prediction["predicted"]
        assert again["null_margin"] == pytest.approx(prediction["null_margin"], abs=1e-4)
