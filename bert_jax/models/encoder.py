"""The encoder: a stack of layers, scanned or unrolled, and the model around it."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint
from jax.experimental.xla_metadata import set_xla_metadata

from bert_jax.config import BertConfig
from bert_jax.models.activations import activation
from bert_jax.models.attention import Attention, ResidualOutput
from bert_jax.models.devices import device_platform
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layers import PROJECTION, Projection, at_positions
from bert_jax.models.packed import apart, positions_and_segments, together

# The axis that a stack of layers has before those of each.
_STACKED = "layers"


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
    """One encoder layer: attention, then feed-forward, each with residual and LayerNorm after.

    Attributes:
      stacked: whether a scan over layers is to stack their outputs.
    """

    config: BertConfig
    deterministic: bool
    stacked: bool = False

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        wanted: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """[B, L, D] and the mask or the segments [B, L] to ([B, L, D], what a scan stacks).

        With `wanted` [B, W] all but keys and values is computed at these positions alone, and the
        output is [B, W, D].
        """
        c = self.config
        attend = Attention(c, self.deterministic, name="attention")
        attended_BLD = attend(hidden, attention_mask, segment_ids, wanted)
        wide_BLF = Intermediate(c, name="intermediate")(attended_BLD)
        shape = (c.intermediate_size, c.hidden_size)
        output = ResidualOutput(
            c, "BLF,FD->BLD", shape, ("mlp", "embed"), self.deterministic, name="output"
        )
        hidden_BLD = with_logical_constraint(output(wide_BLF, attended_BLD), ("batch", None, None))
        return hidden_BLD, hidden_BLD if self.stacked else None


class Encoder(nn.Module):
    """`num_hidden_layers` layers: one scanned `layer`, or `layer_0`, `layer_1`, ..."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None = None,
        wanted: jax.Array | None = None,
        *,
        deterministic: bool = True,
        hidden_states: bool = False,
    ) -> jax.Array:
        """[B, L, D] and the mask [B, L], or the segments in its place, to [B, L, D].

        With `wanted`, int32 [B, W], to [B, W, D] of these positions: the last layer computes no
        others. With `hidden_states`, to the input and every layer's output, [layers + 1, B, L, D].
        """
        c = self.config
        if c.scan_layers:
            if wanted is not None and not self.is_initializing():
                return self._last_apart(hidden, attention_mask, segment_ids, wanted, deterministic)
            stacks = hidden_states or not deterministic  # what every layer says, or residuals
            scanned = scan_over_layers(c, c.num_hidden_layers, stacks)
            stack = scanned(c, deterministic, hidden_states, name="layer")
            last, states = stack(hidden, attention_mask, segment_ids)
            if hidden_states:
                return jnp.concatenate([hidden[None], states])
            return last if wanted is None else at_positions(last, wanted)
        if self.is_initializing():
            every = self._made_row(hidden, attention_mask, segment_ids, wanted)
        else:
            every = self._row(hidden, attention_mask, segment_ids, wanted, deterministic)
        return jnp.stack(every) if hidden_states else every[-1]

    def _row(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        wanted: jax.Array | None,
        deterministic: bool,
    ) -> list[jax.Array]:
        """The input and the output of each of the layers, which lie in a row."""
        c = self.config
        layer = rematerialized(c, looped=False)
        # JAX traces one function once, however many layers call it. But a TPU's compiler divides it
        # over the devices before it inlines it: sums of two layers would be told apart by nothing.
        run = functools.partial(_run, layer(c, deterministic, parent=None))
        run = jax.jit(run, inline=device_platform() == "tpu")
        # What is to be captured of a layer, Flax finds in a module that has a name.
        captured = self.is_mutable_collection("intermediates")
        # A constant that layers share XLA writes out once, as large as what it is added to, and on
        # a CPU each layer reads it, where it could be part of the layer's one kernel
        # (docs/cpu_path.md). Functions that stay apart share none.
        apart = deterministic and device_platform() == "cpu" and not captured
        key, count = self._dropout_key(), c.num_hidden_layers
        keys = [None] * count if key is None else jax.random.split(key, count)
        every = [hidden]
        for index in range(count):
            name = f"layer_{index}"
            here = wanted if index == count - 1 else None
            inputs = (every[-1], attention_mask, segment_ids, here)
            if captured:
                state: Any = layer(c, deterministic, name=name)(*inputs)[0]
            else:
                params = nn.unbox(self.get_variable("params", name))
                with jax.named_scope(name):  # for who reads a profile
                    state = run(params, keys[index], *inputs)
            if apart:
                state = set_xla_metadata(state, inlineable="false")
            every.append(state)
        return every

    def _made_row(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        wanted: jax.Array | None,
    ) -> list[jax.Array]:
        """As `_row`, without dropout, of parameters that are made here.

        They are made as a stack's, which is one program however many layers there are, and taken
        apart.
        """
        c = self.config
        scanned = scan_over_layers(c, c.num_hidden_layers, stacks=False)
        stack = scanned(c, True, stacked=True, parent=None)
        inputs = (hidden, attention_mask, segment_ids)
        (last, states), made = stack.init_with_output(self.make_rng("params"), *inputs)
        for index in range(c.num_hidden_layers):
            layer = jax.tree.map(lambda leaf, index=index: leaf[index], made["params"])
            layer = nn.meta.remove_axis(layer, 0, {nn.PARTITION_NAME: _STACKED})
            self.put_variable("params", f"layer_{index}", layer)
        return [hidden, *states[:-1], last if wanted is None else at_positions(last, wanted)]

    def _dropout_key(self) -> jax.Array | None:
        return self.make_rng("dropout") if self.has_rng("dropout") else None

    def _last_apart(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        wanted: jax.Array,
        deterministic: bool,
    ) -> jax.Array:
        """[B, L, D] to [B, W, D]: a scan over all layers but the last, and that where it is read.

        The parameters of all stay one array, of which each takes its part.
        """
        c = self.config
        params = nn.unbox(self.get_variable("params", "layer"))
        scanned = scan_over_layers(c, c.num_hidden_layers - 1, stacks=not deterministic)
        stack = scanned(c, deterministic, parent=None)
        layer = rematerialized(c, looped=False)(c, deterministic, parent=None)
        inputs = (attention_mask, segment_ids)
        before_last = jax.tree.map(lambda x: x[:-1], params)
        hidden = _run(stack, before_last, self._dropout_key(), hidden, *inputs)
        last = jax.tree.map(lambda x: x[-1], params)
        return _run(layer, last, self._dropout_key(), hidden, *inputs, wanted)


