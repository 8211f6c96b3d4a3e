"""A number for each text, or pair of texts, of one's own table.

    python -m bert_jax.finetune --config=regression --config.init_from=MODEL \\
        --config.task.train=essays.csv --config.task.text_column=essay

The table is as that of `classify`, with the columns text and score (--config.task.label_column
names another); --config.task.pair_column is that of a second text. The loss is the mean squared
error in the units of the column: numbers of the size of 1, as ratings are, suit the rate.

The values are the paper's (appendix A.3): batches of 32, three epochs, 5e-5, lengths to 128.

Cost: a step every 32 rows, three times over.
To expect: correlations, their mean and errors in the column's units. Base of the paper has a
Spearman correlation of 85.8 on STS-B's test set after 5,749 pairs (table 1).
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.regression import Regression


def get_config() -> FinetuneConfig:
    """The paper's values."""
    return FinetuneConfig(task=Regression())
