"""Multi-head self-attention (BERT paper, section 3; Vaswani et al., 2017).

Ways to compute it, of which `implementation` chooses: plain products and softmax, which run
anywhere; our own kernels, `pallas_attention` on a TPU and `gpu_attention` on an NVIDIA GPU; and
there cuDNN's, which cannot drop probabilities.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models.devices import device_kind, device_platform
from bert_jax.models.dropout import Draw, dropout
from bert_jax.models.gpu_attention import gpu_attention
from bert_jax.models.gpu_norm import fuses_layer_norm, residual_layer_norm
from bert_jax.models.kernels import LANES
from bert_jax.models.layers import (
    LayerNorm,
    Projection,
    at_positions,
    dropout_draw,
    dropout_seed,
    project,
    project_stacked,
    project_unbiased,
)
from bert_jax.models.pallas_attention import fits_vector_memory, pallas_attention
from bert_jax.models.products import product, product_in_training
from bert_jax.models.triton import has_triton_kernels

# Added to the scores of masked keys. The original adds -10000 (modeling.py, `attention_layer`); in
# a row with any key to attend to, both give masked keys a probability of exactly 0 in float32.
MASKED = jnp.finfo(jnp.float32).min
# By the compiler's schedules a step of `base_fast` takes as long either way at 128, and at 256, 384
# and 512 a fortieth, a tenth and a sixth less with the kernel (docs/tpu_path.md).
_PALLAS_PAYS = 256


def attended(
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None,
    wanted: jax.Array | None = None,
) -> jax.Array:
    """Whether a query attends to a key: bool, broadcastable to [B, H, L, L].

    Args:
      attention_mask: [B, L], 1 = attend to this key, whatever the query: [B, 1, 1, L] comes back.
      segment_ids: [B, L], in its place where rows are packed: a query attends to the keys of its
        own segment, [B, 1, L, L]. So does padding, which is a segment too: no query has none.
      wanted: [B, W], the positions of the queries where they are not all: [B, 1, W, L].
    """
    if segment_ids is not None:
        queried = segment_ids
        if wanted is not None:
            queried = jnp.take_along_axis(segment_ids, wanted, axis=1)
        return queried[:, None, :, None] == segment_ids[:, None, None, :]
    assert attention_mask is not None
    return attention_mask[:, None, None, :] > 0


def mask_bias(
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None = None,
    wanted: jax.Array | None = None,
) -> jax.Array:
    """What is added to the scores, float32, of the shape of `attended`, whose arguments these are.

    Where every key of a row is masked, the scores are lost in the addition and its queries attend
    to all keys equally, as in transformers.
    """
    return jnp.where(attended(attention_mask, segment_ids, wanted), 0.0, MASKED)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    *,
    dtype: str,
    dropout_rate: float,
    dropout_seed: jax.Array | None,
    draw: Draw | None = None,
) -> jax.Array:
    """softmax(query key^T / sqrt(K) + bias), dropout, times value.

    Args:
      query: [B, H, L, K], or [B, H, W, K] of fewer positions; key, value: [B, H, L, K].
      bias: float32, broadcastable to [B, H, L, L] or [B, H, W, L].
      dtype: of the operands of both products; scores and softmax are float32.
      dropout_rate: share of the probabilities that are dropped, by `dropout_seed` (uint32 [2]);
        none are where that is None.
      draw: see `dropout`.

    Returns:
      float32, of the shape of `query`.
    """
    # Scaled before the product: the scores are the largest array there is, and 1/8, for heads of
    # 64, rounds nothing.
    scaled_BHLK = query * query.shape[-1] ** -0.5
    scores_BHLL = product("BHLK,BHMK->BHLM", dtype, scaled_BHLK, key) + bias
    return _weighted(dtype, dropout_rate, draw, scores_BHLL, value, dropout_seed)


def _weighted(
    dtype: str,
    rate: float,
    draw: Draw | None,
    scores: jax.Array,
    value: jax.Array,
    seed: jax.Array | None,
) -> jax.Array:
    """dropout(softmax(scores)) times value.

    Its backward pass needs of [B, H, L, L] the probabilities alone, in `dtype`. Automatic
    differentiation would keep them in float32 as well, and once more after dropout: at length 512
    most of what a layer writes to memory.
    """
    kept_BHLL, _ = _kept(dtype, rate, draw, scores, seed)
    return product("BHLM,BHMK->BHLK", dtype, kept_BHLL, value)


def _kept(
    dtype: str, rate: float, draw: Draw | None, scores: Any, seed: Any
) -> tuple[jax.Array, jax.Array]:
    """The probabilities after dropout, and before."""
    probs_BHLL = jax.nn.softmax(scores).astype(dtype)
    return dropout(probs_BHLL, rate, seed, draw), probs_BHLL


def _weighted_forward(
    dtype: str, rate: float, draw: Draw | None, scores: Any, value: Any, seed: Any
) -> tuple[jax.Array, tuple[Any, ...]]:
    kept_BHLL, probs_BHLL = _kept(dtype, rate, draw, scores, seed)
    context_BHLK = product_in_training("BHLM,BHMK->BHLK", dtype, kept_BHLL, value)
    return context_BHLK, (probs_BHLL, value, seed)


def _weighted_backward(
    dtype: str, rate: float, draw: Draw | None, residuals: tuple[Any, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    probs_BHLL, value, seed = residuals
    kept_BHLL, pull_dropout = jax.vjp(lambda probs: dropout(probs, rate, seed, draw), probs_BHLL)
    _, pull = jax.vjp(functools.partial(product, "BHLM,BHMK->BHLK", dtype), kept_BHLL, value)
    kept_gradient, value_gradient = pull(gradient)
    (probs_gradient,) = pull_dropout(kept_gradient)
    weighted_BHLL = probs_BHLL.astype(jnp.float32) * probs_gradient.astype(jnp.float32)
    scores_gradient = weighted_BHLL - probs_BHLL * weighted_BHLL.sum(-1, keepdims=True)
    return scores_gradient, value_gradient, None


_weighted = jax.custom_vjp(_weighted, nondiff_argnums=(0, 1, 2))
_weighted.defvjp(_weighted_forward, _weighted_backward)


def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """`attention` without dropout, by the flash attention of cuDNN.

    Lowered for CUDA by the tests, not yet run on a GPU. The mask
    goes in as a bias [B, 1, L, L], for the library knows else only padding at a row's end. Where
    every key of a row is masked its queries attend to all keys equally.

    Args:
      query, key, value: bfloat16 or float16 [B, H, L, K], K a multiple of 8, at most 128.
      attention_mask, segment_ids: as for `attended`.

    Returns:
      [B, H, L, K] of the dtype of `query`.
    """
    batch, _, length, _ = query.shape
    mask = attended(attention_mask, segment_ids)
    mask = jnp.broadcast_to(mask, (batch, 1, length, length))
    context_BLHK = jax.nn.dot_product_attention(
        *(array.swapaxes(1, 2) for array in (query, key, value)), mask=mask, implementation="cudnn"
    )
    return context_BLHK.swapaxes(1, 2)


def implementation(config: BertConfig, length: int, deterministic: bool) -> str:
    """What computes attention here: xla, pallas or cudnn.

    Args:
      config: its `attention` is taken; "auto" takes what is fastest and can compute it.
      length: of the sequences.
      deterministic: no dropout.

    Raises:
      UserError: see `check_attention`.
    """
    platform = device_platform()
    if config.attention != "auto":
        check_attention(config, platform, deterministic, length)
        return config.attention
    drops = _drops(config, deterministic)
    whole = length % LANES == 0
    pays = {"tpu": whole and length >= _PALLAS_PAYS, "gpu": whole}.get(platform, False)
    return "pallas" if pays and not _pallas_lacks(config, drops, length) else "xla"


def check_attention(
    config: BertConfig, platform: str, deterministic: bool = False, length: int = LANES
) -> None:
    """Check that what `config.attention` names can compute it.

    Args:
      config: of the model.
      platform: of the devices: cpu, gpu or tpu.
      deterministic: whether there is no dropout whatever the config says.
      length: of the sequences, where it is known.

    Raises:
      UserError: it is for other devices, or does not have what the model needs.
    """
    chosen = config.attention
    if chosen in ("auto", "xla"):
        return
    needed, lacking = {
        "pallas": (("TPU", "GPU"), _pallas_lacks),
        "cudnn": (("GPU",), _cudnn_lacks),
    }[chosen]
    if platform.upper() not in needed:
        raise UserError(
            f"config.model.attention={chosen} runs on a {' or '.join(needed)}, and the "
            f"devices are of the backend {platform}; set it to auto"
        )
    if lacks := lacking(config, _drops(config, deterministic), length):
        raise UserError(f"config.model.attention={chosen} needs {lacks}; or set it to auto or xla")


def _drops(config: BertConfig, deterministic: bool) -> bool:
    return not deterministic and config.attention_probs_dropout_prob > 0


def _pallas_lacks(config: BertConfig, drops: bool, length: int) -> str:
    """What the kernels need that this model or these devices do not have; "" for nothing."""
    if drops and config.dropout_bits != "hash":
        return f"config.model.dropout_bits=hash, not {config.dropout_bits}"
    if device_kind() in ("TPU v2", "TPU v3"):  # Mosaic has no bfloat16 product for them
        return f"a TPU v4 or later, not a {device_kind()}"
    heads = config.num_attention_heads
    width = config.hidden_size // heads
    if device_platform() != "gpu":
        fits = fits_vector_memory(length, heads, width, config.dtype)
        return "" if fits else f"less of a TPU's vector memory than {length} keys {width} wide take"
    # Wider ones take more memory than a multiprocessor of some GPUs has.
    if width not in (16, 32, 64):
        return f"heads of 16, 32 or 64, not {width}"
    return _gpu_lacks(config)


def _cudnn_lacks(config: BertConfig, drops: bool, length: int) -> str:
    """What cuDNN needs that this model or this machine's GPU does not have; "" for nothing."""
    width = config.hidden_size // config.num_attention_heads
    if drops:
        return "config.model.attention_probs_dropout_prob=0: it cannot drop probabilities"
    if length % 2:  # for its gradient
        return f"an even length, not {length}"
    if width % 8 or width > 128:
        return f"heads of a multiple of 8 up to 128 wide, not {width}"
    return _gpu_lacks(config)


