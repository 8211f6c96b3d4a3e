"""The pretraining heads: masked language model and next-sentence prediction."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint

from bert_jax.config import BertConfig
from bert_jax.models.activations import activation
from bert_jax.models.encoder import BertModel, nothing_but_cls
from bert_jax.models.layers import LayerNorm, Projection, constant
from bert_jax.models.word_table import WordTable, word_logits

# Logit of the rows that pad the embedding table: their probability is 0 in float32.
PADDED_LOGIT = -1e9


class PredictionTransform(nn.Module):
    """The non-linear layer before the output embeddings."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[B, P, D] to [B, P, D]."""
        c = self.config
        shape = (c.hidden_size, c.hidden_size)
        dense = Projection(c, "BPD,DE->BPE", shape, ("embed", "transformed"), name="dense")
        return LayerNorm(c, name="LayerNorm")(activation(c, dense(hidden)))


class Predictions(nn.Module):
    """Masked language model: transform, then the tied word embeddings with a bias of their own."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, word_table: WordTable) -> dict[str, jax.Array]:
        """[B, P, D] and the table of V rows to logits, float32 [B, P, V].

        And to the two they are the sum of, which is how the loss wants them.
        """
        c = self.config
        transformed_BPD = PredictionTransform(c, name="transform")(hidden)
        bias_V = self.param("output_bias", constant(0, ("vocab",)), (c.padded_vocab_size,))
        bias_V = jnp.where(jnp.arange(c.padded_vocab_size) < c.vocab_size, bias_V, PADDED_LOGIT)
        scores_BPV = with_logical_constraint(
            word_logits(c.dtype, word_table, transformed_BPD), ("batch", None, "vocab")
        )
        return {"mlm_logits": scores_BPV + bias_V, "mlm_scores": scores_BPV, "mlm_bias": bias_V}


class PreTrainingHeads(nn.Module):
    """Both heads, under the original's scope `cls`."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, hidden: jax.Array | None, pooled: jax.Array | None, word_table: WordTable
    ) -> dict[str, jax.Array]:
        """Masked positions [B, P, D] and pooled output, where given, to float32 logits.

        The pooled output is [B, D], or [B, N, D] of packed rows.
        """
        c = self.config
        logits = {}
        if hidden is not None:
            logits |= Predictions(c, name="predictions")(hidden, word_table)
        if pooled is not None:
            shape, axes = (c.hidden_size, 2), ("embed", "class")
            spec = "BND,DC->BNC" if pooled.ndim == 3 else "BD,DC->BC"
            head = Projection(c, spec, shape, axes, name="seq_relationship")
            logits["nsp_logits"] = head(pooled).astype(jnp.float32)
        return logits


class BertForPreTraining(nn.Module):
    """The encoder with its pretraining heads.

    Attributes:
      next_sentence: whether the model has a pooler and a next-sentence head.
    """

    config: BertConfig
    next_sentence: bool = True

    def setup(self) -> None:
        self.bert = BertModel(self.config, pooling=self.next_sentence)
        self.cls = PreTrainingHeads(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | None,
        masked_lm_positions: jax.Array | None,
        position_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> dict[str, jax.Array]:
        """Encode and predict.

        Args:
          input_ids, token_type_ids: int32 [B, L]; an id outside its table gives NaN.
          attention_mask: [B, L], 1 = attend to this position, 0 = padding.
          masked_lm_positions: int32 [B, P], the positions to predict; None for no masked-LM head.
          position_ids: int32 [B, L]; by default 0, 1, ..., L - 1 in each row.
          segment_ids, cls_positions: of packed rows, see `BertModel`.
          deterministic: no dropout; else a "dropout" key is needed.

        Returns:
          mlm_logits: float32 [B, P, V], with `PADDED_LOGIT` or so at rows from vocab_size on; the
          sum of mlm_scores, [B, P, V], and mlm_bias, [V];
          and with next_sentence nsp_logits, float32 [B, 2] (0 = is next, 1 = random), and
          pooled_output, [B, D] of the compute dtype; of packed rows [B, N, 2] and [B, N, D].
        """
        predicts = masked_lm_positions is not None
        masked_BPD, pooled_output = self.bert(
            input_ids,
            token_type_ids,
            attention_mask,
            position_ids,
            segment_ids,
            cls_positions,
            masked_lm_positions if predicts else nothing_but_cls(input_ids),
            deterministic=deterministic,
        )
        word_table = self.bert.embeddings.word_table
        outputs = self.cls(masked_BPD if predicts else None, pooled_output, word_table)
        if pooled_output is not None:
            outputs["pooled_output"] = pooled_output
        return outputs
