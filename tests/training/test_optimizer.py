"""Update rules against references written out here, and against PyTorch's AdamW."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.config import OptimizerConfig
from bert_jax.training.optimizer import (
    clip_by_global_norm,
    decayed,
    learning_rate_schedule,
    make_optimizer,
)

TOTAL = 12
# None of them a default, which would do where a setting does not arrive.
B1, B2, EPS, CLIP = 0.8, 0.99, 1e-5, 0.5
CONFIG = OptimizerConfig(
    learning_rate=0.05, warmup_steps=4, weight_decay=0.1, b1=B1, b2=B2, eps=EPS, clip_norm=CLIP
)
DECAYED = {
    ("bert", "embeddings", "word_embeddings"): (7, 4),
    ("bert", "encoder", "layer", "output", "dense", "kernel"): (3, 4, 6),
    ("cls", "predictions", "transform", "dense", "kernel"): (5, 4),
}
NOT_DECAYED = {
    ("bert", "embeddings", "LayerNorm", "scale"): (4,),
    ("bert", "encoder", "layer", "output", "LayerNorm", "bias"): (3, 4),
    ("bert", "encoder", "layer", "output", "dense", "bias"): (3, 4),
    ("cls", "predictions", "output_bias"): (7,),
}
SHAPES = DECAYED | NOT_DECAYED
Flat = dict[tuple[str, ...], np.ndarray]


def nested(flat: Flat) -> dict:
    tree: dict = {}
    for path, leaf in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = jnp.asarray(leaf, jnp.float32)
    return tree


def random_flat(seed: int, scale: float = 1.0) -> Flat:
    rng = np.random.default_rng(seed)
    return {path: scale * rng.normal(size=shape) for path, shape in SHAPES.items()}


def gradients(step: int) -> Flat:
    """Now far above the clip, now below it."""
    return random_flat(100 + step, scale=(3.0, 0.02)[step % 2])


def run(config: OptimizerConfig, params: Flat, steps: int = 10) -> dict:
    optimizer = make_optimizer(config, TOTAL)
    tree = nested(params)
    state = optimizer.init(tree)

    @jax.jit
    def step(tree, state, gradient):
        updates, state = optimizer.update(gradient, state, tree)
        return optax.apply_updates(tree, updates), state

    for index in range(steps):
        tree, state = step(tree, state, nested(gradients(index)))
    return tree


def assert_equal(tree: Any, expected: Flat, rtol: float = 1e-5) -> None:
    for path, leaf in expected.items():
        node: Any = tree
        for key in path:
            node = node[key]
        np.testing.assert_allclose(node, leaf, rtol=rtol, atol=1e-6, err_msg="/".join(path))


def rate(step: int) -> float:
    """Warm-up from 0 over 4 of 12 steps, then linear decay counted from step 0."""
    return 0.05 * step / 4 if step < 4 else 0.05 * (1 - step / 12)


def clipped(gradient: Flat) -> Flat:
    norm = math.sqrt(sum((leaf**2).sum() for leaf in gradient.values()))
    return {path: leaf / max(norm / CLIP, 1.0) for path, leaf in gradient.items()}


def test_ten_steps_of_the_original_optimizer():
    params = random_flat(0)
    m = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    v = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    ours = run(CONFIG, params)
    for step in range(10):
        for path, gradient in clipped(gradients(step)).items():
            m[path] = B1 * m[path] + (1 - B1) * gradient
            v[path] = B2 * v[path] + (1 - B2) * gradient**2
            update = m[path] / (np.sqrt(v[path]) + EPS)
            if path in DECAYED:
                update = update + 0.1 * params[path]
            params[path] = params[path] - rate(step) * update
    assert_equal(ours, params)


def test_ten_steps_of_adamw_equal_pytorch():
    config = dataclasses.replace(CONFIG, name="adamw", clip_norm=0.0)
    params = random_flat(1)
    tensors = {path: torch.tensor(leaf, requires_grad=True) for path, leaf in params.items()}
    theirs = torch.optim.AdamW(
        [
            {"params": [tensors[path] for path in DECAYED], "weight_decay": 0.1},
            {"params": [tensors[path] for path in NOT_DECAYED], "weight_decay": 0.0},
        ],
        betas=(B1, B2),
        eps=EPS,
    )
    for step in range(10):
        for path, gradient in gradients(step).items():
            tensors[path].grad = torch.tensor(gradient)
        for group in theirs.param_groups:
            group["lr"] = rate(step)
        theirs.step()
    expected = {path: tensor.detach().numpy() for path, tensor in tensors.items()}
    assert_equal(run(config, params), expected, rtol=1e-4)


def test_ten_steps_of_lamb_with_a_ratio_for_each_layer():
    params = random_flat(2)
    m = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    v = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    ours = run(dataclasses.replace(CONFIG, name="lamb"), params)
    for step in range(10):
        for path, gradient in clipped(gradients(step)).items():
            m[path] = B1 * m[path] + (1 - B1) * gradient
            v[path] = B2 * v[path] + (1 - B2) * gradient**2
            corrected = m[path] / (1 - B1 ** (step + 1))
            update = corrected / (np.sqrt(v[path] / (1 - B2 ** (step + 1))) + EPS)
            update = update + (0.1 * params[path] if path in DECAYED else 0)
            parts = range(3) if "layer" in path else [slice(None)]
            for part in parts:
                ratio = np.linalg.norm(params[path][part]) / np.linalg.norm(update[part])
                params[path][part] -= rate(step) * ratio * update[part]
    assert_equal(ours, params, rtol=1e-4)


def orthogonalised(matrix: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz iterations of Jordan et al., 2024, by their coefficients."""
    matrix = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.775 * square + 2.0315 * square @ square) @ matrix
    return matrix


