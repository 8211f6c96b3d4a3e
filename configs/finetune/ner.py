"""Named entities, or other spans: a tag for each word of a sentence.

    python -m bert_jax.finetune --config=ner --config.init_from=MODEL \\
        --config.task.train=eng.train --config.task.dev=eng.testa --config.task.test=eng.testb

The files are CoNLL-2003's, or others with a word a line, its tag in the last column and a blank
line between sentences; or a .jsonl of lines {"tokens": ["..."], "tags": ["..."]}, or a .json that
lists them, or a .parquet of such columns (--config.task.tag_column=ner_tags for the hub's
conll2003). Tags are in IOB1, IOB2 or IOBES. Where columns have other places, they are named:
--config.task.header=tokens,pos,chunk,tags. Names are told by their capitals: MODEL had better be
cased. `predict` parts a text at white space, with punctuation around words and Han characters
apart: Chinese is best tagged a character a line.

The values are the paper's (section 5.3 and appendix A.3): batches of 32, three epochs, 5e-5; a word
is tagged by its first piece, without a CRF. Scores are of whole entities, as conlleval and seqeval
count them.

Cost: 14,041 sentences of CoNLL-2003 come to 1,317 steps.
Published (table 7), F1 on dev and test: base 96.4 and 92.4, large 96.6 and 92.8. There a sentence
was read with its neighbours in the document; here it is read alone, which costs some of that.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.tagging import Tagging


def get_config() -> FinetuneConfig:
    """The paper's values."""
    return FinetuneConfig(task=Tagging())