def _gpu_lacks(config: BertConfig) -> str:
    """What either kernel for a GPU needs that this model or this machine's does not have."""
    if config.dtype != "bfloat16":
        return f"config.model.dtype=bfloat16, not {config.dtype}"
    if not has_triton_kernels():
        return "an NVIDIA GPU of compute capability 8.0 (Ampere) or later"
    return ""


class SelfAttention(nn.Module):
    """Query, key and value projections, and attention among them, as `by` computes it.

    Attributes:
      by: xla, pallas or cudnn.
    """

    config: BertConfig
    deterministic: bool
    by: str

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        queried: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        wanted: jax.Array | None,
    ) -> jax.Array:
        """[B, L, D] and the mask or the segments [B, L] to context.

        Which is [B, H, L, K], or [B, L, H * K] by pallas; [B, H, W, K] of the positions `wanted`,
        which `queried` [B, W, D] is of; else that is `hidden`.
        """
        c, flat = self.config, self.by == "pallas"
        heads = c.num_attention_heads
        shape, axes = (c.hidden_size, heads, c.hidden_size // heads), ("embed", "heads", "kv")
        spec = "BLD,D(HK)->BL(HK)" if flat else "BLD,DHK->BHLK"
        projections = [Projection(c, spec, shape, axes, name=n) for n in ("query", "key", "value")]
        rate = c.attention_probs_dropout_prob
        seed = dropout_seed(self, rate, self.deterministic)
        dropped: Any = {"dropout_rate": rate, "dropout_seed": seed}
        if flat and device_platform() == "gpu":
            stacked_BLHC = project_stacked(hidden, projections)
            stacked_BLHC = with_logical_constraint(stacked_BLHC, ("batch", None, "heads", None))
            return gpu_attention(stacked_BLHC, attention_mask, segment_ids, **dropped)
        divided = ("batch", None, "heads") if flat else ("batch", "heads", None, None)
        if wanted is None:
            projected = project(hidden, projections)
        else:
            projected = project(queried, projections[:1]) + project(hidden, projections[1:])
        query, key, value = (with_logical_constraint(array, divided) for array in projected)
        if self.by == "cudnn":
            return cudnn_attention(query, key, value, attention_mask, segment_ids)
        if flat:
            return pallas_attention(
                query, key, value, attention_mask, segment_ids, heads=heads, **dropped
            )
        bias = mask_bias(attention_mask, segment_ids, wanted)
        draw = dropout_draw(c, divided)
        context_BHLK = attention(query, key, value, bias, dtype=c.dtype, draw=draw, **dropped)
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
        dense = Projection(c, self.spec, self.shape, self.axes, name="dense")
        layer_norm = LayerNorm(c, name="LayerNorm")
        rate = c.hidden_dropout_prob
        seed = dropout_seed(self, rate, self.deterministic)
        if fuses_layer_norm(c, drops=seed is not None):
            product_BLD, bias_D = project_unbiased(inputs, dense)
            rows = product_BLD, bias_D, residual
            weights, epsilon = layer_norm.weights(c.hidden_size), c.layer_norm_eps
            return residual_layer_norm(*rows, *weights, seed, rate=rate, epsilon=epsilon)
        dropped_BLD = dropout(dense(inputs), rate, seed, dropout_draw(c, ("batch", None, None)))
        sum_BLD = residual.astype(jnp.float32) + dropped_BLD.astype(jnp.float32)
        return layer_norm(sum_BLD)


class Attention(nn.Module):
    """Self-attention and its output, post-LN."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        wanted: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D] and the mask or the segments [B, L] to [B, L, D], or [B, W, D] of `wanted`."""
        c = self.config
        # Parameters are the same however attention is computed, and are made with one short row.
        # The kernels are for as many queries as keys.
        by = (
            "xla"
            if self.is_initializing() or wanted is not None
            else implementation(c, hidden.shape[1], self.deterministic)
        )
        attend = SelfAttention(c, self.deterministic, by, name="self")
        queried = hidden if wanted is None else at_positions(hidden, wanted)
        context = attend(hidden, queried, attention_mask, segment_ids, wanted)
        shape = (c.num_attention_heads, c.hidden_size // c.num_attention_heads, c.hidden_size)
        axes = ("heads", "kv", "embed")
        spec = "BL(HK),(HK)D->BLD" if by == "pallas" else "BHLK,HKD->BLD"
        output = ResidualOutput(c, spec, shape, axes, self.deterministic, name="output")
        return output(context, queried)
