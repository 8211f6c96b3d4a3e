"""Kernels for attention against plain attention, in interpret mode, and where each is chosen."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    CONFIG,
    SEED,
    TOLERANCES,
    assert_same,
    deviation,
    loss_and_gradient,
    masks,
    on,
    plain_loss_and_gradient,
)
from jax.sharding import AxisType

from bert_jax.errors import UserError
from bert_jax.models import attention as attention_module
from bert_jax.models.attention import (
    attention,
    check_attention,
    cudnn_attention,
    implementation,
    mask_bias,
)
from bert_jax.models.pallas_attention import pallas_attention
from bert_jax.training.steps import with_rules

interpreted = functools.partial(pallas_attention, interpret=True)


def operands(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[jax.Array]:
    """Query, key, value and the gradient of the context."""
    keys = jax.random.split(jax.random.key(seed), 4)
    return [jax.random.normal(key, shape, dtype) for key in keys]


def flat(array: jax.Array) -> jax.Array:
    """[B, H, L, K] to [B, L, H * K]."""
    batch, heads, length, width = array.shape
    return array.swapaxes(1, 2).reshape(batch, length, heads * width)


def by_kernel(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Any = None,
    segments: Any = None,
    rate: float = 0,
) -> jax.Array:
    """The kernel, with operands and context as plain attention has them."""
    batch, heads, length, width = query.shape
    context = interpreted(
        flat(query),
        flat(key),
        flat(value),
        None if mask is None else jnp.asarray(mask),
        segments,
        heads=heads,
        dropout_rate=rate,
        dropout_seed=jnp.array(SEED, jnp.uint32),
    )
    return context.reshape(batch, length, heads, width).swapaxes(1, 2)


def plainly(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Any = None,
    segments: Any = None,
    rate: float = 0,
) -> jax.Array:
    bias = mask_bias(None if mask is None else jnp.asarray(mask), segments)
    dtype, seed = str(query.dtype), jnp.array(SEED, jnp.uint32)
    context = attention(query, key, value, bias, dtype=dtype, dropout_rate=rate, dropout_seed=seed)
    return context.astype(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "rate"),
    [
        ((3, 2, 128, 64), "bfloat16", 0),
        ((3, 2, 128, 64), "bfloat16", 0.1),
        ((4, 4, 128, 64), "float32", 0.1),  # four sequences and two pairs of heads a step
        ((6, 2, 256, 64), "float32", 0.1),  # two sequences a step
        ((3, 1, 200, 32), "float32", 0),  # padded to 256
        ((3, 1, 200, 32), "float32", 0.1),
        ((1, 3, 128, 48), "float32", 0.1),  # heads that do not fill the lanes
        ((1, 2, 128, 128), "float32", 0.1),  # one that does
        ((1, 1, 512, 64), "bfloat16", 0.1),
        ((2, 1, 640, 16), "float32", 0),  # five blocks of queries
        ((2, 1, 640, 16), "float32", 0.1),
    ],
)
def test_the_kernel_and_its_gradients_are_those_of_plain_attention(shape, dtype, rate):
    *inputs, gradient = operands(shape, dtype)
    mask = masks(shape[0], shape[2])
    ours, pull_ours = jax.vjp(functools.partial(by_kernel, mask=mask, rate=rate), *inputs)
    expected, pull = jax.vjp(functools.partial(plainly, mask=mask, rate=rate), *inputs)
    assert ours.dtype == expected.dtype
    both = zip((ours, *pull_ours(gradient)), (expected, *pull(gradient)), strict=True)
    for name, (a, b) in zip(("context", "query", "key", "value"), both, strict=True):
        assert deviation(a, b) < TOLERANCES[dtype], name


def test_a_masked_key_takes_no_part():
    query, key, value, gradient = operands((2, 1, 128, 16), "float32")
    mask = masks(2, 128)
    masked = jnp.asarray(mask == 0)[:, None, :, None]
    context, pull = jax.vjp(functools.partial(by_kernel, query, mask=mask), key, value)
    other = by_kernel(query, jnp.where(masked, 7, key), jnp.where(masked, -7, value), mask=mask)
    np.testing.assert_array_equal(context, other)
    for of_key in pull(gradient):
        assert not jnp.where(masked, of_key, 0).any()


def test_a_row_without_keys_attends_to_all_of_them():
    *inputs, gradient = operands((2, 1, 128, 16), "float32")
    mask = np.array([[1], [0]]) * np.ones((2, 128), np.int32)
    ours, pull_ours = jax.vjp(functools.partial(by_kernel, mask=mask), *inputs)
    expected, pull = jax.vjp(functools.partial(plainly, mask=np.ones_like(mask)), *inputs)
    for a, b in zip((ours, *pull_ours(gradient)), (expected, *pull(gradient)), strict=True):
        assert deviation(a, b) < TOLERANCES["float32"]


@pytest.mark.parametrize("rate", [0, 0.1])
def test_packed_sequences_attend_within_themselves(rate):
    length = 200  # padded to 256
    *inputs, gradient = operands((2, 1, length, 16), "float32")
    # Three sequences and padding; a row without any.
    segments = jnp.array([np.repeat([1, 2, 3, 0], [50, 7, 61, length - 118]), [0] * length])
    real = segments[:, None, :, None] > 0
    gradient = jnp.where(real, gradient, 0)
    chosen: Any = {"segments": segments, "rate": rate}
    ours, pull_ours = jax.vjp(functools.partial(by_kernel, **chosen), *inputs)
    expected, pull = jax.vjp(functools.partial(plainly, **chosen), *inputs)
    assert deviation(jnp.where(real, ours, 0), jnp.where(real, expected, 0)) < 3e-6
    assert jnp.isfinite(ours).all()
    for a, b in zip(pull_ours(gradient), pull(gradient), strict=True):
        assert deviation(a, b) < TOLERANCES["float32"]


def with_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models attend by the kernel, interpreted."""
    monkeypatch.setattr(attention_module, "implementation", lambda *_: "pallas")
    monkeypatch.setattr(attention_module, "pallas_attention", interpreted)


