"""BERT's encoder and pretraining heads: pure functions of (parameters, batch), in Flax linen.

Dimension key, in every file of this package; an intermediate carries its dimensions as a suffix
(`scores_BHLL`), a public argument does not:

  B  batch                    K  width of one head
  L  length                   F  width of the feed-forward layer (intermediate_size)
  D  width (hidden_size)      V  rows of the embedding table (vocabulary, padded)
  H  attention heads          P  predicted (masked) positions of a row
                              N  sequences of a packed row
                              W  positions of a row whose output is wanted

The parameter tree mirrors the variable scopes of the original code
(github.com/google-research/bert, modeling.py and run_pretraining.py), with a LayerNorm's gamma
and beta called scale and bias:

  bert/embeddings/{word_embeddings, position_embeddings, token_type_embeddings, LayerNorm}
  bert/encoder/layer/attention/self/{query, key, value}     kernels [D, H, K]
  bert/encoder/layer/attention/output/{dense, LayerNorm}    kernel  [H, K, D]
  bert/encoder/layer/intermediate/dense                     kernel  [D, F]
  bert/encoder/layer/output/{dense, LayerNorm}              kernel  [F, D]
  bert/pooler/dense                                         kernel  [D, D]
  cls/predictions/{transform/{dense, LayerNorm}, output_bias}
  cls/seq_relationship                                      kernel  [D, 2]

Scanned layers share one `layer` whose arrays have the depth as their first axis; unrolled ones
are `layer_0`, `layer_1`, ...
"""

from bert_jax.config import BertConfig
from bert_jax.models.encoder import BertModel
from bert_jax.models.heads import BertForPreTraining

__all__ = ["BertConfig", "BertForPreTraining", "BertModel"]
