"""The word embeddings, which both ends of the model use: the lookup and the masked-LM logits.

Left to itself, the compiler adds up the gradient of each use over all devices, and that is a
fifth of the model sent twice. So both uses give the gradient of a device's own rows of the batch,
[R, V, D] of R parts of the batch, each on its devices; the two are added there, and the sum over R
is the one that is sent.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_constraint
from jax import lax

from bert_jax.config import BertConfig
from bert_jax.models.devices import device_platform, part_count
from bert_jax.models.layers import gathered
from bert_jax.models.products import product, product_apart

AXES = ("vocab", "embed")


class WordTable(NamedTuple):
    """The table as a model uses it.

    rows: [V, D] of the compute dtype, whole but for what tensor parallelism cuts.
    parts: float32 zeros [R, V, D]; only their gradient matters, and they are never made.
    """

    rows: jax.Array
    parts: jax.Array


def word_table(config: BertConfig, table: jax.Array) -> WordTable:
    """The parameter, float32 [V, D], made ready for its uses."""
    cast = lax.stop_gradient(table).astype(config.dtype)
    if device_platform() == "gpu":
        # Else XLA gathers what FSDP stores in float32, and casts it after. Not in `gathered`: for
        # kernels XLA casts all layers first by itself, and would gather and move more.
        cast = lax.optimization_barrier(cast)
    return WordTable(gathered(cast, AXES), _parts(config.gradient_dtype, table))


def _zeros(shape: tuple[int, ...]) -> jax.Array:
    return with_logical_constraint(jnp.zeros(shape, jnp.float32), ("batch", "vocab", ""))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _parts(gradient_dtype: str, table: jax.Array) -> jax.Array:
    del gradient_dtype
    return _zeros((part_count(), *table.shape))


def _parts_forward(gradient_dtype: str, table: jax.Array) -> tuple[jax.Array, None]:
    return _parts(gradient_dtype, table), None


def _parts_backward(gradient_dtype: str, _: None, gradient_RVD: jax.Array) -> tuple[jax.Array]:
    gradient_RVD = with_logical_constraint(gradient_RVD, ("batch", "vocab", ""))
    parts_RVD = gradient_RVD.astype(gradient_dtype)
    total_VD = lax.reduce(parts_RVD, jnp.zeros((), gradient_dtype), lax.add, (0,))
    return (total_VD.astype(jnp.float32),)


_parts.defvjp(_parts_forward, _parts_backward)


@jax.custom_vjp
def word_rows(table: WordTable, ids: jax.Array) -> jax.Array:
    """Rows `ids` [B, L] of the table, [B, L, D]; NaN where an id is not below V."""
    return jnp.take(table.rows, ids, axis=0, mode="fill")


def _word_rows_forward(table: WordTable, ids: jax.Array):
    return word_rows(table, ids), (ids, table.parts)


def _word_rows_backward(residuals: tuple[jax.Array, jax.Array], gradient_BLD: jax.Array):
    ids, parts_RVD = residuals
    count, _, width = parts_RVD.shape
    ids_RN, rows_RND = ids.reshape(count, -1), gradient_BLD.reshape(count, -1, width)
    add = jax.vmap(lambda part, ids, rows: part.at[ids].add(rows, mode="drop"))
    parts_RVD = add(_zeros(parts_RVD.shape), ids_RN, rows_RND.astype(jnp.float32))
    return WordTable(jnp.zeros_like(gradient_BLD, shape=parts_RVD.shape[1:]), parts_RVD), None


word_rows.defvjp(_word_rows_forward, _word_rows_backward)


def _word_logits(dtype: str, table: WordTable, hidden: jax.Array) -> jax.Array:
    """[B, P, D] times every row of the table: float32 [B, P, V]."""
    return product("BPD,VD->BPV", dtype, hidden, table.rows)


def _word_logits_forward(dtype: str, table: WordTable, hidden: jax.Array):
    return word_logits(dtype, table, hidden), (table, hidden)


def _word_logits_backward(
    dtype: str, residuals: tuple[WordTable, jax.Array], gradient_BPV: jax.Array
) -> tuple[WordTable, jax.Array]:
    table, hidden_BPD = residuals
    hidden_gradient = product("BPV,VD->BPD", dtype, gradient_BPV, table.rows)
    parts_RVD = _table_gradient(dtype, gradient_BPV, hidden_BPD, table.parts.shape[0])
    parts_RVD = with_logical_constraint(parts_RVD, ("batch", "vocab", ""))
    nothing = jnp.zeros_like(table.rows)
    return WordTable(nothing, parts_RVD), hidden_gradient.astype(hidden_BPD.dtype)


def _table_gradient(
    dtype: str, gradient_BPV: jax.Array, hidden_BPD: jax.Array, count: int
) -> jax.Array:
    """The gradient of the table from each of `count` parts of the batch, float32 [R, V, D]."""
    gradient_RNV, hidden_RND = (
        array.reshape(count, -1, array.shape[-1]) for array in (gradient_BPV, hidden_BPD)
    )
    # Either the logits' gradient is transposed on a CPU, which has a number for each piece and
    # prediction, or the result, with D numbers for each piece: the result where it is smaller.
    if device_platform() == "cpu" and hidden_RND.shape[1] >= 2 * hidden_RND.shape[2]:
        return product_apart("RND,RNV->RVD", dtype, hidden_RND, gradient_RNV)
    if dtype == "float32":
        return product("RNV,RND->RVD", dtype, gradient_RNV, hidden_RND)
    # The library for bfloat16 products does not take one that is summed over a single axis, rows
    # and predictions in one, and XLA by itself takes twice as long. In float32 that is faster.
    gradient_RBPV, hidden_RBPD = (
        array.reshape(count, -1, *array.shape[1:]) for array in (gradient_BPV, hidden_BPD)
    )
    return product("RBPV,RBPD->RVD", dtype, gradient_RBPV, hidden_RBPD)


word_logits = jax.custom_vjp(_word_logits, nondiff_argnums=(0,))
word_logits.defvjp(_word_logits_forward, _word_logits_backward)
