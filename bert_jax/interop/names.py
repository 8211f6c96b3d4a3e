"""The table of names: what each parameter is called here, by Hugging Face and by Google.

Rows are over the unrolled, unpadded tree; `{i}` is the number of a layer. The axes letters are
those of `bert_jax.models`, with N for the rows of the position table, T for token types and C for
labels. Letters that stand together are axes here that are one axis in both files: a query kernel
is [D, H, K] here and [D, D] there. `.T` after a name says that its matrix is stored transposed, as
torch.nn.Linear and the original's `output_weights` are. Google's name is the one here with its
last part as given, `=` where that is the same; after a slash it is the whole name.

Sources: modeling_bert.py of transformers; modeling.py, run_pretraining.py, run_classifier.py and
run_squad.py of github.com/google-research/bert.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from bert_jax.config import BertConfig

# (scope here and in Google's files, scope in Hugging Face's): name, axes, Hugging Face, Google.
_TABLE = {
    ("bert/embeddings", "bert.embeddings"): """
        word_embeddings                   V,D   word_embeddings.weight            =
        position_embeddings               N,D   position_embeddings.weight        =
        token_type_embeddings             T,D   token_type_embeddings.weight      =
        LayerNorm/scale                   D     LayerNorm.weight                  gamma
        LayerNorm/bias                    D     LayerNorm.bias                    beta
    """,
    ("bert/encoder/layer_{i}", "bert.encoder.layer.{i}"): """
        attention/self/query/kernel       D,HK  attention.self.query.weight.T     =
        attention/self/query/bias         HK    attention.self.query.bias         =
        attention/self/key/kernel         D,HK  attention.self.key.weight.T       =
        attention/self/key/bias           HK    attention.self.key.bias           =
        attention/self/value/kernel       D,HK  attention.self.value.weight.T     =
        attention/self/value/bias         HK    attention.self.value.bias         =
        attention/output/dense/kernel     HK,D  attention.output.dense.weight.T   =
        attention/output/dense/bias       D     attention.output.dense.bias       =
        attention/output/LayerNorm/scale  D     attention.output.LayerNorm.weight gamma
        attention/output/LayerNorm/bias   D     attention.output.LayerNorm.bias   beta
        intermediate/dense/kernel         D,F   intermediate.dense.weight.T       =
        intermediate/dense/bias           F     intermediate.dense.bias           =
        output/dense/kernel               F,D   output.dense.weight.T             =
        output/dense/bias                 D     output.dense.bias                 =
        output/LayerNorm/scale            D     output.LayerNorm.weight           gamma
        output/LayerNorm/bias             D     output.LayerNorm.bias             beta
    """,
    ("bert/pooler", "bert.pooler"): """
        dense/kernel                      D,D   dense.weight.T                    =
        dense/bias                        D     dense.bias                        =
    """,
    ("cls/predictions", "cls.predictions"): """
        transform/dense/kernel            D,D   transform.dense.weight.T          =
        transform/dense/bias              D     transform.dense.bias              =
        transform/LayerNorm/scale         D     transform.LayerNorm.weight        gamma
        transform/LayerNorm/bias          D     transform.LayerNorm.bias          beta
        output_bias                       V     bias                              =
    """,
    ("cls/seq_relationship", "cls.seq_relationship"): """
        kernel                            D,2   weight.T  output_weights.T
        bias                              2     bias      output_bias
    """,
    ("classifier", "classifier"): """
        kernel                            D,C   weight.T  /output_weights.T
        bias                              C     bias      /output_bias
    """,
    ("qa_outputs", "qa_outputs"): """
        kernel                            D,2   weight.T  /cls/squad/output_weights.T
        bias                              2     bias      /cls/squad/output_bias
    """,
}
POOLER, MLM, NSP = "bert/pooler", "cls/predictions", "cls/seq_relationship"
CLASSIFIER, SPANS = "classifier", "qa_outputs"
# The scopes that an architecture has beside the encoder.
PARTS = {
    "BertModel": {POOLER},
    "BertForPreTraining": {POOLER, MLM, NSP},
    "BertForMaskedLM": {MLM},
    "BertForNextSentencePrediction": {POOLER, NSP},
    "BertForSequenceClassification": {POOLER, CLASSIFIER},
    "BertForTokenClassification": {CLASSIFIER},
    "BertForQuestionAnswering": {SPANS},
    "BertForMultipleChoice": {POOLER, CLASSIFIER},
}


class Stored(NamedTuple):
    """A tensor's name in a file, and whether its matrix is transposed there."""

    name: str
    transposed: bool


class Row(NamedTuple):
    """One parameter: its scope and path here, its axes in groups, and its names in files."""

    scope: str
    ours: str
    axes: tuple[str, ...]
    huggingface: Stored
    google: Stored

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape here."""
        return tuple(sizes[letter] for group in self.axes for letter in group)

    def matrix_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape in files, before any transposition."""
        return tuple(math.prod(sizes[letter] for letter in group) for group in self.axes)


def table_rows(layers: int) -> list[Row]:
    """The table for an encoder of so many layers, with the heads of all architectures."""
    rows = [
        _row(scope, line.split())
        for scope, lines in _TABLE.items()
        for line in lines.strip().splitlines()
    ]
    return [
        filled
        for row in rows
        for filled in ([_numbered(row, i) for i in range(layers)] if "{i}" in row.ours else [row])
    ]


def axis_sizes(config: BertConfig, labels: int) -> dict[str, int]:
    """The size of each axis letter."""
    return {
        "V": config.vocab_size,
        "N": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "K": config.hidden_size // config.num_attention_heads,
        "F": config.intermediate_size,
        "C": labels,
        "2": 2,
    }


def _row(scopes: tuple[str, str], columns: list[str]) -> Row:
    (scope, hf_scope), (name, axes, hf_name, google_name) = scopes, columns
    ours = f"{scope}/{name}"
    if google_name == "=":
        google = ours
    elif google_name.startswith("/"):
        google = google_name[1:]
    else:
        google = f"{ours.rpartition('/')[0]}/{google_name}"
    return Row(
        scope, ours, tuple(axes.split(",")), _stored(f"{hf_scope}.{hf_name}"), _stored(google)
    )


def _stored(name: str) -> Stored:
    return Stored(name.removesuffix(".T"), name.endswith(".T"))


def _numbered(row: Row, index: int) -> Row:
    def fill(stored: Stored) -> Stored:
        return stored._replace(name=stored.name.format(i=index))

    return row._replace(
        ours=row.ours.format(i=index),
        huggingface=fill(row.huggingface),
        google=fill(row.google),
    )
