"""Tagging over an encoder that stays as it is (BERT paper, section 5.3 and table 7).

What some layers say of each piece goes into two bidirectional LSTM layers and a projection, which
begin at random and are all that learns. Table 7, dev F1 on CoNLL-2003 of base: the last four layers
side by side 96.1, their weighted sum 95.9, the last but one 95.6, the weighted sum of all twelve
95.5, the last one 94.9, the embeddings 91.0; fine-tuning 96.4.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.encoder import BertModel
from bert_jax.models.layers import Projection, dropout_seed
from bert_jax.models.task_heads import Outputs

# The rows of table 7: which hidden states, of the embeddings and then of each layer. Several are
# put side by side, or added up with weights where the name says so.
FEATURES = {
    "concat_last_four": slice(-4, None),
    "weighted_last_four": slice(-4, None),
    "weighted_all": slice(1, None),
    "second_to_last": slice(-2, -1),
    "last": slice(-1, None),
    "embeddings": slice(0, 1),
}
_DEPTH = 2


class FeatureTagger(nn.Module):
    """A logit for each of `labels` labels of every piece, over the features of a frozen encoder.

    Attributes:
      features: a key of FEATURES.
      width: of an LSTM layer in each direction.
    """

    config: BertConfig
    labels: int
    features: str = "concat_last_four"
    width: int = 768

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """Returns token_logits, float32 [B, L, labels]."""
        states_SBLD, _ = BertModel(self.config, pooling=False, name="bert")(
            input_ids, token_type_ids, attention_mask, hidden_states=True
        )
        states_SBLD = jax.lax.stop_gradient(states_SBLD)[FEATURES[self.features]]
        weighted = self.features.startswith("weighted")
        head = FeatureHead(self.config, self.labels, weighted, self.width, name="tagger")
        return {"token_logits": head(states_SBLD, attention_mask, deterministic=deterministic)}


class FeatureHead(nn.Module):
    """Layers' features made one, two bidirectional LSTM layers, a projection.

    Attributes:
      weighted: whether layers are added up, with weights that are learnt, or put side by side.
      width: as `FeatureTagger`'s.
    """

    config: BertConfig
    labels: int
    weighted: bool
    width: int

    @nn.compact
    def __call__(
        self, states: jax.Array, attention_mask: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """[S, B, L, D] of S layers and [B, L] to logits, float32 [B, L, labels].

        What is padding changes nothing elsewhere: the backward direction begins where it ends.
        """
        states = states.astype(jnp.float32)
        if self.weighted:
            # Peters et al. (2018, "Deep contextualized word representations"), equation 1.
            weights_S = self.param(
                "layer_weights", nn.initializers.zeros, (len(states),), jnp.float32
            )
            scale = self.param("scale", nn.initializers.ones, (1,), jnp.float32)
            hidden_BLE = scale * jnp.einsum("S,SBLD->BLD", nn.softmax(weights_S), states)
        else:
            hidden_BLE = jnp.concatenate(list(states), axis=-1)
        lengths_B = attention_mask.sum(axis=1)
        for index in range(_DEPTH):
            directions: list[Any] = [
                nn.RNN(
                    nn.OptimizedLSTMCell(self.width, parent=None),
                    reverse=name == "backward",
                    keep_order=True,
                    name=f"{name}_{index}",
                )(hidden_BLE, seq_lengths=lengths_B)
                for name in ("forward", "backward")
            ]
            hidden_BLE = jnp.concatenate(directions, axis=-1)
        seed = dropout_seed(self, self.config.hidden_dropout_prob, deterministic)
        dropped_BLE = dropout(hidden_BLE, self.config.hidden_dropout_prob, seed)
        shape = (2 * self.width, self.labels)
        project = Projection(
            self.config, "BLE,EC->BLC", shape, ("embed", "class"), name="classifier"
        )
        return project(dropped_BLE).astype(jnp.float32)