def test_ten_steps_of_muon_for_matrices_and_adam_for_the_rest():
    """With Nesterov momentum in both; Adam's corrected for the step that it looks ahead."""
    params = random_flat(4)
    m = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    v = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    ours = run(dataclasses.replace(CONFIG, name="muon"), params)
    for step in range(10):
        for path, gradient in clipped(gradients(step)).items():
            v[path] = B2 * v[path] + (1 - B2) * gradient**2
            if "kernel" in path:
                m[path] = 0.95 * m[path] + gradient
                ahead = 0.95 * m[path] + gradient
                layers = ahead if "layer" in path else ahead[None]
                scale = 0.2 * math.sqrt(max(layers[0].shape))
                update = scale * np.stack([orthogonalised(one) for one in layers])
                update = update.reshape(params[path].shape)
            else:
                m[path] = B1 * m[path] + (1 - B1) * gradient
                ahead = B1 * m[path] / (1 - B1 ** (step + 2))
                ahead = ahead + (1 - B1) * gradient / (1 - B1 ** (step + 1))
                update = ahead / (np.sqrt(v[path] / (1 - B2 ** (step + 1))) + EPS)
            update = update + (0.1 * params[path] if path in DECAYED else 0)
            params[path] = params[path] - rate(step) * update
    assert_equal(ours, params, rtol=1e-4)


def test_muon_takes_a_projection_to_or_from_heads_as_one_matrix():
    """Kernels of [D, H, K] and [H, K, D], scanned and not, move as their matrices would."""
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("query", "key", "value"), (8, 2, 3)) | {"dense": (2, 3, 8)}
    optimizer = make_optimizer(
        OptimizerConfig(name="muon", warmup_steps=0, weight_decay=0.0, clip_norm=0.0), TOTAL
    )
    gradients = {name: rng.normal(size=(3, *shape)) for name, shape in shapes.items()}
    trees = [
        {"layer": {name: {"kernel": jnp.asarray(of)} for name, of in gradients.items()}},
        {"layer_0": {name: {"kernel": jnp.asarray(of[0])} for name, of in gradients.items()}},
    ]
    first = jax.jit(lambda tree: optimizer.update(tree, optimizer.init(tree), tree)[0])
    scanned, unrolled = map(first, trees)
    for name, gradient in gradients.items():
        one = unrolled["layer_0"][name]["kernel"]
        matrix = gradient[0].reshape((6, 8) if name == "dense" else (8, 6))
        expected = -1e-4 * 0.2 * math.sqrt(8) * orthogonalised(matrix)
        np.testing.assert_allclose(one.reshape(matrix.shape), expected, rtol=1e-3, atol=1e-8)
        of_scanned = scanned["layer"][name]["kernel"][0]
        np.testing.assert_allclose(of_scanned, one, rtol=1e-3, atol=1e-8)


