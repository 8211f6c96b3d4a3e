"""A task of GLUE by its name: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.

    python -m bert_jax.finetune --config=glue:sst2 --config.init_from=MODEL
    python -m bert_jax.finetune --config=glue:sst2:DIR --config.init_from=MODEL

The first fetches the data set glue/sst2 by TFDS; the second reads GLUE's own files, of which DIR
has the folders (DIR/SST-2/train.tsv). Where the folder has no dev.tsv, a tenth of the training
examples is held out; where it has test.tsv, predictions/SST-2.tsv in the run's directory is what
gluebenchmark.com takes. MNLI is scored on both its dev sets, and picked by the matched one.

The values are the paper's (section 4.1): batches of 32, three epochs, the best of 5e-5, 4e-5, 3e-5
and 2e-5 on dev: `--sweep optimizer.learning_rate=5e-5,4e-5,3e-5,2e-5`. The small sets (CoLA, MRPC,
RTE, STS-B) differ from seed to seed: `--seeds=5`.

Cost: three passes over 2,490 (RTE) to 392,702 (MNLI) examples; SST-2's 67,349 come to 6,315 steps.
Published on the test sets (table 1), base: MNLI 84.6 and 83.4, QQP 71.2 (F1), QNLI 90.5, SST-2
93.5, CoLA 52.1 (Matthews), STS-B 85.8 (Spearman), MRPC 88.9 (F1), RTE 66.4.
"""

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.glue import glue_settings
from bert_jax.tasks.regression import Regression


def get_config(argument: str = "sst2") -> FinetuneConfig:
    """The paper's values; the argument is NAME, or NAME:DIR."""
    name, _, folder = argument.partition(":")
    settings = glue_settings(name, folder or "tfds")
    task = Regression if name == "stsb" else Classification
    return FinetuneConfig(task=task(**settings))
