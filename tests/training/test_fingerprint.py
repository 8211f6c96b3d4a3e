"""The fingerprint: it sees every bit and place, and no sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.training.fingerprint import fingerprint, fingerprints, leaf_names

DTYPES = {"float32": np.uint32, "int32": np.uint32, "bfloat16": np.uint16, "int8": np.uint8}
SHAPES = ((), (1,), (7,), (3, 5), (2, 3, 4))


def mix(x: int) -> int:
    """`lowbias32`, in Python's integers."""
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


def expected(words: np.ndarray) -> int:
    """The fingerprint of 32-bit words, an element at a time."""
    return (
        sum(
            mix(int(word) ^ mix((place + 1) * 0x9E3779B9 % 2**32))
            for place, word in enumerate(words.ravel())
        )
        % 2**32
    )


def of_bits(bits: np.ndarray, dtype: str) -> int:
    """The fingerprint of the numbers that have these bits, NaN among them."""
    return int(fingerprints(jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.dtype(dtype))))


arrays = st.builds(
    lambda dtype, shape, seed: (
        dtype,
        np.random.default_rng(seed).integers(
            0, np.iinfo(DTYPES[dtype]).max, shape, DTYPES[dtype], endpoint=True
        ),
    ),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(SHAPES),
    st.integers(0, 2**32 - 1),
)


@given(arrays)
def test_it_is_the_sum_of_the_mixed_elements(array):
    dtype, bits = array
    assert of_bits(bits, dtype) == expected(bits)


@given(arrays, st.data())
def test_one_flipped_bit_changes_it(array, data):
    dtype, bits = array
    place = data.draw(st.integers(0, bits.size - 1))
    bit = data.draw(st.integers(0, bits.itemsize * 8 - 1))
    flipped = bits.copy().reshape(-1)
    flipped[place] ^= DTYPES[dtype](1 << bit)
    assert of_bits(flipped.reshape(bits.shape), dtype) != of_bits(bits, dtype)


@given(arrays, st.data())
def test_elements_that_change_places_change_it(array, data):
    dtype, bits = array
    first, second = data.draw(st.tuples(*[st.integers(0, bits.size - 1)] * 2))
    swapped = bits.copy().reshape(-1)
    swapped[[first, second]] = swapped[[second, first]]
    same = np.array_equal(swapped, bits.reshape(-1))
    assert (of_bits(swapped.reshape(bits.shape), dtype) == of_bits(bits, dtype)) == same


def test_it_tells_minus_zero_and_the_payload_of_a_nan():
    bits = np.array([0, 0x80000000, 0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32)
    assert len({of_bits(word, "float32") for word in bits}) == len(bits)


def test_it_takes_bools():
    mask = np.arange(50) % 3 == 0
    assert int(fingerprints(jnp.asarray(mask))) == expected(mask)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_it_does_not_know_the_sharding(dtype):
    numbers = np.random.default_rng(0).normal(size=(8, 6, 16)) * 10
    array = jnp.asarray(numbers.astype(jnp.dtype(dtype)))
    whole = int(fingerprints(jax.device_put(array, jax.devices()[0])))
    for count, shape in [(2, (2, 1)), (4, (2, 2)), (8, (8, 1)), (8, (2, 4)), (8, (1, 8))]:
        mesh = jax.make_mesh(shape, ("x", "y"), devices=jax.devices()[:count])
        for spec in [(), ("x",), (None, None, "y"), ("y", None, "x"), (("x", "y"),)]:
            placed = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
            assert int(fingerprints(placed)) == whole


def test_each_leaf_has_its_own_and_a_name():
    tree = {"params": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}, "step": jnp.int32(3)}
    values = [int(value) for value in jax.tree.leaves(fingerprints(tree))]
    assert len(set(values)) == 3
    assert leaf_names(tree) == ["params/bias", "params/kernel", "step"]


@pytest.mark.parametrize(("devices", "programs"), [(1, 2), (8, 1)])
def test_devices_that_wait_for_each_other_do_so_in_one_program(devices, programs):
    """A program for each array, begun at once on several, can hang: each waits in another."""
    compiled = []

    def listen(event: str, duration_secs: float, **kwargs: object) -> None:
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    spread = NamedSharding(mesh, PartitionSpec("x"))
    arrays = [np.full((8, width), number, np.float32) for number, width in enumerate((9, 11, 9))]
    placed = jax.device_put(arrays, spread)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        values = [int(value) for value in fingerprints(placed)]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == programs
    assert values == [int(fingerprint(array)) for array in arrays]
