"""Multi-head self-attention (BERT paper, section 3; Vaswani et al., 2017)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint

from bert_jax.config import BertConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.layers import Projection, dropout_seed, layer_norm, product

# Added to the scores of masked keys. The original adds -10000 (modeling.py, `attention_layer`); in
# a row with any key to attend to, both give masked keys a probability of exactly 0 in float32.
MASKED = jnp.finfo(jnp.float32).min


def mask_bias(attention_mask: jax.Array) -> jax.Array:
    """What a mask [B, L] (1 = attend to this key) adds to the scores: float32 [B, 1, 1, L].

    Keys alone are masked. Where every key of a row is, the scores are lost in the addition and its
    queries attend to all keys equally, as in transformers.
    """
    return jnp.where(attention_mask[:, None, None, :] > 0, 0.0, MASKED)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    *,
    dtype: str,
    dropout_rate: float,
    dropout_seed: jax.Array | None,
) -> jax.Array:
    """softmax(query key^T / sqrt(K) + bias), dropout, times value.

    Args:
      query, key, value: [B, H, L, K].
      bias: float32, broadcastable to [B, H, L, L].
      dtype: of the operands of both products; scores and softmax are float32.
      dropout_rate: share of the probabilities that are dropped, by `dropout_seed` (uint32 [2]);
        none are where that is None.

    Returns:
      float32 [B, H, L, K].
    """
    scores_BHLL = product("BHLK,BHMK->BHLM", dtype, query, key)
    scores_BHLL = scores_BHLL * query.shape[-1] ** -0.5 + bias
    probs_BHLL = jax.nn.softmax(scores_BHLL).astype(dtype)
    probs_BHLL = dropout(probs_BHLL, dropout_rate, dropout_seed)
    return product("BHLM,BHMK->BHLK", dtype, probs_BHLL, value)


class SelfAttention(nn.Module):
    """Query, key and value projections, and attention among them."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(self, hidden: jax.Array, bias: jax.Array) -> jax.Array:
        """[B, L, D] and the mask's bias [B, 1, 1, L] to context [B, H, L, K]."""
        c = self.config
        shape = (c.hidden_size, c.num_attention_heads, c.hidden_size // c.num_attention_heads)
        query_BHLK, key_BHLK, value_BHLK = (
            with_logical_constraint(
                Projection(c, "BLD,DHK->BHLK", shape, ("embed", "heads", "kv"), name=name)(hidden),
                ("batch", "heads", None, None),
            )
            for name in ("query", "key", "value")
        )
        rate = c.attention_probs_dropout_prob
        context_BHLK = attention(
            query_BHLK,
            key_BHLK,
            value_BHLK,
            bias,
            dtype=c.dtype,
            dropout_rate=rate,
            dropout_seed=dropout_seed(self, rate, self.deterministic),
        )
        return context_BHLK.astype(c.dtype)


class ResidualOutput(nn.Module):
    """The end of both halves of a layer: projection to D, dropout, residual, LayerNorm.

    Attributes: as `Projection`'s.
    """

    config: BertConfig
    spec: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    deterministic: bool

    @nn.compact
    def __call__(self, inputs: jax.Array, residual: jax.Array) -> jax.Array:
        """LayerNorm(residual + dropout(projection of inputs)), [B, L, D]."""
        c = self.config
        projected_BLD = Projection(c, self.spec, self.shape, self.axes, name="dense")(inputs)
        seed = dropout_seed(self, c.hidden_dropout_prob, self.deterministic)
        dropped_BLD = dropout(projected_BLD, c.hidden_dropout_prob, seed)
        sum_BLD = residual.astype(jnp.float32) + dropped_BLD.astype(jnp.float32)
        return layer_norm(c)(sum_BLD)


class Attention(nn.Module):
    """Self-attention and its output, post-LN."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(self, hidden: jax.Array, bias: jax.Array) -> jax.Array:
        """[B, L, D] and the mask's bias [B, 1, 1, L] to [B, L, D]."""
        c = self.config
        context_BHLK = SelfAttention(c, self.deterministic, name="self")(hidden, bias)
        shape = (c.num_attention_heads, c.hidden_size // c.num_attention_heads, c.hidden_size)
        axes = ("heads", "kv", "embed")
        output = ResidualOutput(c, "BHLK,HKD->BLD", shape, axes, self.deterministic, name="output")
        return output(context_BHLK, hidden)
