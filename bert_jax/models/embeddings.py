"""Word, position and token-type embeddings (BERT paper, figure 2)."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint

from bert_jax.config import BertConfig
from bert_jax.models.devices import device_platform
from bert_jax.models.dropout import dropout
from bert_jax.models.layers import (
    LayerNorm,
    dropout_draw,
    dropout_seed,
    gathered,
    initializer,
    sum_of_rows,
)
from bert_jax.models.word_table import AXES, word_rows, word_table


class Embeddings(nn.Module):
    """Sum of the three embeddings, LayerNorm, dropout."""

    config: BertConfig

    def setup(self) -> None:
        c = self.config
        word_embeddings = self.param(
            "word_embeddings", initializer(c, AXES), (c.padded_vocab_size, c.hidden_size)
        )
        self.word_table = word_table(c, word_embeddings)
        self.position_embeddings = self._table("position", c.max_position_embeddings)
        self.token_type_embeddings = self._table("token_type", c.type_vocab_size)
        self.LayerNorm = LayerNorm(c)

    def _table(self, name: str, rows: int) -> jax.Array:
        axes, shape = (name, "embed"), (rows, self.config.hidden_size)
        return gathered(
            self.param(f"{name}_embeddings", initializer(self.config, axes), shape), axes
        )

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
        words = word_rows(self.word_table, inside(input_ids, c.vocab_size))
        if device_platform() == "tpu":
            # Sums for its gradient are an operation that libtpu 0.0.50 cannot emit: it ends there.
            types = lookup(self.token_type_embeddings, token_type_ids)
        else:
            types = _type_rows(c.type_vocab_size, self.token_type_embeddings, token_type_ids)
        embedded_BLD = words.astype(jnp.float32) + types + positions_LD
        embedded_BLD = with_logical_constraint(embedded_BLD, ("batch", None, None))
        seed = dropout_seed(self, c.hidden_dropout_prob, deterministic)
        draw = dropout_draw(c, ("batch", None, None))
        return dropout(self.LayerNorm(embedded_BLD), c.hidden_dropout_prob, seed, draw)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _type_rows(count: int, table: jax.Array, ids: jax.Array) -> jax.Array:
    """`lookup` in a table of few rows, `count`.

    Its gradient is a sum for each: by differentiation all positions would be added to two rows one
    by one, which on an H100 took 204 us, where two sums read 0.2 GB.
    """
    return lookup(table, ids)


def _type_rows_forward(count: int, table: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _type_rows(count, table, ids), ids


def _type_rows_backward(
    count: int, ids: jax.Array, gradient_BLD: jax.Array
) -> tuple[jax.Array, None]:
    chosen = [(ids == row).astype(jnp.float32) for row in range(count)]
    return jnp.stack([sum_of_rows(gradient_BLD, weights) for weights in chosen]), None


_type_rows.defvjp(_type_rows_forward, _type_rows_backward)


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows `ids` of `table` [rows, D], NaN where an id is outside."""
    return jnp.take(table, inside(ids, table.shape[0]), axis=0, mode="fill")


def inside(ids: jax.Array, size: int) -> jax.Array:
    """`ids`, with one that is in no table for those that are negative or not below `size`.

    Plain indexing clamps such an id and `jnp.take` counts a negative one from the end: both would
    hide a vocabulary that disagrees with the data.
    """
    return jnp.where((ids >= 0) & (ids < size), ids, jnp.iinfo(jnp.int32).max)
