"""The train state: made abstract first, then materialised in its sharding."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.objective import Objective
from bert_jax.training.sharding import array_sharding

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
    objective: Objective, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    params = objective.init(key)
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=optimizer.init(params),
        grad_norms=jnp.zeros(NORM_WINDOW, jnp.float32),
    )


def abstract_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shard_optimizer: bool = False,
) -> TrainState:
    """The state as `jax.ShapeDtypeStruct` with shardings: to make it in, or to restore into.

    Args:
      objective, optimizer: that the state is for.
      mesh: it lies on.
      shard_optimizer: whether the optimizer's arrays are spread over `data` too (ZeRO-1;
        Rajbhandari et al., 2020, section 5.1). They have the same values either way.
    """
    # Within, so that no array is made: the devices may be those of another machine.
    boxed = jax.eval_shape(lambda: _initialise(objective, optimizer, jax.random.key(0)))
    state = _placed(boxed, mesh, over_data=False)
    if not shard_optimizer:
        return state
    return dataclasses.replace(state, opt_state=_placed(boxed.opt_state, mesh, over_data=True))


def update_shardings(state: TrainState, objective: Objective, shard_optimizer: bool) -> Any:
    """Where the gradient and the update of each parameter lie: as the optimizer's arrays do.

    Args:
      state: a state, or its shapes, with shardings.
      objective, shard_optimizer: as for `abstract_state`, which made it.
    """
    lies = state.params
    if shard_optimizer:
        boxed = jax.eval_shape(lambda: objective.init(jax.random.key(0)))
        lies = _placed(boxed, jax.sharding.get_mesh(), over_data=True)
    return jax.tree.map(lambda leaf: leaf.sharding, lies)


def _placed(boxed: Any, mesh: Mesh, *, over_data: bool) -> Any:
    """Shapes that carry logical axis names (`nn.LogicallyPartitioned`) as shapes with shardings."""

    def placed(names: PartitionSpec, leaves: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape,
                leaf.dtype,
                sharding=array_sharding(mesh, names, leaf.shape, over_data=over_data),
            ),
            leaves,
        )

    # An optimizer of several rules has empty nodes, which have names too: hence a prefix.
    return jax.tree.map(placed, nn.get_partition_spec(boxed), nn.meta.unbox(boxed))


def create_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    seed: int,
    given: Any = None,
) -> TrainState:
    """A fresh state, each array made where its sharding puts it; no device holds a full copy.

    Args:
      objective, optimizer: as for `abstract_state`, which gave `abstract`.
      seed: of the initial parameters.
      given: `abstract.params`, with arrays in the place of those parameters that need not be made;
        none by default.
    """
    wanted = abstract.params if given is None else given

    def without_given(state: TrainState) -> TrainState:
        # What is not asked for is neither compiled nor computed.
        params = jax.tree.map(
            lambda leaf, made: None if isinstance(leaf, jax.Array) else made, wanted, state.params
        )
        return dataclasses.replace(state, params=params)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, without_given(abstract))
    initialise = jax.jit(
        lambda key: without_given(nn.meta.unbox(_initialise(objective, optimizer, key))),
        out_shardings=shardings,
    )
    made = initialise(jax.random.key(seed))
    params = jax.tree.map(lambda leaf, fresh: leaf if fresh is None else fresh, wanted, made.params)
    return dataclasses.replace(made, params=params)


def begin_state(
    checkpoints: Checkpoints,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    seed: int,
    with_weights: Callable[[Any], Any],
) -> tuple[TrainState, dict[str, Any]]:
    """The state of the newest checkpoint; else a fresh one, with the weights that are given.

    Args:
      checkpoints: of the run.
      objective, optimizer, seed: as for `create_state`.
      abstract: of `abstract_state`.
      with_weights: from `abstract.params` to `given` of `create_state`.

    Returns:
      The state, and what `Checkpoints.save` was given with it; {} for a fresh one.
    """
    if restored := checkpoints.restore(abstract):
        return restored
    given = with_weights(abstract.params)
    return create_state(objective, optimizer, abstract, seed, given), {}


def parameter_count(params: Any) -> int:
    """Number of trained values, the padding rows of the vocabulary included."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
