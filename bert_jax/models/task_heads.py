"""The heads of fine-tuning: a projection each over the encoder.

All take input_ids, token_type_ids and attention_mask, int32 [B, L], and give float32 logits; where
they take `places`, `BertModel` computes the sequences in those rows. As in
modeling_bert.py of transformers, dropout comes before the projection, but not for spans, which is
how run_squad.py of the original has it too. The scopes are those of `bert_jax.interop.names`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.encoder import BertModel, nothing_but_cls
from bert_jax.models.layers import Projection, dropout_seed

Outputs = dict[str, jax.Array]


class BertForSequenceClassification(nn.Module):
    """A logit for each of `labels` labels of a text or a pair, over the pooled output."""

    config: BertConfig
    labels: int

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        places: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """Returns logits, float32 [B, labels]."""
        inputs = [input_ids, token_type_ids, attention_mask]
        pooled_BD = _pooled(self.config, inputs, places, deterministic)
        return {"logits": _classifier(self, self.config, pooled_BD, self.labels, deterministic)}


class BertForTokenClassification(nn.Module):
    """A logit for each of `labels` labels of every piece."""

    config: BertConfig
    labels: int

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        places: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """Returns token_logits, float32 [B, L, labels]."""
        hidden_BLD, _ = BertModel(self.config, pooling=False, name="bert")(
            input_ids, token_type_ids, attention_mask, places=places, deterministic=deterministic
        )
        return {
            "token_logits": _classifier(self, self.config, hidden_BLD, self.labels, deterministic)
        }


class BertForQuestionAnswering(nn.Module):
    """How likely each piece is the first, and the last, of the answer."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """Returns token_starts and token_ends, logits, float32 [B, L]."""
        hidden_BLD, _ = BertModel(self.config, pooling=False, name="bert")(
            input_ids, token_type_ids, attention_mask, deterministic=deterministic
        )
        logits_BL2 = _projection(self.config, 3, 2, "qa_outputs")(hidden_BLD).astype(jnp.float32)
        return {"token_starts": logits_BL2[..., 0], "token_ends": logits_BL2[..., 1]}


class BertForMultipleChoice(nn.Module):
    """A logit for each of several continuations of a text."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        places: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> Outputs:
        """Takes int32 [B, choices, L], and returns logits, float32 [B, choices]."""
        choices = input_ids.shape[:2]
        inputs = [x.reshape(-1, x.shape[-1]) for x in (input_ids, token_type_ids, attention_mask)]
        pooled_BD = _pooled(self.config, inputs, places, deterministic)
        return {
            "logits": _classifier(self, self.config, pooled_BD, 1, deterministic).reshape(choices)
        }


def _pooled(
    config: BertConfig, inputs: list[jax.Array], places: jax.Array | None, deterministic: bool
) -> jax.Array:
    """The pooled output [B, D] of the encoder `bert`, of ids, types and mask [B, L]."""
    _, pooled_BD = BertModel(config, name="bert")(
        *inputs, wanted=nothing_but_cls(inputs[0]), places=places, deterministic=deterministic
    )
    assert pooled_BD is not None
    return pooled_BD


def _classifier(
    module: nn.Module, config: BertConfig, hidden: jax.Array, labels: int, deterministic: bool
) -> jax.Array:
    """Dropout, then a projection of the last axis [..., D] to float32 [..., labels]."""
    seed = dropout_seed(module, config.hidden_dropout_prob, deterministic)
    dropped = dropout(hidden, config.hidden_dropout_prob, seed)
    return _projection(config, hidden.ndim, labels, "classifier")(dropped).astype(jnp.float32)


def _projection(config: BertConfig, ndim: int, labels: int, name: str) -> Projection:
    spec = "BLD,DC->BLC" if ndim == 3 else "BD,DC->BC"
    return Projection(config, spec, (config.hidden_size, labels), ("embed", "class"), name=name)
