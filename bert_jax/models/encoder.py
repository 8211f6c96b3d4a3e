"""The encoder: a stack of layers, scanned or unrolled, and the model around it."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint

from bert_jax.config import BertConfig
from bert_jax.models.attention import Attention, ResidualOutput, mask_bias
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layers import PROJECTION, Projection, activation


class Intermediate(nn.Module):
    """The wide half of the feed-forward layer."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[B, L, D] to [B, L, F]."""
        c = self.config
        shape = (c.hidden_size, c.intermediate_size)
        dense = Projection(c, "BLD,DF->BLF", shape, ("embed", "mlp"), name="dense")
        return with_logical_constraint(activation(c, dense(hidden)), ("batch", None, "mlp"))


class Layer(nn.Module):
    """One encoder layer: attention, then feed-forward, each with residual and LayerNorm after."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(self, hidden: jax.Array, bias: jax.Array) -> tuple[jax.Array, None]:
        """[B, L, D] and the mask's bias [B, 1, 1, L] to ([B, L, D], nothing to stack)."""
        c = self.config
        attended_BLD = Attention(c, self.deterministic, name="attention")(hidden, bias)
        wide_BLF = Intermediate(c, name="intermediate")(attended_BLD)
        shape = (c.intermediate_size, c.hidden_size)
        output = ResidualOutput(
            c, "BLF,FD->BLD", shape, ("mlp", "embed"), self.deterministic, name="output"
        )
        hidden_BLD = output(wide_BLF, attended_BLD)
        return with_logical_constraint(hidden_BLD, ("batch", None, None)), None


class Encoder(nn.Module):
    """`num_hidden_layers` layers: one scanned `layer`, or `layer_0`, `layer_1`, ..."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, hidden: jax.Array, bias: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """[B, L, D] and the mask's bias [B, 1, 1, L] to [B, L, D]."""
        c = self.config
        layer = rematerialized(c)
        if c.scan_layers:
            same_in_all: Any = nn.broadcast
            scanned = nn.scan(
                layer,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=same_in_all,
                length=c.num_hidden_layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return scanned(c, deterministic, name="layer")(hidden, bias)[0]
        for index in range(c.num_hidden_layers):
            hidden, _ = layer(c, deterministic, name=f"layer_{index}")(hidden, bias)
        return hidden


def rematerialized(config: BertConfig) -> Any:
    """`Layer`, of which the backward pass computes again what `config.remat` says.

    "dots" keeps the products with weights; attention scores, which grow with the square of the
    length, are computed again.
    """
    if config.remat == "none":
        return Layer
    policy = {
        "dots": jax.checkpoint_policies.save_only_these_names(PROJECTION),
        "full": jax.checkpoint_policies.nothing_saveable,
    }[config.remat]
    # A scan's body is compiled on its own, so that nothing can merge the two computations.
    return nn.remat(Layer, policy=policy, prevent_cse=not config.scan_layers)


class Pooler(nn.Module):
    """tanh projection of position 0, [CLS]."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[B, L, D] to [B, D]."""
        c = self.config
        shape = (c.hidden_size, c.hidden_size)
        dense = Projection(c, "BD,DE->BE", shape, ("embed", "pooled"), name="dense")
        return jnp.tanh(dense(hidden[:, 0]))


class BertModel(nn.Module):
    """Embeddings, encoder and pooler.

    Attributes:
      pooling: whether there is one; a model trained without next-sentence prediction has none.
    """

    config: BertConfig
    pooling: bool = True

    def setup(self) -> None:
        self.embeddings = Embeddings(self.config)
        self.encoder = Encoder(self.config)
        if self.pooling:
            self.pooler = Pooler(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        position_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encode.

        Args:
          input_ids, token_type_ids: int32 [B, L]; an id outside its table gives NaN.
          attention_mask: [B, L], 1 = attend to this position, 0 = padding.
          position_ids: int32 [B, L]; by default 0, 1, ..., L - 1 in each row.
          deterministic: no dropout; else a "dropout" key is needed.

        Returns:
          sequence_output [B, L, D] and pooled_output [B, D] (None without pooling), of the
          compute dtype.
        """
        embedded_BLD = self.embeddings(
            input_ids, token_type_ids, position_ids, deterministic=deterministic
        )
        sequence_output = self.encoder(
            embedded_BLD, mask_bias(attention_mask), deterministic=deterministic
        )
        return sequence_output, self.pooler(sequence_output) if self.pooling else None
