"""Offsets, indices and weights from files: compared with plain Python, on extreme values and across pieces."""

import itertools
import warnings

import numpy as np
import pytest

from labelwise.io import tensors as checks

EXTREME = [0, -1, 1, 3, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(checks, "PIECE", 3)


@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_offsets_and_order_as_python_says(length):
    for values in itertools.product(EXTREME, repeat=length) if length < 4 else [*_sequences(length)]:
        array = np.array(values, np.int64)
        pairs = list(itertools.pairwise(values))
        assert checks.is_non_decreasing(array) is all(a <= b for a, b in pairs)
        assert checks.is_increasing(array) is all(a < b for a, b in pairs)
        for end in (values[-1], 3):
            expected = values[0] == 0 and values[-1] == end and all(a <= b for a, b in pairs)
            assert checks.are_offsets(array, end) is expected
        assert checks.in_range(array, 3) is all(0 <= value < 3 for value in values)
        assert checks.are_sizes(array, 3) is (min(values) >= 0 and sum(values) == 3)


def _sequences(length):
    yield from [
        (0, 2**63 - 1, -(2**63), -1, 3)[:length],
        (0, 1, 1, 2, 3)[:length],
        (0, 2**63 - 1, 2**63 - 1, 5, 3)[:length],
    ]
    rng = np.random.default_rng(0)
    for _ in range(200):
        yield tuple(EXTREME[i] for i in rng.integers(0, len(EXTREME), length))
        yield tuple(sorted(rng.integers(0, 4, length).tolist()))


def test_a_fall_between_two_pieces_is_seen():
    for place in range(1, 9):
        values = np.arange(9)
        values[place:] -= 2
        assert not checks.is_non_decreasing(values)


def test_unsigned_numbers_and_other_types():
    assert checks.are_offsets(np.array([0, 2, 2**63], np.uint64), 2**63)
    assert not checks.are_offsets(np.array([0, 2**64 - 1, 3], np.uint64), 3)
    assert not checks.are_offsets(np.array([0.0, 3.0]), 3)
    assert not checks.are_offsets(np.empty(0, np.int64), 0)
    assert checks.in_range(np.empty(0, np.int32), 0)
    assert not checks.in_range(np.array([2**64 - 1], np.uint64), 10)
    assert not checks.are_sizes(np.full(4, 2**62, np.int64), 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_not_finite_wherever_it_is(dtype):
    for shape in [(8,), (2, 4), (1,)]:
        sound = np.full(shape, 1e-30, dtype)
        assert checks.all_finite(sound)
        assert checks.all_finite(sound.T)
        for place in range(sound.size):
            for bad in (np.nan, np.inf, -np.inf):
                array = sound.copy()
                array.reshape(-1)[place] = bad
                assert not checks.all_finite(array)
                assert not checks.all_finite(array.T)
    assert checks.all_finite(np.array([2**63 - 1]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_in_any_precision(dtype, value):
    weights = np.array([1, -2, 60_000], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checks.are_weights(weights)
        assert not checks.are_weights(np.append(weights, dtype(value)))