def _run(
    layers: nn.Module, params: Any, key: jax.Array | None, *inputs: jax.Array | None
) -> jax.Array:
    """The output of one layer or of a stack, with parameters and a key that are in hand."""
    rngs = None if key is None else {"dropout": key}
    outputs: Any = layers.apply({"params": params}, *inputs, rngs=rngs)
    return outputs[0]


def scan_over_layers(config: BertConfig, length: int, stacks: bool) -> Any:
    """`length` layers as one, their parameters stacked; `stacks`: outputs or residuals as well."""
    same_in_all: Any = nn.broadcast
    return nn.scan(
        rematerialized(config, looped=_loops(config) and length > 1),
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=same_in_all,
        length=length,
        unroll=stacks and not _loops(config),
        metadata_params={nn.PARTITION_NAME: _STACKED},
    )


def _loops(config: BertConfig) -> bool:
    """Whether a scan over layers that stacks something is a loop in the program.

    On a GPU a loop copies out of the stack what each turn of the backward pass reads.
    On a CPU what is bfloat16, residuals above all, is cast to float32 and back, that of all layers
    in each: XLA knows no bfloat16 update of a slice there. Laid out in a row, the layers of `base`
    take 0.8 of the time, and compile in 1.3 times as long (docs/cpu_path.md).
    """
    return config.dtype == "float32" or device_platform() == "tpu"


