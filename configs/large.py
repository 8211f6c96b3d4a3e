"""BERT-large as the paper pretrained it.

    python -m bert_jax.train --config=large --workdir=runs/large

As `base`, with 24 layers of width 1,024 (paper, section 3): English Wikipedia, a million steps of
256 sequences. The phase at length 512 needs the memory of several accelerators, or
`--config.optimizer.accumulate=8 --config.model.remat=full`.

Cost: 4.3e10 tokens, about 7.9e19 FLOPs: four days on the paper's 64 TPU chips.
To reach: SQuAD 1.1 dev F1 90.9 after fine-tuning (paper, table 2: BERT-large, single).
"""

from bert_jax.config import Config, model_size


def get_config() -> Config:
    """The recipe of the paper."""
    config = Config(model=model_size("large"))
    config.corpus.source = "tfds:wikipedia/20230601.en"
    return config