def test_what_makes_logits_is_no_matrix_of_muon():
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    optimizer = make_optimizer(OptimizerConfig(name="muon", warmup_steps=0), TOTAL)
    updates = []
    for name in ("seq_relationship", "classifier", "qa_outputs", "transform"):
        tree = {name: {"kernel": gradient}}
        updates += jax.tree.leaves(optimizer.update(tree, optimizer.init(tree), tree)[0])
    of_adam = updates[0]
    same = [np.array_equal(update, of_adam) for update in updates]
    assert same == [True, True, True, False]


def test_decay_skips_layer_norm_and_biases_boxed_or_not():
    tree = nested(random_flat(3))
    boxed = jax.tree.map(lambda leaf: nn.Partitioned(leaf, ("embed",) * leaf.ndim), tree)
    for params in (tree, boxed):
        found = {
            tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)): value
            for path, value in jax.tree_util.tree_leaves_with_path(decayed(params))
        }
        assert found == dict.fromkeys(DECAYED, True) | dict.fromkeys(NOT_DECAYED, False)


@pytest.mark.parametrize("scale", [0.0, 0.02, 3.0, 1e15, math.nan])
def test_clipping_is_that_of_optax_and_keeps_what_is_small_bit_for_bit(scale):
    tree = nested(random_flat(1, scale))
    ours, theirs = (
        clip.update(tree, clip.init(tree))[0]
        for clip in (clip_by_global_norm(1.0), optax.clip_by_global_norm(1.0))
    )
    rtol = 1e-6 if scale > 1 else 0.0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol), ours, theirs)


def test_clipping_takes_the_norm_that_is_given():
    tree = nested(random_flat(1))
    clip = clip_by_global_norm(1.0)
    halves, _ = clip.update(tree, clip.init(tree), grad_norm=jnp.float32(2.0))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b / 2), halves, tree)


def test_no_clipping_where_the_norm_is_zero():
    """The rule sees gradients as they are: with b1 = 0 and b2 = 0, m / (sqrt(v) + eps) is signs."""
    config = OptimizerConfig(
        learning_rate=1.0,
        warmup_steps=0,
        schedule="constant",
        b1=0.0,
        b2=0.0,
        eps=1.0,
        weight_decay=0.0,
        clip_norm=0.0,
    )
    optimizer = make_optimizer(config, TOTAL)
    params = {"kernel": jnp.zeros(2)}
    updates, _ = optimizer.update(
        {"kernel": jnp.array([9.0, -99.0])}, optimizer.init(params), params
    )
    np.testing.assert_allclose(jax.tree.leaves(updates)[0], [-0.9, 0.99], rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {0: 0.0, 1: 0.1, 9: 0.9, 10: 0.9, 50: 0.5, 99: 0.01, 100: 0.0, 120: 0.0}),
        ("constant", {0: 0.0, 5: 0.5, 10: 1.0, 100: 1.0}),
        ("cosine", {0: 0.0, 5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0, 120: 0.0}),
    ],
)
def test_schedules(schedule, expected):
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10, schedule=schedule)
    rates = jax.vmap(learning_rate_schedule(config, 100))(jnp.array(list(expected)))
    np.testing.assert_allclose(rates, list(expected.values()), atol=1e-6)


@pytest.mark.parametrize("schedule", ["linear", "constant", "cosine"])
def test_without_warm_up_the_first_rate_is_the_peak(schedule):
    config = OptimizerConfig(learning_rate=0.3, warmup_steps=0, schedule=schedule)
    np.testing.assert_allclose(learning_rate_schedule(config, 100)(0), 0.3, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "moments"), [("adam_original", 2), ("adamw", 2), ("lamb", 2), ("muon", 1)]
)
def test_moments_are_sharded_as_the_parameters(name, moments):
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    params = {"dense": {"kernel": jax.device_put(jnp.ones((8, 3)), sharding)}}
    optimizer = make_optimizer(dataclasses.replace(CONFIG, name=name), TOTAL)
    state = jax.jit(optimizer.init)(params)
    updates, state = jax.jit(optimizer.update)(params, state, params)
    arrays = [leaf for leaf in jax.tree.leaves((updates, state)) if leaf.ndim == 2]
    assert len(arrays) == moments + 1
    for leaf in arrays:
        assert leaf.shape == (8, 3)
        assert leaf.sharding.is_equivalent_to(sharding, 2)