def rematerialized(config: BertConfig, looped: bool) -> Any:
    """`Layer`, of which the backward pass computes again what `config.remat` says.

    "dots" keeps the products with weights; attention scores, which grow with the square of the
    length, are computed again. A loop's body (`looped`) is compiled on its own, so that nothing can
    merge the two computations.
    """
    if config.remat == "none":
        return Layer
    policy = {
        "dots": jax.checkpoint_policies.save_only_these_names(PROJECTION),
        "full": jax.checkpoint_policies.nothing_saveable,
    }[config.remat]
    return nn.remat(Layer, policy=policy, prevent_cse=not looped)


class Pooler(nn.Module):
    """tanh projection of [CLS]."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[B, D] to [B, D]; or [B, N, D], of packed rows, to [B, N, D]."""
        c = self.config
        shape = (c.hidden_size, c.hidden_size)
        spec = "BND,DE->BNE" if hidden.ndim == 3 else "BD,DE->BE"
        dense = Projection(c, spec, shape, ("embed", "pooled"), name="dense")
        return jnp.tanh(dense(hidden))


def nothing_but_cls(input_ids: jax.Array) -> jax.Array:
    """What is `wanted` of `BertModel` by those who read the pooled output alone, int32 [B, 0]."""
    return jnp.zeros((len(input_ids), 0), jnp.int32)


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
        attention_mask: jax.Array | None,
        position_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        wanted: jax.Array | None = None,
        *,
        places: jax.Array | None = None,
        deterministic: bool = True,
        hidden_states: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encode.

        Args:
          input_ids, token_type_ids: int32 [B, L]; an id outside its table gives NaN.
          attention_mask: [B, L], 1 = attend to this position, 0 = padding.
          position_ids: int32 [B, L]; by default 0, 1, ..., L - 1 in each row.
          segment_ids: int32 [B, L], in place of `attention_mask` where rows are packed: each
            position attends to those of its own id; 0 = padding.
          cls_positions: int32 [B, N], of the [CLS] of each sequence of packed rows.
          wanted: int32 [B, W], the positions whose output is wanted, the pooler's [CLS] aside; all
            by default. The last layer computes no others. Not with `hidden_states`.
          places: int32 [G, R, M], see `bert_jax.models.packed`: lay the sequences into these rows
            to compute them. Takes the place of mask, positions and segments; not with
            `hidden_states`. What is said of padding is 0.
          deterministic: no dropout; else a "dropout" key is needed.
          hidden_states: whether to give what every layer says, not the last alone.

        Returns:
          sequence_output [B, L, D], or [B, W, D] at `wanted`, and pooled_output [B, D], or
          [B, N, D] at `cls_positions` (None without pooling), of the compute dtype. With
          `hidden_states`, the first is [layers + 1, B, L, D]: the embeddings, then the output of
          each layer.
        """
        batch, length = input_ids.shape
        if places is not None:
            input_ids, token_type_ids = (together(x, places) for x in (input_ids, token_type_ids))
            position_ids, segment_ids = positions_and_segments(places, batch, length)
            attention_mask = None
        embedded_BLD = self.embeddings(
            input_ids, token_type_ids, position_ids, deterministic=deterministic
        )
        read = wanted
        if wanted is not None and self.pooling:
            first = jnp.zeros((batch, 1), jnp.int32)
            cls = first if cls_positions is None else cls_positions
            read = jnp.concatenate([wanted, cls], axis=1)
        encoded = self.encoder(
            embedded_BLD,
            attention_mask,
            segment_ids,
            read if places is None else None,
            deterministic=deterministic,
            hidden_states=hidden_states,
        )
        if places is not None:
            encoded = apart(encoded, places, batch, length)
            encoded = encoded if read is None else at_positions(encoded, read)
        if not self.pooling:
            return encoded, None
        if wanted is not None:
            encoded, cls_BND = jnp.split(encoded, [wanted.shape[1]], axis=1)
        elif cls_positions is not None:
            cls_BND = at_positions(encoded, cls_positions)
        else:
            cls_BND = (encoded[-1] if hidden_states else encoded)[:, :1]
        return encoded, self.pooler(cls_BND[:, 0] if cls_positions is None else cls_BND)
