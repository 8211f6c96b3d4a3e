import numpy as np
import pytest

from bert_jax.data import keyed

PRIMES = [2, 3, 5, 7, 11, 13, 101, 997, 7919, 10007]
SIZES = sorted({1, 4, 6, *PRIMES, *range(8, 150), *range(200, 4000, 61), 2**12, 2**12 + 1})


def test_stream_is_splitmix64() -> None:
    # The first outputs of SplitMix64 seeded with 1234567, as published with its reference code.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert keyed.words(np.array([1234567], np.uint64), 5)[0].tolist() == expected


def test_permutation_is_a_bijection() -> None:
    assert len(SIZES) >= 200
    for size in SIZES:
        keys = np.full(size, keyed.key(size, 7)[0])
        image = keyed.permute(np.arange(size), np.full(size, size), keys)
        assert np.array_equal(np.sort(image), np.arange(size)), size


def test_permutation_of_mixed_sizes_and_keys_is_elementwise() -> None:
    sizes = np.array(SIZES)
    index = sizes // 2
    keys = keyed.key(3, sizes)
    together = keyed.permute(index, sizes, keys)
    alone = [keyed.permute(index[i : i + 1], sizes[i : i + 1], keys[i : i + 1]) for i in range(9)]
    assert np.array_equal(together[:9], np.concatenate(alone))


@pytest.mark.parametrize("size", [2, 3, 7, 12])
def test_every_place_is_equally_likely(size: int) -> None:
    count = 20_000
    keys = keyed.key(11, np.arange(count))
    sizes = np.full(count, size)
    for index in range(size):
        image = keyed.permute(np.full(count, index), sizes, keys)
        counts = np.bincount(image, minlength=size)
        chi_squared = ((counts - count / size) ** 2 / (count / size)).sum()
        assert chi_squared < size - 1 + 6 * np.sqrt(2 * (size - 1)), (index, counts)


def test_large_permutation_hides_the_order() -> None:
    size = 10**9 + 7
    index = np.arange(50_000)
    image = keyed.permute(index, np.full(len(index), size), np.full(len(index), keyed.key(5)[0]))
    assert len(np.unique(image)) == len(index)
    tolerance = 5 / np.sqrt(len(index))  # five standard errors of a correlation
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < tolerance
    assert abs(np.corrcoef(index, image)[0, 1]) < tolerance


def test_words_of_neighbouring_keys_are_independent_fair_bits() -> None:
    words = keyed.words(keyed.key(1, np.arange(2000)), 8)
    bits = np.unpackbits(words.view(np.uint8)).reshape(2000, -1).astype(float)
    assert abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(2000)
    neighbours = (bits[1:] == bits[:-1]).mean(axis=0)
    assert abs(neighbours - 0.5).max() < 6 * 0.5 / np.sqrt(1999)


def test_below_is_uniform_and_chance_has_its_rate() -> None:
    uniform = keyed.words(keyed.key(2, np.arange(3000)), 10).ravel()
    counts = np.bincount(keyed.below(uniform, 10), minlength=10)
    assert len(counts) == 10
    assert abs(counts - 3000).max() < 6 * np.sqrt(3000)
    assert abs(keyed.chance(uniform, 0.1).mean() - 0.1) < 5 * np.sqrt(0.09 / 30_000)
    assert not keyed.chance(uniform, 0.0).any()


def test_keys_differ_in_every_part_and_take_any_integer() -> None:
    keys = [keyed.key(*parts)[0] for parts in [(0,), (0, 0), (1, 0), (0, 1), (2**70 + 1,), (-1,)]]
    assert len(set(keys)) == len(keys)
    assert np.array_equal(keyed.key(4, np.array([9])), keyed.key(4, 9))
