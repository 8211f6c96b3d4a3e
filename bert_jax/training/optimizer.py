"""Learning-rate schedules and update rules, as Optax gradient transformations."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import OptimizerConfig


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning rate of each step, counted from 0.

    During the warm-up, learning_rate * step / warmup_steps: 0 at step 0. After it, "linear" is
    learning_rate * (1 - step / total_steps), counted from step 0 as in optimization.py, so that it
    drops a little where the warm-up ends; "cosine" falls from learning_rate at the warm-up's end
    to 0 at total_steps; "constant" stays. Past total_steps the last two decays stay at 0.
    """
    peak, warmup = config.learning_rate, config.warmup_steps

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        if config.schedule == "linear":
            rate = peak * (1 - jnp.minimum(step / total_steps, 1))
        elif config.schedule == "cosine":
            progress = (step - warmup) / max(total_steps - warmup, 1)
            rate = peak * 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(progress, 0, 1)))
        else:
            rate = jnp.full_like(step, peak)
        return jnp.where(step < warmup, peak * step / max(warmup, 1), rate)

    return schedule


def make_optimizer(
    config: OptimizerConfig, total_steps: int
) -> optax.GradientTransformationExtraArgs:
    """Clip by global norm, the rule, decoupled decay, the learning rate: in that order.

    The decay is added to the rule's update before the learning rate, and skips LayerNorm and
    biases, as in optimization.py (`AdamWeightDecayOptimizer`); embeddings are decayed.
    """
    if config.name == "adam_original":
        rule = scale_by_original_adam(config.b1, config.b2, config.eps)
    elif config.name == "muon":
        rule = scale_by_muon(config.b1, config.b2, config.eps)
    else:
        rule = optax.scale_by_adam(config.b1, config.b2, config.eps)
    return optax.chain(
        clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        rule,
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
        scale_by_layer_trust_ratio() if config.name == "lamb" else optax.identity(),
        optax.scale_by_learning_rate(learning_rate_schedule(config, total_steps)),
    )


def clip_by_global_norm(largest: float) -> optax.GradientTransformationExtraArgs:
    """Scale gradients whose norm, over all of them, is above `largest` down to it.

    `update` takes that norm as `grad_norm`, where the caller has it; else it is computed.

    By one factor, as the original does (`tf.clip_by_global_norm`). `optax.clip_by_global_norm`
    chooses between each gradient and its quotient, which XLA writes to memory on a CPU, and reads
    again for each moment and for the parameter.
    """

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        grad_norm: jax.Array | None = None,
        **_: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        norm = optax.tree.norm(updates) if grad_norm is None else grad_norm
        factor = jnp.minimum(1.0, largest / norm)
        return jax.tree.map(lambda gradient: gradient * factor, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def decayed(params: Any) -> Any:
    """A tree of booleans: which parameters weight decay touches."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _is_decayed(_names(path)), params)


def _is_decayed(names: list[str]) -> bool:
    return "LayerNorm" not in names and not any(name.endswith("bias") for name in names)


def _names(path: tuple[Any, ...]) -> list[str]:
    """The dict keys along a path, without what boxes such as `nn.Partitioned` add."""
    return [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]


class AdamMoments(NamedTuple):
    """State of `scale_by_original_adam`; both mirror the parameters."""

    mu: optax.Updates
    nu: optax.Updates


def scale_by_original_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """mu / (sqrt(nu) + eps), without bias correction (optimization.py).

    `optax.scale_by_adam` always corrects.
    """

    def init(params: optax.Params) -> AdamMoments:
        return AdamMoments(
            jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        )

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, AdamMoments]:
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), AdamMoments(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_muon(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Muon for the matrices between hidden layers; Adam for embeddings, vectors and classifier.

    Nesterov momentum of 0.95, orthogonalised (Jordan et al., 2024, "Muon"), times 0.2 sqrt(the
    larger side), so that an update is as large as Adam's and one learning rate serves both (Liu et
    al., 2025, "Muon is Scalable for LLM Training", section 2.2).

    `optax.contrib.muon` does the same, in twice the time on a CPU: it takes every matrix for a
    batch of one, whose products are slower.

    Args:
      b1, b2, eps: of Adam, which has a bias correction and Nesterov momentum here.
    """
    return optax.partition(
        {
            "muon": optax.chain(optax.trace(0.95, nesterov=True), optax.stateless(_orthogonalised)),
            "adam": optax.scale_by_adam(b1, b2, eps, nesterov=True),
        },
        _muon_or_adam,
    )


_LOGITS = {"seq_relationship", "classifier", "qa_outputs"}


def _muon_or_adam(params: Any) -> Any:
    """A tree of labels: Muon's are the kernels but those that make logits."""

    def label(path: tuple[Any, ...], _: jax.Array) -> str:
        names = _names(path)
        return "muon" if names[-1] == "kernel" and not _LOGITS & {*names} else "adam"

    return jax.tree_util.tree_map_with_path(label, params)


def _orthogonalised(updates: optax.Updates, _: optax.Params | None) -> optax.Updates:
    """Each kernel's update as a matrix of inputs and outputs, orthogonalised and scaled."""

    def one(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        names = _names(path)
        if "layer" in names:  # scanned: one array, with the depth as first axis
            return jax.vmap(functools.partial(_orthogonalised_kernel, names[-2]))(update)
        return _orthogonalised_kernel(names[-2], update)

    return jax.tree_util.tree_map_with_path(one, updates)


def _orthogonalised_kernel(module: str, kernel: jax.Array) -> jax.Array:
    # [D, H, K] to heads, [H, K, D] from them.
    inputs = 1 if module in ("query", "key", "value") else kernel.ndim - 1
    matrix = kernel.reshape(math.prod(kernel.shape[:inputs]), -1)
    scale = 0.2 * max(matrix.shape) ** 0.5
    wide = matrix.shape[0] <= matrix.shape[1]
    orthogonal = newton_schulz(matrix) if wide else newton_schulz(matrix.T).T
    return scale * orthogonal.reshape(kernel.shape)


def newton_schulz(matrix: jax.Array) -> jax.Array:
    """A matrix with the singular vectors of [m, n], m <= n, and singular values near 1.

    Five iterations, with the coefficients of Jordan et al. (2024): they take what is not tiny to
    within about 0.7 and 1.2, and no nearer, which is enough.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    matrix = matrix / (jnp.linalg.norm(matrix) + 1e-8)
    for _ in range(5):
        gram = matrix @ matrix.T
        matrix = a * matrix + (b * gram + c * (gram @ gram)) @ matrix
    return matrix


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """LAMB's ratio of norms (You et al., 2020, algorithm 2), a ratio for each layer.

    Scanned layers are one array with the depth as first axis; a norm over all of it would give
    them one ratio together.
    """
    ratio = optax.scale_by_trust_ratio()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        def scale(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> optax.Updates:
            def one(u: jax.Array, p: jax.Array) -> optax.Updates:
                return ratio.update(u, state, p)[0]

            return jax.vmap(one)(update, param) if "layer" in _names(path) else one(update, param)

        return jax.tree_util.tree_map_with_path(scale, updates, params), state

    return optax.GradientTransformation(ratio.init, update)
