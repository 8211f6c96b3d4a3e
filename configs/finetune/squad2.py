"""SQuAD 2.0: as SQuAD 1.1, with questions that their paragraph does not answer.

    python -m bert_jax.finetune --config=squad2 --config.init_from=MODEL \\
        --config.task.train=train-v2.0.json --config.task.dev=dev-v2.0.json

MODEL is a pretrained one; the files are those of rajpurkar.github.io/SQuAD-explorer. The values are
those of the paper, section 4.3. By how much "no answer" must be better to be said is tuned on dev
and kept with the model.

Cost: 130,319 questions are about 132,000 windows, and 5,500 steps: as much as SQuAD 1.1.
Published on dev: large F1 81.9 and exact match 78.7 (table 3).
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.question_answering import QuestionAnswering


def get_config() -> FinetuneConfig:
    """The paper's values: batches of 48, two epochs at 5e-5."""
    return FinetuneConfig(task=QuestionAnswering(unanswerable=True), batch_size=48, epochs=2)
