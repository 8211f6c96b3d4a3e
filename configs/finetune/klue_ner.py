"""KLUE-NER: Korean entities of six types, tagged on characters.

    python -m bert_jax.finetune --config=klue_ner --config.init_from=MODEL \\
        --config.task.train=klue-ner-v1.1_train.tsv --config.task.dev=klue-ner-v1.1_dev.tsv

The files are those of github.com/KLUE-benchmark/KLUE; MODEL is one with a Korean vocabulary.

A piece has one tag, that of its first character, so that a name and the particle after it should
not be one piece. Of a model that is never wrong about a piece, 5,000 sentences would have these F1,
by the vocabulary, trained on Korean Wikipedia: unigram of 8,000 pieces 0.95 and of 16,000 0.92,
WordPiece 0.85 and 0.82.

The values are the paper's (section 5.3 and appendix A.3): batches of 32, three epochs, 5e-5.

Cost: 21,008 sentences: 1,971 steps.
Published (github.com/KLUE-benchmark/KLUE), F1 of entities: 83.97 of a base pretrained on 62 GB of
Korean, with a vocabulary that keeps particles apart.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.tagging import Tagging


def get_config() -> FinetuneConfig:
    """The paper's values over KLUE's columns."""
    return FinetuneConfig(task=Tagging(units="characters"))
