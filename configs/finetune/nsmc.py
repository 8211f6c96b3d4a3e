"""NSMC: whether a Korean review of a film is for (1) or against it (0).

    python -m bert_jax.finetune --config=nsmc --config.init_from=MODEL \\
        --config.task.train=ratings_train.tsv --config.task.dev=ratings_test.tsv

The files are ratings_train.txt and ratings_test.txt of github.com/e9t/nsmc, renamed to .tsv:
columns id, document and label. A few reviews are empty: they are left out and counted;
--config.task.broken=error refuses them. MODEL is one with a Korean vocabulary: an uncased WordPiece
vocabulary takes syllables apart into letters, which is then what it reads.

The values are the paper's (appendix A.3): batches of 32, three epochs, 5e-5, lengths to 128.

Cost: 150,000 reviews, most of them short: 14,100 steps.
To expect: labels are balanced, so 50 % by chance.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification


def get_config() -> FinetuneConfig:
    """The paper's values over NSMC's columns."""
    return FinetuneConfig(
        task=Classification(text_column="document", id_column="id", broken="skip")
    )
