"""The train state: made abstract first, then materialised in its sharding."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from bert_jax.models import BertForPreTraining
from bert_jax.training.sharding import tree_shardings

# Accepted steps whose gradient norms a spike is measured against.
NORM_WINDOW = 128


@flax.struct.dataclass
class TrainState:
    """All that a run carries from step to step.

    step: int32 scalar, steps done, skipped ones included. It keys the data order, the masks and the
      dropout, so that nothing else need be remembered.
    params: float32 arrays.
    opt_state: of the optax optimizer; it knows of the steps only that were not skipped.
    grad_norms: float32 [NORM_WINDOW], of the last steps that were not skipped, the newest last;
      0 where there were not so many yet.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    grad_norms: jax.Array


def _initialise(
    model: BertForPreTraining, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    tokens = jnp.zeros((1, 8), jnp.int32)
    positions = jnp.zeros((1, 1), jnp.int32)
    params = model.init(key, tokens, tokens, tokens, positions)["params"]
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=optimizer.init(params),
        grad_norms=jnp.zeros(NORM_WINDOW),
    )


def abstract_state(
    model: BertForPreTraining, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """The state as `jax.ShapeDtypeStruct` with shardings: to make it in, or to restore into."""
    boxed = jax.eval_shape(lambda key: _initialise(model, optimizer, key), jax.random.key(0))

    def placed(sharding: NamedSharding, leaves: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), leaves
        )

    # An optimizer of several rules has empty nodes, which have a sharding too: hence a prefix.
    return jax.tree.map(placed, tree_shardings(mesh, boxed), nn.meta.unbox(boxed))


def create_state(
    model: BertForPreTraining,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    seed: int,
) -> TrainState:
    """A fresh state, each array made where its sharding puts it; no device holds a full copy.

    Args:
      model, optimizer: as for `abstract_state`, which gave `abstract`.
      seed: of the initial parameters.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    initialise = jax.jit(
        lambda key: nn.meta.unbox(_initialise(model, optimizer, key)), out_shardings=shardings
    )
    return initialise(jax.random.key(seed))


def parameter_count(params: Any) -> int:
    """Number of trained values, the padding rows of the vocabulary included."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
