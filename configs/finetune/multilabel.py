"""Any number of labels for each text, with shares: soft targets, or hard ones.

    python -m bert_jax.finetune --config=multilabel --config.init_from=MODEL \\
        --config.task.train=train.jsonl '--config.task.labels=("anger","joy","fear")'

A line of the .jsonl is {"text": "...", "label": [0.6, 0.2, 0.0]}, a share in [0, 1] of each label
(of annotators who chose it, say), or {"text": "...", "label": ["joy"]}, the names of those that
apply. Without --config.task.labels shares are numbered, and names are learnt.

The loss is the sigmoid cross-entropy, mean over labels. The values are the paper's (appendix A.3):
batches of 32, three epochs, 5e-5, lengths to 128.

Cost: a step every 32 texts, three times over.
To expect: F1 of the labels with a share from 0.5 on, which is 0 until a model is that sure of any:
rare labels want more epochs. The mean absolute error tells of the shares themselves; where they
matter, --config.task.score=log_likelihood picks the best model by them.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.multilabel import MultiLabel


def get_config() -> FinetuneConfig:
    """The paper's values."""
    return FinetuneConfig(task=MultiLabel())
