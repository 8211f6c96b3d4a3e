"""Word, position and token-type embeddings (BERT paper, figure 2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint

from bert_jax.config import BertConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.layers import dropout_seed, initializer, layer_norm


class Embeddings(nn.Module):
    """Sum of the three embeddings, LayerNorm, dropout."""

    config: BertConfig

    def setup(self) -> None:
        c = self.config
        self.word_embeddings = self.param(
            "word_embeddings",
            initializer(c, ("vocab", "embed")),
            (c.padded_vocab_size, c.hidden_size),
        )
        self.position_embeddings = self.param(
            "position_embeddings",
            initializer(c, ("position", "embed")),
            (c.max_position_embeddings, c.hidden_size),
        )
        self.token_type_embeddings = self.param(
            "token_type_embeddings",
            initializer(c, ("token_type", "embed")),
            (c.type_vocab_size, c.hidden_size),
        )
        self.LayerNorm = layer_norm(c, name="LayerNorm")

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """Embed.

        Args:
          input_ids, token_type_ids: int32 [B, L].
          position_ids: int32 [B, L]; by default 0, 1, ..., L - 1 in each row.
          deterministic: no dropout.

        Returns:
          [B, L, D] of the compute dtype; NaN where an id is outside its table.
        """
        c = self.config
        if position_ids is None:
            positions_LD = self.position_embeddings[: input_ids.shape[1]]
        else:
            positions_LD = lookup(self.position_embeddings, position_ids)
        embedded_BLD = (
            lookup(self.word_embeddings, input_ids, c.vocab_size)
            + lookup(self.token_type_embeddings, token_type_ids)
            + positions_LD
        )
        embedded_BLD = with_logical_constraint(embedded_BLD, ("batch", None, None))
        seed = dropout_seed(self, c.hidden_dropout_prob, deterministic)
        return dropout(self.LayerNorm(embedded_BLD), c.hidden_dropout_prob, seed)


def lookup(table: jax.Array, ids: jax.Array, size: int | None = None) -> jax.Array:
    """Rows `ids` of `table` [rows, D], NaN where an id is negative or not below `size` (all rows).

    Plain indexing clamps such an id and `jnp.take` counts a negative one from the end: both would
    hide a vocabulary that disagrees with the data.
    """
    size = size or table.shape[0]
    inside = (ids >= 0) & (ids < size)
    return jnp.take(table, jnp.where(inside, ids, table.shape[0]), axis=0, mode="fill")
