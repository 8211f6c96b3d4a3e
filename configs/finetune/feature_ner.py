"""Named entities over the features of an encoder that is not trained (paper, section 5.3).

    python -m bert_jax.finetune --config=feature_ner --config.init_from=MODEL \\
        --config.task.train=eng.train --config.task.dev=eng.testa --config.task.test=eng.testb

Two bidirectional LSTM layers of 768 over what the last four layers say, side by side;
--config.task.encoder_features has the other rows of table 7. Files and scores are those of
`--config=ner`.

The paper gives no more than the layers and their width; batches of 32, twenty epochs at 1e-3 are
usual for an LSTM that begins at random.

Cost: 14,041 sentences of CoNLL-2003 come to 8,780 steps. The encoder has no backward pass, and so a
third of its cost in fine-tuning.
Published (table 7), F1 on dev of base: the last four layers side by side 96.1, their weighted sum
95.9, the last but one 95.6, the weighted sum of all 95.5, the last 94.9, the embeddings 91.0.
"""

from bert_jax.config import OptimizerConfig
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.feature_tagging import FeatureTagging


def get_config() -> FinetuneConfig:
    """Table 7's best features: the last four layers side by side."""
    return FinetuneConfig(
        task=FeatureTagging(),
        epochs=20,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        freeze_layers=-1,
    )
