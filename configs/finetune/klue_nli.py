"""KLUE-NLI: whether a Korean premise entails a hypothesis, contradicts it or does neither.

    python -m bert_jax.finetune --config=klue_nli --config.init_from=MODEL \\
        --config.task.train=klue-nli-v1.1_train.json --config.task.dev=klue-nli-v1.1_dev.json

The files are those of github.com/KLUE-benchmark/KLUE; MODEL is one with a Korean vocabulary.

The values are the paper's (appendix A.3): batches of 32, three epochs, 5e-5, lengths to 128.

Cost: 24,998 pairs: 2,346 steps.
To expect: labels are balanced, so 33 % by chance, which small models stay near.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification


def get_config() -> FinetuneConfig:
    """The paper's values over KLUE's fields."""
    return FinetuneConfig(
        task=Classification(
            text_column="premise",
            pair_column="hypothesis",
            label_column="gold_label",
            id_column="guid",
        )
    )
