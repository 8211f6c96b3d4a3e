"""What a model computes on a GPU in its own way, here on a CPU, against what it computes there."""

import dataclasses
import functools
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CONFIG, SEED, deviation, loss_and_gradient, loss_of, on
from gpu_kernel_cases import stacked
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from bert_jax.models import attention as attention_module
from bert_jax.models.activations import activation
from bert_jax.models.attention import implementation
from bert_jax.models.gpu_attention import gpu_attention
from bert_jax.models.gpu_norm import fuses_layer_norm, residual_layer_norm
from bert_jax.models.triton import has_triton_kernels, multiplies_from_memory
from bert_jax.training.losses import biased_cross_entropy

# Heads of 64, and a width that the kernel of LayerNorm takes.
WIDE = dataclasses.replace(CONFIG, hidden_size=128, dtype="bfloat16", hidden_dropout_prob=0.0)
WITHOUT_DROPOUT = dataclasses.replace(WIDE, attention_probs_dropout_prob=0.0)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be traced as for a GPU, their kernels interpreted."""
    on("gpu", monkeypatch)
    for name, function in (
        ("gpu_attention", gpu_attention),
        ("residual_layer_norm", residual_layer_norm),
    ):
        interpreted = functools.partial(function, interpret=True)
        monkeypatch.setattr(attention_module, name, interpreted)


@pytest.mark.parametrize(
    "change", [{}, {"scan_layers": True}, pytest.param({"remat": "dots"}, marks=pytest.mark.slow)]
)
def test_a_model_learns_the_same_by_the_kernels_of_a_gpu(change, request):
    config = dataclasses.replace(WITHOUT_DROPOUT, **change)
    loss, gradients = loss_and_gradient(config)
    request.getfixturevalue("as_on_a_gpu")
    assert implementation(config, 128, deterministic=False) == "pallas"
    assert fuses_layer_norm(config, drops=False)
    found, found_gradients = loss_and_gradient(config)
    assert abs(found - loss) < 2e-3
    pairs = zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True)
    for a, b in pairs:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        # bfloat16 rounds to a 256th.
        assert np.linalg.norm(a - b) <= 0.03 * np.linalg.norm(b) + 1e-5


@pytest.mark.slow
def test_dropout_takes_part_in_both_kernels(as_on_a_gpu):
    changes = ({}, {"attention_probs_dropout_prob": 0.5}, {"hidden_dropout_prob": 0.5})
    losses = set()
    for change in changes:
        loss, params = loss_of(dataclasses.replace(WITHOUT_DROPOUT, **change))
        losses.add(float(jax.jit(loss)(params)))
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("change", "drops", "fuses"),
    [
        ({}, True, True),
        ({"dtype": "float32"}, True, False),
        ({"hidden_size": 96}, True, False),
        ({"dropout_bits": "hardware"}, True, False),
        ({"dropout_bits": "hardware"}, False, True),
    ],
)
def test_what_the_kernel_of_layer_norm_is_for(change, drops, fuses, as_on_a_gpu):
    assert fuses_layer_norm(dataclasses.replace(WIDE, **change), drops) == fuses


@pytest.mark.parametrize(
    ("platform", "capability", "has", "from_memory"),
    [
        ("gpu", "7.5", False, False),
        ("gpu", "8.6", True, False),
        ("gpu", "9.0", True, True),
        ("gpu", "10.0", True, True),
        ("gpu", "12.0", True, False),  # Blackwell for desktops multiplies as Ampere does
        ("gpu", "gfx90a", False, False),
        ("cpu", "9.0", False, False),
    ],
)
def test_what_devices_have(platform, capability, has, from_memory, monkeypatch):
    on(platform, monkeypatch, compute_capability=capability)
    assert has_triton_kernels() == has
    assert multiplies_from_memory() == from_memory


def test_without_jaxs_triton_models_are_imported_and_there_are_no_kernels():
    lines = [
        "import sys, types",
        "sys.modules['jax.experimental.pallas.triton'] = None",
        "import jax, bert_jax.models.triton as ours",
        "gpu = types.SimpleNamespace(platform='gpu', compute_capability='9.0')",
        "jax.devices = lambda: [gpu]",
        "assert not ours.has_triton_kernels()",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


@pytest.mark.parametrize("length", [128, 256])
def test_kernels_as_they_are_can_be_lowered_for_an_h100(length):
    operands, gradient = stacked((2, length, 2, 64), "bfloat16")
    seed = jnp.array(SEED, jnp.uint32)
    mask = jnp.ones((2, length), jnp.int32)
    weights, weight = (gradient, *[jnp.ones(128)] * 2), jnp.ones(128)

    def both(operands: jax.Array, gradient: jax.Array) -> Any:
        attend = functools.partial(gpu_attention, dropout_rate=0.1, dropout_seed=seed)
        context, pull = jax.vjp(lambda operands: attend(operands, mask), operands)
        norm = functools.partial(residual_layer_norm, seed=seed, rate=0.1, epsilon=1e-12)
        outputs, pull_norm = jax.vjp(lambda rows: norm(rows, weight, *weights), context)
        return outputs, pull(pull_norm(gradient)[0])

    h100 = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=h100)):
        traced = jax.jit(both).trace(operands, gradient)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("ex2.approx") >= 2
    assert text.count("xla.gpu.triton") == 4
    # What the planner counts: two products forward, backward five where a program has all keys.
    pairs = 2 * 2 * length**2 * 64
    found = sorted(int(flops) for flops in re.findall(r'flops = "(\d+)"', text))
    assert found == [2 * pairs * 2, 2 * pairs * (5 if length == 128 else 7)]


@pytest.mark.parametrize("name", ["gelu_new", "gelu", "relu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_activation_and_its_gradient_are_the_same(name, dtype, request):
    config = dataclasses.replace(CONFIG, hidden_act=name, dtype=dtype)
    inputs = jnp.linspace(-6, 6, 1000).astype(dtype).reshape(8, 125)
    gradient = jnp.cos(jnp.arange(1000.0)).astype(dtype).reshape(8, 125)

    def pulled() -> tuple[Any, Any]:
        outputs, pull = jax.vjp(functools.partial(activation, config), inputs)
        return outputs, pull(gradient)[0]

    expected = pulled()
    request.getfixturevalue("as_on_a_gpu")
    outputs, inputs_gradient = pulled()
    # In bfloat16 the outputs are what XLA makes of operations in it, where cuBLAS is not there.
    assert deviation(outputs, expected[0]) < (1e-6 if dtype == "float32" else 1e-2)
    np.testing.assert_array_equal(inputs_gradient, expected[1])


@pytest.mark.parametrize(
    ("change", "rows"), [({}, 7), ({"remat": "dots"}, 8), ({"hidden_act": "gelu"}, 8)]
)
def test_an_activation_that_is_part_of_no_product_is_in_float32(change, rows, request):
    config = dataclasses.replace(CONFIG, dtype="bfloat16", **change)
    inputs = jnp.linspace(-6, 6, 1000 * rows).astype("bfloat16").reshape(rows, 1000)
    expected = activation(config, inputs)
    request.getfixturevalue("as_on_a_gpu")
    np.testing.assert_array_equal(activation(config, inputs), expected)


def test_the_loss_and_its_gradients_are_the_same(request):
    keys = jax.random.split(jax.random.key(0), 4)
    scores, bias = 5 * jax.random.normal(keys[0], (3, 7, 50)), jax.random.normal(keys[1], (50,))
    labels = jax.random.randint(keys[2], (3, 7), 0, 50)
    weights = jax.random.uniform(keys[3], (3, 7))

    def pulled() -> tuple[Any, ...]:
        losses, pull, correct = jax.vjp(
            lambda *logits: biased_cross_entropy(*logits, labels), scores, bias, has_aux=True
        )
        return losses, correct, *pull(weights)

    expected = pulled()
    request.getfixturevalue("as_on_a_gpu")
    for a, b in zip(pulled(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
