"""A fine-tuning run of seconds, for tests: a random model, a table of texts, and the recipe.

As a recipe: `--config=tests/small_finetune.py --config.task.train=TABLE --init_from=MODEL`.
"""

import random
from pathlib import Path

from peer_models import peer, save_peer

from bert_jax.config import BertConfig, OptimizerConfig
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification

WORDS = ("river", "stone", "light", "walk", "under", "small", "green", "bird", "house")
STEPS_AN_EPOCH, EPOCHS = 7, 6


def get_config() -> FinetuneConfig:
    """Two labels; 100 examples in batches of 16, six times."""
    return FinetuneConfig(
        model=BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        task=Classification(max_length=24),
        epochs=EPOCHS,
        batch_size=16,
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-2),
        log_every=1,
    )


def small_config(model: Path, train: Path, dev: Path) -> FinetuneConfig:
    config = get_config()
    config.init_from, config.task.train, config.task.dev = str(model), str(train), str(dev)
    return config


def write_model(folder: Path, architecture: str = "BertForPreTraining") -> Path:
    """A Hugging Face directory of a small model with random weights and a pooler."""
    folder.mkdir()
    return save_peer(peer(architecture, num_hidden_layers=2), folder)


def write_table(path: Path, count: int, seed: int = 0) -> Path:
    """A text is of the label "bird" where it speaks of one, else "stone"; all of one bucket."""
    draw = random.Random(seed)
    lines = ["text\tlabel"]
    for _ in range(count):
        words: list[str] = draw.choices(WORDS[:-2], k=draw.randint(8, 11))
        label = draw.choice(("bird", "stone"))
        if label == "bird":
            words.insert(draw.randint(0, len(words)), "bird")
        lines.append(f"{' '.join(words)}\t{label}")
    path.write_text("\n".join(lines) + "\n")
    return path
