"""Random bits of dropout: rate, independence in every direction, and their place in the model."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.models import BertConfig, BertModel
from bert_jax.models import layers as model_layers
from bert_jax.models.dropout import dropout, hardware_bits, random_bits
from bert_jax.training.steps import with_rules

SEEDS = [(0, 0), (0, 1), (1, 0), (1, 1), (2**31, 7), (2**32 - 1, 2**32 - 1), (123456789, 987654321)]
SHAPES = [(1 << 20,), (1 << 10, 1 << 10), (16, 4, 128, 128), (64, 128, 129), (1 << 18, 3)]


def seed_of(pair: tuple[int, int]) -> jax.Array:
    return jnp.array(pair, jnp.uint32)


def kept(pair: tuple[int, int], shape: tuple[int, ...], rate: float = 0.1) -> np.ndarray:
    """Which elements survive, as booleans."""
    return np.asarray(dropout(jnp.ones(shape), rate, seed_of(pair))) > 0


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Standardised covariance of two boolean arrays: normal(0, 1) where they are independent."""
    a, b = first.ravel() - first.mean(), second.ravel() - second.mean()
    return float((a * b).sum() / np.sqrt((a**2).mean() * (b**2).mean() * a.size))


# Each test below draws up to some hundred statistics at fixed seeds; a normal one passes 5.5 sigma
# once in 26 million draws.
SIGMAS = 5.5


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_rate(shape, rate):
    for pair in SEEDS:
        mask = kept(pair, shape, rate)
        deviation = (mask.mean() - (1 - rate)) / np.sqrt(rate * (1 - rate) / mask.size)
        assert abs(deviation) < SIGMAS, (pair, deviation)


def test_rate_of_each_row_varies_as_a_binomial():
    mask = kept((3, 5), (4096, 1024))
    for counts in (mask.sum(0), mask.sum(1)):
        variance = (1024 if len(counts) == 4096 else 4096) * 0.1 * 0.9
        # The variance of a sample variance of n normals is 2 / n of its square.
        assert abs(counts.var() / variance - 1) < SIGMAS * np.sqrt(2 / len(counts))


@pytest.mark.parametrize("shape", SHAPES)
def test_each_bit_and_byte_is_uniform(shape):
    for pair in SEEDS:
        bits = np.asarray(random_bits(seed_of(pair), shape))
        for index in range(32):
            ones = (bits >> index & 1).mean()
            assert abs(ones - 0.5) < SIGMAS * 0.5 / np.sqrt(bits.size), (pair, index)
        for shift in (0, 8, 16, 24):
            counts = np.bincount((bits >> shift & 0xFF).ravel(), minlength=256)
            chi_square = ((counts - bits.size / 256) ** 2 / (bits.size / 256)).sum()
            assert abs(chi_square - 255) < SIGMAS * np.sqrt(2 * 255), (pair, shift)


@pytest.mark.parametrize("shape", SHAPES)
def test_neighbours_along_every_axis_are_independent(shape):
    for pair in SEEDS[:3]:
        mask = kept(pair, shape)
        for axis, lag in itertools.product(range(len(shape)), (1, 2, 3, 8, 64)):
            if lag < shape[axis]:
                ahead = np.take(mask, range(lag, shape[axis]), axis)
                behind = np.take(mask, range(shape[axis] - lag), axis)
                assert abs(correlation(ahead, behind)) < SIGMAS, (pair, axis, lag)


def test_pairs_of_neighbours_fill_the_square_evenly():
    bits = np.asarray(random_bits(seed_of((11, 13)), (2048, 1024)))
    coarse = (bits >> 28).astype(int)
    for first, second in ((coarse[:, 1:], coarse[:, :-1]), (coarse[1:], coarse[:-1])):
        counts = np.bincount((first * 16 + second).ravel(), minlength=256)
        expected = first.size / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 255) < SIGMAS * np.sqrt(2 * 255)


def test_seeds_give_independent_masks():
    masks = {pair: kept(pair, (256, 1024)) for pair in SEEDS}
    for first, second in itertools.combinations(SEEDS, 2):
        assert abs(correlation(masks[first], masks[second])) < SIGMAS, (first, second)


def test_rows_repeat_no_more_than_chance():
    masks = kept((17, 19), (1 << 16, 128), 0.5)
    assert len(np.unique(np.packbits(masks, axis=1), axis=0)) == len(masks)


def test_values_and_gradient_are_scaled_where_kept_and_zero_elsewhere():
    values = jnp.linspace(1, 2, 6000).reshape(60, 100)
    output, backward = jax.vjp(lambda x: dropout(x, 0.25, seed_of((1, 2))), values)
    mask = kept((1, 2), values.shape, 0.25)
    np.testing.assert_allclose(output, np.where(mask, values / 0.75, 0), rtol=1e-6)
    (gradient,) = backward(values)
    np.testing.assert_allclose(gradient, np.where(mask, values / 0.75, 0), rtol=1e-6)
    assert dropout(values.astype(jnp.bfloat16), 0.25, seed_of((1, 2))).dtype == jnp.bfloat16


def test_no_seed_is_the_identity():
    values = jnp.arange(3.0)
    assert dropout(values, 0.5, None) is values


@pytest.mark.parametrize("spec", [("x",), (None, "x"), ("x", None, "y"), (None, "x", "y")])
def test_bits_do_not_depend_on_the_sharding(spec):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    shape = (8, 16, 32)
    sharded = jax.jit(lambda seed: random_bits(seed, shape), out_shardings=sharding)
    seed = seed_of((5, 6))
    np.testing.assert_array_equal(sharded(seed), random_bits(seed, shape))


