"""One label of several for each pair of texts of one's own table: paraphrases, entailment, matches.

    python -m bert_jax.finetune --config=pairs --config.init_from=MODEL \\
        --config.task.train=train.tsv --config.task.dev=dev.tsv

The table is as that of `classify`, with the columns text, pair and label;
--config.task.text_column, pair_column and label_column name others. Pairs longer than
--config.task.max_length lose pieces of their longer text.

The values are the paper's (appendix A.3): batches of 32, three epochs, 5e-5, lengths to 128.

Cost: a step every 32 pairs, three times over.
To expect: base of the paper has 66.4 % of RTE's test set right after 2,490 pairs, and 84.6 % of
MNLI's after 392,702 (table 1).
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification


def get_config() -> FinetuneConfig:
    """The paper's values."""
    return FinetuneConfig(task=Classification(pair_column="pair"))
