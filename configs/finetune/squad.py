"""SQuAD 1.1: the stretch of a paragraph that answers a question about it, as the paper trains it.

    python -m bert_jax.finetune --config=squad --config.init_from=MODEL \\
        --config.task.train=train-v1.1.json --config.task.dev=dev-v1.1.json

MODEL is a pretrained one; the files are those of rajpurkar.github.io/SQuAD-explorer, or the hub's
.parquet. The values are those of the paper, section 4.2, and of run_squad.py.

Cost: 87,599 questions are about 89,000 windows, and 8,300 steps. Windows have 162 pieces in the
mean, so that batches of similar length compute half of what windows of 384 would: 2.7e16 FLOPs with
base, which is minutes of a data-centre GPU, and a day or more of a few CPU cores.
Published on dev: base F1 88.5 and exact match 80.8 (table 2), run_squad.py itself 88.4 and 81.2.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.question_answering import QuestionAnswering


def get_config() -> FinetuneConfig:
    """The paper's values: batches of 32, three epochs at 5e-5."""
    return FinetuneConfig(task=QuestionAnswering(), batch_size=32, epochs=3)
