"""Parts of speech: a tag for each word of a sentence, scored by accuracy.

    python -m bert_jax.finetune --config=pos --config.init_from=MODEL \\
        --config.task.train=train.tsv --config.task.dev=dev.tsv

The files have a word a line, its tag in the last column and a blank line between sentences, or they
are a .jsonl of lines {"tokens": ["..."], "tags": ["..."]}. Where columns have other places, they
are named: --config.task.header=tokens,tags,chunk,entity reads CoNLL-2003's. A treebank in CoNLL-U
becomes two columns by `grep -Pv '^(#|\\d+[-.])' train.conllu | cut -f2,4`.

The values are the paper's for tagging (section 5.3 and appendix A.3): batches of 32, three epochs,
5e-5; a word is tagged by its first piece.

Cost: a step every 32 sentences, three times over.
To expect: the most frequent tag of each word is right for about nine words of ten.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.tagging import Tagging


def get_config() -> FinetuneConfig:
    """The paper's values."""
    return FinetuneConfig(task=Tagging(score="accuracy"))
