"""Splash attention: JAX's Pallas kernel for the TPU, whose scores never leave the vector memory.

Plain attention writes the scores of a layer, [B, H, L, L], to the main memory and reads them again
for softmax, for the product with the values and for the gradients. Here a tile of them is made,
used and forgotten, and the backward pass makes it again.

Blocks are as long as the sequence up to 512. A step of the kernel's grid costs about a third of
a microsecond whatever it does; a tile of 512 x 512 scores, 0.07 GFLOP, takes a v5e about twice that
and 1 MiB of its 128 MiB of vector memory in float32, where tiles of 128 x 128 would be overhead
before all. With the keys in one block the backward pass is one kernel of five products, which
computes the scores once for the three gradients; two kernels of seven products would be needed to
save memory at lengths that BERT does not have.

A head 64 wide is taken as it is. The kernel's operands have the head as their last axis, which the
TPU pads to 128 lanes: query, key, value and context take twice their bytes in memory, and the
product with the transposed keys uses half of the matrix unit, as it does in plain attention.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.spmd import logical_to_mesh_axes
from jax.experimental.pallas.ops.tpu import splash_attention as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask
from jax.sharding import PartitionSpec

LANES = 128
_BLOCKS = (512, 384, 256, LANES)


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """softmax(query key^T / sqrt(K)) over the keys that the mask leaves, times value.

    The compiler cannot divide a kernel among devices, so each works on its own rows and heads:
    under the mesh that is set, by the logical axes "batch" and "heads".

    Args:
      query, key, value: [B, H, L, K] of one dtype; scores, softmax and sums are float32. L is
        padded to a multiple of 128.
      attention_mask: [B, L], 1 = attend to this key. A row without any such key attends to all of
        them.
      segment_ids: int32 [B, L], 0 = padding, in its place where rows are packed: each position
        attends to those of its own id.
      interpret: run the kernel's steps as XLA operations, on any backend: for tests.

    Returns:
      [B, H, L, K] of the dtype of `query`.
    """
    length, width = query.shape[2:]
    padding = -length % LANES
    query_BHLK, key_BHLK, value_BHLK = (
        jnp.pad(array, ((0, 0), (0, 0), (0, padding), (0, 0))) for array in (query, key, value)
    )
    query_BHLK = (query_BHLK.astype(jnp.float32) * width**-0.5).astype(query.dtype)
    keys_BL = segment_ids
    if keys_BL is None:
        assert attention_mask is not None
        # A kernel's gradient is wrong where every key is masked.
        attended_BL = (attention_mask > 0) | ~jnp.any(attention_mask > 0, axis=1, keepdims=True)
        keys_BL = attended_BL.astype(jnp.int32)
    keys_BL = jnp.pad(keys_BL, ((0, 0), (0, padding)))

    def of_a_device(
        query: jax.Array, key: jax.Array, value: jax.Array, keys: jax.Array
    ) -> jax.Array:
        heads, length = query.shape[1:3]
        kernel: Any = kernels.make_splash_mha_single_device(
            splash_attention_mask.MultiHeadMask(
                [splash_attention_mask.FullMask((length, length))] * heads
            ),
            block_sizes=_block_sizes(length),
            interpret=interpret,
        )
        # Unpacked, queries are all of segment 1, as are the keys to attend to: what padding asks
        # for is computed like the rest, as in plain attention, and nobody reads it.
        queries = jnp.ones_like(keys) if segment_ids is None else keys
        segments = kernels.SegmentIds(q=queries, kv=keys)
        return jax.vmap(kernel)(query, key, value, segments)

    operands = query_BHLK, key_BHLK, value_BHLK, keys_BL
    if jax.sharding.get_abstract_mesh().empty:
        context_BHLK = of_a_device(*operands)
    else:
        spec = logical_to_mesh_axes(("batch", "heads", None, None)) or PartitionSpec()
        keys_spec = PartitionSpec(*spec[:1])
        context_BHLK = jax.shard_map(
            of_a_device,
            in_specs=(spec, spec, spec, keys_spec),
            out_specs=spec,
            check_vma=False,  # kernels do not say over which axes their outputs vary
        )(*operands)
    return context_BHLK[:, :, :length]


def _block_sizes(length: int) -> kernels.BlockSizes:
    """The largest blocks that divide `length`, a multiple of 128."""
    block = next(size for size in _BLOCKS if length % size == 0)
    return kernels.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        use_fused_bwd_kernel=True,
    )