@pytest.mark.slow
def test_a_scanned_and_rematerialised_model_is_the_same_with_kernel(monkeypatch):
    expected = plain_loss_and_gradient()
    with_kernel(monkeypatch)
    assert_same(loss_and_gradient(dataclasses.replace(CONFIG, remat="dots")), expected)


@pytest.mark.slow
def test_eight_devices_work_on_their_own_rows_and_heads(monkeypatch):
    expected = plain_loss_and_gradient()
    with_kernel(monkeypatch)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        assert_same(with_rules(loss_and_gradient)(CONFIG), expected)


def test_auto_takes_what_pays_and_can(monkeypatch):
    dropping = dataclasses.replace(CONFIG, dtype="bfloat16")
    config = dataclasses.replace(dropping, attention_probs_dropout_prob=0.0)
    on("cpu", monkeypatch)
    assert implementation(config, 512, deterministic=False) == "xla"
    on("tpu", monkeypatch)
    for model in (config, dropping, CONFIG):
        for length in (256, 384, 512, 640):
            assert implementation(model, length, deterministic=False) == "pallas"
        for length in (128, 200, 600):
            assert implementation(model, length, deterministic=False) == "xla"
    hardware = dataclasses.replace(dropping, dropout_bits="hardware")
    assert implementation(hardware, 512, deterministic=False) == "xla"
    assert implementation(hardware, 512, deterministic=True) == "pallas"
    plain_always = dataclasses.replace(config, attention="xla")
    assert implementation(plain_always, 512, deterministic=False) == "xla"
    on("tpu", monkeypatch, device_kind="TPU v3")
    assert implementation(config, 512, deterministic=False) == "xla"
    on("gpu", monkeypatch)
    for model in (config, dropping):
        assert implementation(model, 128, deterministic=False) == "pallas"
        assert implementation(model, 200, deterministic=False) == "xla"
    assert implementation(CONFIG, 128, deterministic=True) == "xla"
    assert implementation(hardware, 128, deterministic=False) == "xla"
    narrow = dataclasses.replace(dropping, num_attention_heads=4)
    assert implementation(narrow, 128, deterministic=False) == "xla"
    for capability in ("7.5", "gfx90a"):
        on("gpu", monkeypatch, compute_capability=capability)
        assert implementation(config, 128, deterministic=False) == "xla"


@pytest.mark.parametrize(
    ("length", "hidden", "heads", "dtype", "chosen"),
    [
        (2560, 768, 12, "bfloat16", "pallas"),
        (3072, 768, 12, "bfloat16", "xla"),
        (512, 1280, 16, "bfloat16", "pallas"),  # heads of 80: eight of them fill lanes
        (256, 960, 12, "bfloat16", "xla"),  # these do not divide into eights
        (1536, 768, 12, "float32", "pallas"),
        (2048, 768, 12, "float32", "xla"),
    ],
)
def test_auto_leaves_what_vector_memory_does_not_hold_to_xla(
    length, hidden, heads, dtype, chosen, monkeypatch
):
    on("tpu", monkeypatch)
    sizes: Any = {"hidden_size": hidden, "num_attention_heads": heads, "dtype": dtype}
    config = dataclasses.replace(CONFIG, **sizes)
    assert implementation(config, length, deterministic=False) == chosen
    if chosen == "xla":
        with pytest.raises(UserError, match=f"vector memory than {length} keys"):
            implementation(dataclasses.replace(config, attention="pallas"), length, False)


