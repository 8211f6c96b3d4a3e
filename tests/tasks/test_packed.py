"""Fine-tuning over packed rows is fine-tuning over padded ones."""

import functools
import random
from typing import Any

import jax
import numpy as np
import optax
import pytest
from peer_models import PIECES, WORDS
from sample_examples import LABELS, MAKERS

from bert_jax.config import BertConfig, MeshConfig, OptimizerConfig
from bert_jax.data.buckets import collate
from bert_jax.data.packed_features import piece_places
from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.multiple_choice import Choice, MultipleChoice
from bert_jax.tasks.objective import task_objective
from bert_jax.tasks.tagging import Tagging
from bert_jax.tasks.task import Task
from bert_jax.training.program import training_program
from bert_jax.training.rates import layer_rate
from bert_jax.training.sharding import make_mesh, shard_batch
from bert_jax.training.state import create_state

BATCH, LENGTH = 16, 24
CONFIG = BertConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    vocab_multiple=8,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    # Far enough from uniform attention for a key too many to be seen.
    initializer_range=0.3,
)
TASKS: list[Task] = [
    Classification(pair_column="pair", labels=LABELS, max_length=LENGTH),
    Tagging(labels=LABELS, max_length=LENGTH),
    MultipleChoice(choices=2, max_length=LENGTH),
]


def example(task: Task, draw: random.Random) -> Any:
    first, second = (draw.choices(WORDS, k=draw.randint(1, 4)) for _ in range(2))
    if isinstance(task, MultipleChoice):
        return Choice(where="", text=" ".join(first), choices=(" ".join(second), "bird"), label="1")
    return MAKERS[type(task)](draw, first, second)


def batch_of(task: Task, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Short sequences; one is as long as any, and two rows pad the batch."""
    draw = random.Random(1)
    examples = [example(task, draw) for _ in range(BATCH - 2)]
    features = [feature for (feature,) in task.features(examples, tokenizer)]
    return collate(features, BATCH, tokenizer.pad_id, sizes=(LENGTH,))


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
@pytest.mark.parametrize(("devices", "accumulate"), [(1, 1), (2, 2)])
def test_a_packed_step_is_the_padded_one(task, devices, accumulate, tokenizer):
    padded = batch_of(task, tokenizer)
    lengths = padded["attention_mask"].sum(axis=-1)
    packed = padded | {"places": piece_places(lengths, LENGTH, LENGTH, devices, accumulate)}
    assert packed["places"].size < 0.8 * padded["input_ids"].size
    # It is the lay-out that says what is padding.
    packed["attention_mask"] = np.zeros_like(padded["attention_mask"])

    config = FinetuneConfig(model=CONFIG, optimizer=OptimizerConfig(accumulate=accumulate))
    mesh = make_mesh(MeshConfig(data=devices), jax.devices()[:devices])
    rate = functools.partial(layer_rate, layers=CONFIG.num_hidden_layers)
    feature = {name: array[0] for name, array in padded.items()}
    objective = task_objective(task, task.model(CONFIG), feature, rate)
    with jax.set_mesh(mesh):
        # The parameters then tell the gradients as they are.
        _, optimizer, abstract, step = training_program(config, objective, optax.sgd(1.0), mesh)
        start = jax.device_get(create_state(objective, optimizer, abstract, seed=3))
        shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)

        def run(batch: dict[str, np.ndarray]) -> Any:
            state = jax.device_put(start, shardings)
            placed = shard_batch(mesh, batch)
            program = step.lower(state, placed, 0).compile().as_text()
            state, metrics, outcome = step(state, placed, 0)
            return jax.device_get((state.params, metrics, outcome.loss)), program

        (expected, plain), (found, program) = map(run, (padded, packed))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), found, expected
    )
    # No piece goes from a device to another.
    for kind in ("all-gather", "all-to-all", "collective-permute"):
        assert program.count(f"{kind}(") == plain.count(f"{kind}(") == 0
