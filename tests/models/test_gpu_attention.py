"""The kernels of attention for a GPU, interpreted, against plain attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SEED, TOLERANCES, deviation, masks, packed_segments
from gpu_kernel_cases import attend, attention_deviations, stacked
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

from bert_jax.models import triton
from bert_jax.models.gpu_attention import _spans, paired_bits
from bert_jax.models.gpu_attention_kernels import _MASKED, _unit
from bert_jax.models.kernels import KernelSettings
from bert_jax.training.steps import with_rules


@pytest.mark.parametrize(
    ("shape", "dtype", "generation", "rate"),
    [
        ((3, 128, 2, 64), "bfloat16", 9, 0),  # all keys in one program
        ((3, 128, 2, 64), "bfloat16", 9, 0.1),
        ((3, 128, 1, 32), "float32", 8, 0.1),
        ((3, 200, 1, 64), "float32", 8, 0),  # padded to 256
        ((3, 200, 1, 64), "float32", 8, 0.1),
        ((1, 384, 2, 16), "float32", 9, 0.1),
        ((2, 512, 1, 64), "bfloat16", 10, 0),
        ((2, 512, 1, 64), "bfloat16", 10, 0.1),
    ],
)
def test_the_kernels_are_plain_attention(shape, dtype, generation, rate, monkeypatch):
    monkeypatch.setattr(triton, "_generation", lambda: generation)
    operands, gradient = stacked(shape, dtype)
    mask = jnp.asarray(masks(*shape[:2]))
    assert max(attention_deviations(operands, gradient, mask=mask, rate=rate)) < TOLERANCES[dtype]


def test_blocks_without_keys_are_passed_over_and_a_row_without_any_attends_to_all():
    operands, gradient = stacked((4, 512, 1, 16), "float32")
    # Of four blocks of 128 the first two, the last, one in the middle and none have a key.
    mask = np.zeros((4, 512), np.int32)
    mask[0, :140] = mask[1, 500:] = mask[2, 300:310] = 1
    some = slice(3)
    found = attention_deviations(operands[some], gradient[some], mask=jnp.asarray(mask[some]))
    assert max(found) < TOLERANCES["float32"]
    of_all = attend(operands[3:], jnp.ones((1, 512), jnp.int32))
    np.testing.assert_allclose(attend(operands, jnp.asarray(mask))[3:], of_all, atol=1e-6)


@pytest.mark.parametrize("rate", [0, 0.1])
def test_packed_sequences_attend_within_themselves(rate):
    operands, gradient = stacked((3, 400, 1, 16), "float32")  # padded to 512
    segments = jnp.asarray(packed_segments())
    found = attention_deviations(operands, gradient, segments=segments, rate=rate)
    assert max(found) < TOLERANCES["float32"]


@pytest.mark.parametrize("width", [16, 32, 64, 80, 128])
def test_a_block_without_keys_weighs_the_same_however_its_scores_are_rounded(width):
    """A GPU rounds the difference of score and largest score once, which left 2^(8e20) of 0."""
    unit = np.float32(_unit(KernelSettings(1, width, 128, 0.0, True)))
    masked = np.float32(_MASKED)
    assert np.float64(masked) * np.float64(unit) == masked * unit


@given(st.lists(st.integers(0, 3), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_spans_hold_every_block_with_a_key(kinds, seed):
    rng = np.random.default_rng(seed)
    ids = np.concatenate([rng.integers(kind, 4, 128) for kind in kinds])[None]
    others = np.repeat(rng.integers(0, 4, 3), 128)[None]
    spans = np.asarray(_spans(jnp.asarray(ids), jnp.asarray(others)))[0]
    for block, (first, after) in enumerate(spans):
        mine = set(ids[0, 128 * block :][:128].tolist())
        meets = [i for i in range(3) if others[0, 128 * i] in mine]
        assert (first, after) == ((meets[0], meets[-1] + 1) if meets else (0, 0))


def test_paired_bits_drop_as_often_as_they_should_and_halves_apart():
    bits = np.asarray(paired_bits(jnp.array(SEED, jnp.uint32), (4, 2, 256, 256)))
    dropped = (bits < round(0.1 * 2**32)).reshape(4, 2, 256, 2, 2, 64)
    count = dropped.size
    assert abs(dropped.mean() - 0.1) < 5 * (0.09 / count) ** 0.5
    both = dropped[..., 0, :] & dropped[..., 1, :]
    assert abs(both.mean() - 0.01) < 5 * (0.0099 / both.size) ** 0.5


@pytest.mark.slow
def test_eight_devices_work_on_their_own_rows_and_heads():
    operands, gradient = stacked((8, 128, 4, 16), "float32")
    mask = jnp.asarray(masks(8, 128))
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        found = jax.jit(with_rules(pulled))(operands, gradient, mask)
    expected = jax.jit(pulled)(operands, gradient, mask)
    for a, b in zip(found, expected, strict=True):
        assert deviation(a, b) < TOLERANCES["float32"]


def pulled(operands: jax.Array, gradient: jax.Array, mask: jax.Array) -> tuple[Any, Any]:
    """The kernel's context and its operands' gradient, with dropout."""
    seed = jnp.array(SEED, jnp.uint32)
    context, pull = jax.vjp(
        lambda operands: attend(operands, mask, dropout_rate=0.1, dropout_seed=seed), operands
    )
    return context, pull(gradient)[0]