def mesh_of(data: int, fsdp: int, tensor: int) -> Mesh:
    shape = (data, fsdp, tensor)
    return jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


HEADS = ("batch", "heads", None, None)


def drawn_by_hardware(pair: tuple[int, int], shape: tuple[int, ...], mesh: Mesh) -> jax.Array:
    with jax.set_mesh(mesh):
        draw = jax.jit(with_rules(lambda seed: hardware_bits(HEADS, seed, shape)))
        return draw(seed_of(pair))


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2)])
def test_bits_of_the_hardware_are_uniform_and_each_device_s_its_own(sizes):
    shape = (16, 4, 64, 64)
    everything = {}
    for pair in SEEDS:
        bits = np.asarray(drawn_by_hardware(pair, shape, mesh_of(*sizes)))
        for index in range(32):
            ones = (bits >> index & 1).mean()
            assert abs(ones - 0.5) < SIGMAS * 0.5 / np.sqrt(bits.size), (pair, index)
        kept = bits > 0.1 * 2**32
        for axis, lag in itertools.product(range(4), (1, 2, 3, 8)):
            if lag < shape[axis]:
                ahead = np.take(kept, range(lag, shape[axis]), axis)
                behind = np.take(kept, range(shape[axis] - lag), axis)
                assert abs(correlation(ahead, behind)) < SIGMAS, (pair, axis, lag)
        everything[pair] = kept
    for first, second in itertools.combinations(SEEDS, 2):
        assert abs(correlation(everything[first], everything[second])) < SIGMAS, (first, second)


def test_devices_that_hold_the_same_draw_the_same():
    mesh = mesh_of(2, 2, 2)
    with jax.set_mesh(mesh):
        draw = jax.jit(
            with_rules(lambda seed: hardware_bits(("batch", None, None), seed, (8, 4, 16)))
        )
        bits = draw(seed_of((1, 2)))
    parts: dict = {}
    for shard in bits.addressable_shards:
        parts.setdefault(str(shard.index), []).append(np.asarray(shard.data))
    assert {len(same) for same in parts.values()} == {2}
    for first, second in parts.values():
        np.testing.assert_array_equal(first, second)
    assert len({first.tobytes() for first, _ in parts.values()}) == 4


@pytest.mark.parametrize("meshed", [False, True])
def test_backward_pass_draws_the_bits_of_the_hardware_again(meshed):
    values = jnp.ones((8, 16, 32))
    draw = functools.partial(hardware_bits, ("batch", None, None))

    @jax.jit
    def both(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        output, backward = jax.vjp(lambda x: dropout(x, 0.25, seed_of((1, 2)), draw), values)
        return output, backward(values)[0]

    if meshed:
        with jax.set_mesh(mesh_of(4, 1, 2)):
            output, gradient = with_rules(both)(values)
    else:
        output, gradient = both(values)
    np.testing.assert_array_equal(output, gradient)
    np.testing.assert_allclose(np.unique(np.asarray(output)), [0, 1 / 0.75])


CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


@pytest.mark.parametrize("wanted", [None, jnp.ones((2, 1), jnp.int32)], ids=["all", "wanted"])
@pytest.mark.parametrize("scan_layers", [True, False])
def test_every_layer_place_and_step_draws_another_seed(scan_layers, wanted, monkeypatch):
    drawn = set()

    def record(seed):
        drawn.add(tuple(np.asarray(seed).tolist()))
        return seed

    def recording_bits(key, shape, dtype):
        seed = random(key, shape, dtype)
        return jax.pure_callback(record, jax.ShapeDtypeStruct(shape, dtype), seed)

    random = jax.random.bits
    model = BertModel(dataclasses.replace(CONFIG, scan_layers=scan_layers))
    ids = jnp.ones((2, 8), jnp.int32)
    variables = jax.jit(model.init)(jax.random.key(0), ids, ids, ids)
    monkeypatch.setattr(model_layers.jax.random, "bits", recording_bits)

    @jax.jit
    def train(key):
        rngs = {"dropout": key}
        return model.apply(variables, ids, ids, ids, wanted=wanted, deterministic=False, rngs=rngs)

    for step in range(3):
        jax.block_until_ready(train(jax.random.fold_in(jax.random.key(1), step)))
    # Once on the embeddings; in a layer on the probabilities and before each residual.
    assert len(drawn) == 3 * (1 + 3 * CONFIG.num_hidden_layers)


@pytest.mark.parametrize("bits", ["hash", "hardware"])
def test_dropout_is_on_only_where_asked_for(bits):
    ids = jnp.ones((2, 8), jnp.int32)
    model = BertModel(dataclasses.replace(CONFIG, dropout_bits=bits))
    variables = jax.jit(model.init)(jax.random.key(0), ids, ids, ids)
    plain, _ = jax.jit(model.apply)(variables, ids, ids, ids)
    train = jax.jit(
        lambda key: model.apply(
            variables, ids, ids, ids, deterministic=False, rngs={"dropout": key}
        )[0]
    )
    dropped, again = train(jax.random.key(1)), train(jax.random.key(1))
    assert jnp.array_equal(dropped, again)
    assert not jnp.allclose(plain, dropped)
    without = BertModel(
        dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )
    off, _ = without.apply(variables, ids, ids, ids, deterministic=False)
    np.testing.assert_allclose(plain, off, rtol=1e-5, atol=1e-6)
