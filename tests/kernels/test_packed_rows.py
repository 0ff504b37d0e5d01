"""Packed sets of features and rows of weights against NumPy; damaged ones are found before a kernel reads them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from labelwise.kernels import packing as feature_sets
from labelwise.kernels import packing as packed_rows
from labelwise.kernels.intrinsics import (
    BLOCK,
    BYTES,
    equal_bytes,
    lowest_bit,
    popcount,
    sum_of_first,
)
from labelwise.kernels.jit import jit

look_up, decode, is_sound = (
    jit(function.py_func) for function in (feature_sets.look_up, feature_sets.decode, feature_sets.is_sound)
)
seeds = st.integers(0, 2**32 - 1)


@njit
def _bits(word, array, index, byte, counts, first, count):
    return popcount(word), lowest_bit(word), equal_bytes(array, index, byte), sum_of_first(counts, first, count)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_bits_bytes_and_sums(dtype):
    rng = np.random.default_rng(0)
    for _ in range(50):
        word = int(rng.integers(1, 2**63))
        array = rng.integers(0, 4, 40).astype(np.uint8)
        counts = rng.integers(0, np.iinfo(dtype).max, 3 * BLOCK, dtype=dtype)
        index, byte, count = int(rng.integers(0, 20)), int(rng.integers(0, 4)), int(rng.integers(0, BLOCK))
        found = _bits(np.uint64(word), array, index, byte, counts, BLOCK, count)
        expected = sum(1 << k for k in range(16) if array[index + k] == byte)
        assert found == (word.bit_count(), (word & -word).bit_length() - 1, expected, int(counts[BLOCK:][:count].sum()))


def made_sets(features):
    """The arrays of some sets, given as lists of features."""
    offsets = np.cumsum([0, *map(len, features)])
    joined = np.concatenate(features).astype(np.int32)
    words, shifts, ranges, low_bytes = (np.empty(len(features), np.int64) for _ in range(4))
    feature_sets.choose_shapes(offsets, joined, 0, len(features), words, shifts, ranges, low_bytes)
    word_offsets, range_offsets, low_offsets = (np.cumsum([0, *sizes]) for sizes in (words, ranges, low_bytes))
    sets = (
        offsets, word_offsets, np.zeros(2 * word_offsets[-1], np.uint64), shifts, range_offsets,
        np.full(range_offsets[-1], -7, np.int32), low_offsets, np.full(low_offsets[-1] + BYTES, 255, np.uint8),
    )  # fmt: skip
    feature_sets.fill_sets(joined, sets, 0, len(features))
    return sets


def random_features(rng, n_features, size):
    """Dense in front for some, in a narrow range for some, anywhere for others."""
    reach = int(rng.choice([n_features, max(1, n_features // 50), min(n_features, 300)]))
    first = int(rng.integers(0, n_features - reach + 1))
    return np.sort(rng.choice(np.arange(first, first + reach), min(size, reach), replace=False))


@given(seeds, st.sampled_from([1, 64, 300, 5000, 3_000_000]), st.lists(st.integers(0, 400), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_features_are_found_and_decoded(seed, n_features, sizes):
    rng = np.random.default_rng(seed)
    features = [random_features(rng, n_features, size) for size in sizes]
    sets = made_sets(features)
    queried = np.unique(np.append(rng.choice(n_features, 30), np.concatenate(features)[::3])).astype(np.int32)
    values = rng.normal(size=len(queried)).astype(np.float32)
    for s, own in enumerate(features):
        ranks, found_values = np.full(len(queried) + 2, -5), np.zeros(len(queried) + 2, np.float32)
        count = look_up(0, len(queried), queried, values, s, sets, 1, ranks, found_values)
        here = np.isin(queried, own)
        np.testing.assert_array_equal(own[ranks[1:count]], queried[here])
        np.testing.assert_array_equal(found_values[1:count], values[here])
        decoded = np.empty(len(own), np.int32)
        assert decode(s, sets, decoded) == len(own)
        np.testing.assert_array_equal(decoded, own)
        assert is_sound(s, sets, n_features)
        assert len(own) == 0 or not is_sound(s, sets, int(own[-1]))
    total = sum(array.nbytes for array in (sets[2], sets[5], sets[7])) - BYTES
    assert total <= sum(3 * len(own) + 4 * 70 for own in features), "as the set, not as the vocabulary"


@given(seeds, st.sampled_from([300, 5000, 3_000_000]))
@settings(max_examples=60, deadline=None)
def test_damaged_sets_are_found(seed, n_features):
    """Any change leaves a set that is sound as another set, or is found."""
    rng = np.random.default_rng(seed)
    sets = [array.copy() for array in made_sets([random_features(rng, n_features, 200) for _ in range(3)])]
    which = int(rng.choice([number for number in (2, 3, 5, 7) if len(sets[number])]))
    flat = sets[which].view(np.uint8)
    flat[rng.integers(len(flat))] ^= 1 << int(rng.integers(8))
    size = int(np.diff(sets[0]).max())
    for s in range(3):
        if is_sound(s, tuple(sets), n_features):
            own = np.full(size + 1, -1, np.int32)
            count = decode(s, tuple(sets), own)
            assert count == np.diff(sets[0])[s]
            assert (np.diff(own[:count]) > 0).all()
            assert ((own[:count] >= 0) & (own[:count] < n_features)).all()


def test_a_chunk_needs_rows_inside_the_arrays():
    sets = made_sets([np.arange(3), np.arange(5, 9)])
    counts = np.zeros(2 * BLOCK, np.uint8)
    counts[:4] = [1, 2, 1, 2]
    lanes = np.array([0, 1, 2, 0, 0, 2], np.uint8)
    parts = [np.array([0, 9]), np.array([0, 4]), np.zeros(2, np.int64), counts, lanes, np.ones(6, np.int8),
             np.ones(9 + 16, np.int8)]  # fmt: skip
    sound = jit(packed_rows.is_sound_chunk.py_func)
    assert sound(0, np.array([0, 3]), 100, sets, tuple(parts))
    for number, wrong in [
        (2, np.array([1, 0])), (2, np.array([-1, 0])), (2, np.array([2**63 - 2, 0])), (3, counts * 2),
        (3, np.where(np.arange(64) == 1, 0, counts).astype(np.uint8)), (4, lanes[:5]), (4, lanes + np.uint8(1)),
    ]:  # fmt: skip
        damaged = [wrong if k == number else part for k, part in enumerate(parts)]
        assert not sound(0, np.array([0, 3]), 100, sets, tuple(damaged)), (number, wrong)
    assert not sound(0, np.array([0, 3]), 100, made_sets([np.arange(3), np.arange(2, 6)]), tuple(parts)), "both sets"
