"""BERT-base as the paper pretrained it.

    python -m bert_jax.train --config=base --workdir=runs/base

English Wikipedia through TFDS (downloaded and prepared on first use: tens of GB), an uncased
WordPiece vocabulary of 30,522, one million steps of 256 sequences: 900,000 at length 128 and
100,000 at 512 (paper, appendix A.2). The paper's BooksCorpus is no longer published; for one's own
text, `python -m bert_jax.prepare` first, then `--config.data.dir=DIR`.

Cost: 4.3e10 tokens, about 2.2e19 FLOPs: four days on the paper's 16 TPU chips.
To reach: SQuAD 1.1 dev F1 88.5 after fine-tuning (paper, table 2: BERT-base, single).
"""

from bert_jax.config import Config, model_size


def get_config(size: str = "base") -> Config:
    """The recipe of the paper, for any of the published sizes (`--config=base:medium`)."""
    config = Config(model=model_size(size))
    config.corpus.source = "tfds:wikipedia/20230601.en"
    return config
