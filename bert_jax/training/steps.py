"""The training and evaluation steps: pure functions, and their compiled, sharded forms."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from bert_jax.models.devices import device_platform
from bert_jax.training.objective import Batch, Metrics, Objective, summed_loss
from bert_jax.training.sharding import LOGICAL_RULES
from bert_jax.training.state import TrainState, update_shardings


class Outcome(NamedTuple):
    """What a step came to: scalars."""

    loss: jax.Array  # float32, of the whole batch
    grad_norm: jax.Array  # float32, before clipping
    skipped: jax.Array  # bool: the batch changed nothing


# Each consumer of randomness has a number of its own, folded into the key of the step.
_DROPOUT = 1


def train_step(
    state: TrainState,
    batch: Batch,
    seed: Any,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    accumulate: int = 1,
    spike_sigmas: float = 0.0,
    update_shardings: Any = None,
) -> tuple[TrainState, Metrics, Outcome]:
    """One optimizer step.

    The losses are sums over the whole batch divided once by its weights, so that the update is
    the same however the batch is spread over devices or cut into micro-batches.

    A step whose loss or gradient is not finite, or whose gradient's norm is a spike, is skipped:
    parameters and optimizer state stay as they are, bit for bit, the learning-rate schedule's count
    included, as if there had been no such batch. `step` counts on, so that the next batch is
    another.

    Args:
      state: the state before the step.
      batch: a global batch, as the objective reads it.
      seed: integer scalar, of the run; dropout is keyed by its low 32 bits, the step and the
        micro-batch. It is an argument so that runs of other seeds are the same program.
      objective: what the parameters that `state` holds are trained for.
      optimizer: the optax optimizer whose state `state` holds.
      accumulate: micro-batches to cut the batch into.
      spike_sigmas: standard deviations above the mean of `state.grad_norms` beyond which a norm is
        a spike, once that window is full; 0 knows no spikes.
      update_shardings: where the update is computed, for each parameter; None leaves that to the
        compiler.

    Returns:
      The next state, the sums and weights of the batch's metrics (0 and 0 for a skipped step), and
      what the step came to.
    """
    weights = objective.weights(batch)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), state.step), _DROPOUT)

    def loss_fn(params: Any, micro_batch: Batch, index: Any) -> tuple[jax.Array, Metrics]:
        outputs = objective.forward(params, micro_batch, jax.random.fold_in(key, index))
        metrics = objective.metrics(outputs, micro_batch)
        return summed_loss(metrics, weights), metrics

    grad_fn = jax.grad(loss_fn, has_aux=True)
    if accumulate == 1:
        grads, metrics = grad_fn(state.params, batch, 0)
    else:
        grads, metrics = _accumulated(grad_fn, state.params, batch, accumulate)
    params = state.params
    if update_shardings is not None:
        grads, params = (
            jax.lax.with_sharding_constraint(tree, update_shardings) for tree in (grads, params)
        )
    loss, norm = summed_loss(metrics, weights), optax.tree.norm(grads)
    accepted = jnp.isfinite(loss) & jnp.isfinite(norm)
    if spike_sigmas:
        accepted &= ~_is_spike(norm, state.grad_norms, spike_sigmas)

    def taken() -> TrainState:
        # The clipping takes the norm from here: XLA merges nothing into a branch.
        update = optax.with_extra_args_support(optimizer).update
        updates, opt_state = update(grads, state.opt_state, params, grad_norm=norm)
        updated = optax.apply_updates(params, updates)
        return TrainState(state.step, updated, opt_state, jnp.append(state.grad_norms[1:], norm))

    kept = _taken_if(accepted, taken, state)
    metrics = jax.tree.map(lambda value: jnp.where(accepted, value, 0), metrics)
    return dataclasses.replace(kept, step=state.step + 1), metrics, Outcome(loss, norm, ~accepted)


def _taken_if(
    accepted: jax.Array, taken: Callable[[], TrainState], state: TrainState
) -> TrainState:
    """What `taken` computes, or the state as it is."""
    if device_platform() == "cpu":
        # Chosen element by element, XLA copies Adam's moments here, for they and the parameters
        # are each made of the old ones: an update takes twice as long (docs/cpu_path.md).
        return jax.lax.cond(accepted, taken, lambda: state)
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), taken(), state)


def _is_spike(norm: jax.Array, window: jax.Array, sigmas: float) -> jax.Array:
    """Whether a norm is so many deviations above the mean of the window, if that is full."""
    return (window[0] > 0) & (norm > jnp.mean(window) + sigmas * jnp.std(window))


def _accumulated(
    grad_fn: Callable[..., Any], params: Any, batch: Batch, count: int
) -> tuple[Any, Metrics]:
    # Micro-batch i takes rows i, i + count, ...: every device has rows of every micro-batch.
    micro_batches = jax.tree.map(
        lambda x: x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1), dict(batch)
    )

    def add(total: Any, indexed: Any) -> tuple[Any, None]:
        index, micro_batch = indexed
        return jax.tree.map(jnp.add, total, grad_fn(params, micro_batch, index)), None

    first = jax.tree.map(lambda x: x[0], micro_batches)
    shapes = jax.eval_shape(grad_fn, params, first, 0)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, (jnp.arange(count), micro_batches))
    return total


def eval_step(params: Any, batch: Batch, *, objective: Objective) -> Metrics:
    """The sums and weights of a batch's metrics, without dropout."""
    return objective.metrics(objective.forward(params, batch, None), batch)


def compile_train_step(
    state: TrainState,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int,
    spike_sigmas: float = 0.0,
    compiler_options: Mapping[str, str | bool] | None = None,
    shard_optimizer: bool = False,
) -> Callable[[TrainState, Batch, Any], tuple[TrainState, Metrics, Outcome]]:
    """`train_step`, jitted under the mesh that `jax.set_mesh` has set.

    Args:
      state: a state, or its shapes, with the shardings that every next state is to have.
      objective, optimizer, accumulate, spike_sigmas: as for `train_step`.
      compiler_options: of XLA; see `bert_jax.training.xla_options`.
      shard_optimizer: as for `abstract_state`.

    Returns:
      The step as a function of a state, whose arrays it consumes, a batch and a seed.
    """
    step = functools.partial(
        train_step,
        objective=objective,
        optimizer=optimizer,
        accumulate=accumulate,
        spike_sigmas=spike_sigmas,
        update_shardings=update_shardings(state, objective, shard_optimizer),
    )
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(
        with_rules(step),
        donate_argnums=0,
        out_shardings=(shardings, None, None),
        compiler_options=dict(compiler_options or {}),
    )


def compile_eval_step(objective: Objective) -> Callable[[Any, Batch], Metrics]:
    """`eval_step`, jitted under the mesh that `jax.set_mesh` has set."""
    return jax.jit(with_rules(functools.partial(eval_step, objective=objective)))


def with_rules(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the modules' logical axis names their meaning while `function` is traced."""

    def traced(*args: Any) -> Any:
        with nn.logical_axis_rules(LOGICAL_RULES):
            return function(*args)

    return traced
