"""Fine-tuning follows transformers in PyTorch: the same weights, batches and AdamW, no dropout."""

import dataclasses
import functools
import random
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from peer_models import WORDS, peer, save_peer
from sample_examples import LABELS, MAKERS

from bert_jax.config import OptimizerConfig
from bert_jax.data.buckets import collate
from bert_jax.interop import load_params, load_weights
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.objective import task_objective
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.tagging import Tagging
from bert_jax.tasks.task import Feature, Task
from bert_jax.training.objective import summed_loss
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.rates import layer_rate, with_rates
from bert_jax.training.state import NORM_WINDOW, TrainState
from bert_jax.training.steps import train_step

STEPS, ROWS, PADDING_ROWS, LENGTH = 20, 8, 2, 24
OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=2e-3, warmup_steps=5)
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


TASKS: list[Task] = [
    Classification(pair_column="pair", labels=LABELS, max_length=LENGTH),
    Tagging(labels=LABELS, score="accuracy", max_length=LENGTH),
    QuestionAnswering(max_length=LENGTH, stride=6, query=8),
]


def batches(task: Task, tokenizer: Any) -> list[dict[str, np.ndarray]]:
    """Random examples of different lengths; two rows pad each batch."""
    draw = random.Random(0)
    found = []
    for _ in range(STEPS):
        # One sequence is as long as any, so that all batches have one shape.
        lengths = [(10, 20), *((draw.randint(1, 6), draw.randint(2, 9)) for _ in range(ROWS - 1))]
        examples = [
            MAKERS[type(task)](draw, draw.choices(WORDS, k=a), draw.choices(WORDS[:4], k=b))
            for a, b in lengths
        ]
        features = [f for of_example in task.features(examples, tokenizer) for f in of_example]
        kept: list[Feature] = draw.sample(features[1:], ROWS - 1) + features[:1]
        found.append(collate(kept, ROWS + PADDING_ROWS, tokenizer.pad_id))
    return found


def torch_labels(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Our labels as transformers wants them."""
    if "start" in batch:
        names = {"start_positions": batch["start"], "end_positions": batch["end"]}
    elif "token_labels" in batch:
        names = {"labels": np.where(batch["token_weights"] > 0, batch["token_labels"], -100)}
    else:
        names = {"labels": batch["label"]}
    return {name: torch.tensor(array[:ROWS]).long() for name, array in names.items()}


def torch_losses(theirs: Any, data: list[dict[str, np.ndarray]]) -> list[float]:
    """As transformers' Trainer: no decay on biases and LayerNorm, gradients clipped to 1."""
    groups: tuple[list, list] = ([], [])
    for name, parameter in theirs.named_parameters():
        groups[name.endswith("bias") or "LayerNorm" in name].append(parameter)
    decayed, kept = (
        {"params": g, "weight_decay": d} for g, d in zip(groups, (0.01, 0.0), strict=True)
    )
    optimizer = torch.optim.AdamW([decayed, kept], betas=(0.9, 0.999), eps=1e-6)
    theirs.train()
    # Padding competes for the ends of an answer. In run_squad.py that trains its embedding, too;
    # transformers leaves that row out of the gradient.
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    losses = []
    for step, batch in enumerate(data):
        inputs = {name: torch.tensor(batch[name][:ROWS]).long() for name in INPUTS}
        loss = theirs(**inputs, **torch_labels(batch)).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        warmup = OPTIMIZER.warmup_steps
        share = step / warmup if step < warmup else 1 - step / STEPS
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.learning_rate * share
        optimizer.step()
    return losses


def our_losses(task: Task, directory: Path, data: list[dict[str, np.ndarray]]) -> list[float]:
    """The loss of each step of the compiled training step, weights read from `directory`."""
    weights = load_weights(directory)
    config = dataclasses.replace(
        weights.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    rate = functools.partial(layer_rate, layers=config.num_hidden_layers)
    feature = {name: array[0] for name, array in data[0].items()}
    objective = task_objective(task, task.model(config), feature, rate)
    abstract = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    params, at_random = load_params(weights, abstract)
    assert at_random == []
    optimizer = with_rates(make_optimizer(OPTIMIZER, STEPS), rate)
    state = TrainState(jnp.int32(0), params, optimizer.init(params), jnp.zeros(NORM_WINDOW))
    step = jax.jit(functools.partial(train_step, objective=objective, optimizer=optimizer))
    losses = []
    for arrays in data:
        batch = jax.tree.map(jnp.asarray, arrays)
        state, metrics, outcome = step(state, batch, 0)
        assert not outcome.skipped
        assert float(summed_loss(metrics, objective.weights(batch))) == float(outcome.loss)
        losses.append(float(outcome.loss))
    return losses


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_twenty_steps_follow_transformers(task: Task, tmp_path):
    theirs = peer(
        task.architecture,
        num_hidden_layers=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    directory = save_peer(theirs, tmp_path / "model")
    tokenizer = load_weights(directory).tokenizer
    data = batches(task, tokenizer)
    assert {batch["input_ids"].shape for batch in data} == {(ROWS + PADDING_ROWS, LENGTH)}
    ours, expected = our_losses(task, directory, data), torch_losses(theirs, data)
    print(max(abs(a - b) for a, b in zip(ours, expected, strict=True)))  # shown by -s
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
    # The weights have moved: a model that stands still would follow, too.
    assert abs(np.mean(expected[-5:]) - np.mean(expected[:5])) > 0.05
