"""One label of several for each text of one's own table.

    python -m bert_jax.finetune --config=classify --config.init_from=MODEL \\
        --config.task.train=reviews.csv --config.task.text_column=review \\
        --config.task.label_column=stars

The table is a .tsv, .csv, .jsonl, .json or .parquet with named columns, or a split of a data set of
TFDS (tfds:imdb_reviews/train). Labels are learnt from it and kept with the model. Without
--config.task.dev a tenth of the texts is held out to score. Where labels are of very different
frequency, --config.task.class_weights=balanced and --config.task.score=macro_f1.

The values are the paper's (appendix A.3): batches of 32, three epochs, 5e-5, lengths to 128;
`--sweep` tries the others. Models much smaller than base want larger rates, 1e-4 to 3e-4.

Cost: a step every 32 texts, three times over; texts are batched by length, so short ones cost
little.
To expect: base of the paper has 93.5 % of SST-2's test set right after 67,349 texts (table 1).
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification


def get_config() -> FinetuneConfig:
    """The paper's values."""
    return FinetuneConfig(task=Classification())