def test_vector_memory_is_that_of_a_devices_heads(monkeypatch):
    """Three heads of 64 on a device do not divide into pairs, and are taken at once."""
    monkeypatch.setattr(attention_module, "device_platform", lambda: "tpu")
    sizes: Any = {"hidden_size": 768, "num_attention_heads": 12, "dtype": "bfloat16"}
    config = dataclasses.replace(CONFIG, **sizes)
    for tensor, chosen in ((2, "pallas"), (4, "xla")):
        shape = (8 // tensor, 1, tensor)
        mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
        with jax.set_mesh(mesh):
            assert with_rules(implementation)(config, 2048, False) == chosen


@pytest.mark.parametrize(
    ("attention", "platform", "change", "told"),
    [
        (
            "pallas",
            "cpu",
            {},
            "pallas runs on a TPU or GPU, and the devices are of the backend cpu",
        ),
        ("cudnn", "tpu", {}, "cudnn runs on a GPU, and the devices are of the backend tpu"),
        ("pallas", "tpu", {"dropout_bits": "hardware"}, "needs config.model.dropout_bits=hash"),
        ("cudnn", "gpu", {"attention_probs_dropout_prob": 0.1}, "attention_probs_dropout_prob=0"),
        ("cudnn", "gpu", {}, "needs config.model.dtype=bfloat16, not float32"),
        ("cudnn", "gpu", {"dtype": "bfloat16", "num_attention_heads": 8}, "a multiple of 8 up to"),
        ("cudnn", "gpu", {"dtype": "bfloat16", "hidden_size": 272}, "up to 128 wide, not 136"),
        ("pallas", "gpu", {}, "needs config.model.dtype=bfloat16, not float32"),
        ("pallas", "gpu", {"dropout_bits": "hardware"}, "needs config.model.dropout_bits=hash"),
        ("pallas", "gpu", {"num_attention_heads": 4}, "heads of 16, 32 or 64, not 8"),
    ],
)
def test_a_wrong_choice_is_refused(attention, platform, change, told, monkeypatch):
    rate = 0.1 if attention == "pallas" else 0.0
    change = {"attention": attention, "attention_probs_dropout_prob": rate} | change
    config = dataclasses.replace(CONFIG, **change)
    on(platform, monkeypatch)
    with pytest.raises(UserError, match=told):
        check_attention(config, platform)
    with pytest.raises(UserError, match=told):
        implementation(config, 128, deterministic=False)
    if "dropout" in told:
        assert implementation(dataclasses.replace(config, dtype="bfloat16"), 128, True) == attention


def test_cudnn_wants_even_lengths(monkeypatch):
    on("gpu", monkeypatch)
    sizes: Any = {"attention_probs_dropout_prob": 0.0, "dtype": "bfloat16"}
    config = dataclasses.replace(CONFIG, attention="cudnn", **sizes)
    assert implementation(config, 126, deterministic=False) == "cudnn"
    with pytest.raises(UserError, match="needs an even length, not 127"):
        implementation(config, 127, deterministic=False)


def test_old_devices_have_no_kernel(monkeypatch):
    on("gpu", monkeypatch, compute_capability="7.5")
    config = dataclasses.replace(
        CONFIG, attention="cudnn", dtype="bfloat16", attention_probs_dropout_prob=0.0
    )
    for kernel in ("cudnn", "pallas"):
        with pytest.raises(UserError, match=r"compute capability 8\.0"):
            check_attention(dataclasses.replace(config, attention=kernel), "gpu")
    on("tpu", monkeypatch, device_kind="TPU v3")
    with pytest.raises(UserError, match=r"needs a TPU v4 or later, not a TPU v3"):
        check_attention(dataclasses.replace(config, attention="pallas"), "tpu")


def test_cudnn_attention_lowers_for_cuda(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)  # none is here to ask
    *inputs, gradient = operands((2, 4, 128, 64), "bfloat16")

    mask = jnp.asarray(masks(2, 128))

    def gradients(*inputs: jax.Array) -> Any:
        context, pull = jax.vjp(lambda q, k, v: cudnn_attention(q, k, v, mask), *inputs)
        return context, pull(gradient)

    lowered = jax.jit(gradients).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaScaleBiasSoftmax" in lowered
    assert "__cudnn$fmhaScaleBiasSoftmaxBackward" in lowered
