"""Kernels around chunks of weights against plain NumPy and SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse

from labelwise.kernels import solver as chunk_rows
from labelwise.kernels.fields import is_canonical
from labelwise.kernels.intrinsics import LANES, add_spans, as_float

seeds = st.integers(0, 2**32 - 1)


def random_csr(rng, rows, columns, density=0.3):
    matrix = sparse.random_array((rows, columns), density=density, format="csr", rng=rng, dtype=np.float32)
    matrix.data += 0.1
    matrix.sort_indices()
    return matrix


@given(seeds, st.integers(1, 40), st.integers(1, 12))
@settings(max_examples=40)
def test_gathered_rows_are_the_rows_without_empty_columns(seed, columns, picked):
    rng = np.random.default_rng(seed)
    X = random_csr(rng, 15, columns)
    rows = np.sort(rng.choice(15, picked, replace=False))
    total = int(np.diff(X.indptr)[rows].sum())
    numbers, features = np.full(columns, -1, np.int32), np.empty(columns, np.int32)
    indptr = np.empty(picked + 1, np.int64)
    indices, values = np.empty(total, np.int32), np.empty(total, np.float32)
    count = chunk_rows.gather_rows(X.indptr, X.indices, X.data, rows, numbers, features, indptr, indices, values)
    expected = X.toarray()[rows]
    used = np.flatnonzero(expected.any(axis=0))
    np.testing.assert_array_equal(features[:count], used)
    found = sparse.csr_array((values, indices, indptr), shape=(picked, count))
    np.testing.assert_array_equal(found.toarray(), expected[:, used])
    assert (numbers == -1).all()


@given(seeds, st.booleans(), st.integers(0, 20), st.integers(1, 16))
@settings(max_examples=40)
def test_targets_of_sixteen_labels_are_a_slice_of_the_label_matrix(seed, weighted, first, width):
    rng = np.random.default_rng(seed)
    Y = random_csr(rng, 12, first + width + 3)
    rows = np.sort(rng.choice(12, 7, replace=False))
    signs, costs = np.empty((7, LANES), np.int8), np.empty((7, LANES), np.float32)
    chunk_rows.lane_targets(
        Y.indptr, Y.indices, Y.data, rows, first, width, signs, costs, weighted, np.float32(2), np.float32(0.5)
    )
    expected = Y.toarray()[rows, first : first + width]
    np.testing.assert_array_equal(signs[:, :width], np.where(expected > 0, 1, -1))
    if weighted:
        np.testing.assert_allclose(costs[:, :width], np.where(expected > 0, 2 * expected, 0.5), rtol=1e-6)


@given(seeds, st.integers(1, 30), st.integers(1, 16), st.floats(0, 1.5), st.integers(1, 30))
@settings(max_examples=40)
def test_kept_weights_are_those_above_the_cut_and_among_the_largest(seed, count, width, threshold, max_weights):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(count, LANES)).astype(np.float32)
    weights[rng.random(weights.shape) < 0.3] = 0
    cuts = np.full(LANES, threshold, np.float32)
    if max_weights < count:
        chunk_rows.limit_weights(weights, count, width, max_weights, cuts)
    counts = np.zeros(count, np.int64)
    chunk_rows.count_kept(weights, count, width, cuts, counts)
    total = int(counts.sum())
    kept = np.empty(total, np.int32), np.empty(total, np.uint16), np.empty(total, np.float32)
    assert chunk_rows.write_kept(weights, count, width, cuts, 5, *kept) == total
    expected = np.zeros((count, width), np.float32)
    for lane in range(width):
        column = weights[:, lane]
        largest = np.argsort(-np.abs(column), kind="stable")[:max_weights]
        chosen = [f for f in largest if column[f] != 0 and abs(column[f]) >= np.float32(threshold)]
        expected[chosen, lane] = column[chosen]
    found = np.zeros_like(expected)
    found[kept[0], kept[1] - 5] = kept[2]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(counts, (expected != 0).sum(axis=1))


@njit
def _stretches(stored, starts, factors, block, sums):
    add_spans(stored, starts, factors, len(starts), block, sums)


@njit
def _floats(stored, out):
    for i in range(len(stored)):
        out[i] = as_float(stored[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@given(seed=seeds)
@settings(max_examples=20)
def test_stretches_are_added_in_every_precision(dtype, seed):
    rng = np.random.default_rng(seed)
    stored = (rng.normal(size=400) * 20).astype(dtype)
    bits = stored.view(np.uint16) if dtype == np.float16 else stored
    starts = rng.integers(0, 400 - 2 * LANES, 9)
    factors = rng.normal(size=9).astype(np.float32)
    sums = rng.normal(size=2 * LANES).astype(np.float32)
    expected = sums.astype(np.float64)
    expected[LANES:] += sum(
        f * stored[s + LANES : s + 2 * LANES].astype(np.float64) for s, f in zip(starts, factors, strict=True)
    )
    _stretches(bits, starts, factors, 1, sums)
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-3)


def test_every_finite_half_is_read_exactly():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    out = np.empty(len(halves), np.float32)
    _floats(halves.view(np.uint16), out)
    np.testing.assert_array_equal(out, halves.astype(np.float32))


def messed_up(rng, X):
    """Something is wrong with the matrix, or nothing."""
    indptr, indices, data, columns = X.indptr.copy(), X.indices.copy(), X.data.copy(), X.shape[1]
    fault = rng.integers(0, 7)
    if fault == 1:
        data[rng.integers(len(data))] = [0, np.nan, np.inf][rng.integers(3)]
    elif fault == 2:
        indices[rng.integers(len(indices))] = columns
    elif fault == 3:
        indices[rng.integers(len(indices))] = -1
    elif fault == 4:
        indptr[-1] -= 1
    elif fault == 5:
        indptr[rng.integers(1, len(indptr) - 1)] = len(data) + 1
    elif fault == 6:
        row = int(np.argmax(np.diff(indptr)))
        indices[indptr[row] + 1] = indices[indptr[row]]
    return fault, indptr, indices, data, columns


@given(seeds)
@settings(max_examples=50)
def test_only_sound_matrices_pass(seed):
    rng = np.random.default_rng(seed)
    fault, indptr, indices, data, columns = messed_up(rng, random_csr(rng, 10, 12, density=0.5))
    assert is_canonical(indptr, indices, data, 10, columns) == (fault == 0)
    assert not is_canonical(indptr[:4], indices, data, 10, columns)


def test_lanes_of_a_damaged_model_are_not_written_outside():
    """Lanes that do not ascend: the file is checked for lanes that are too large, but not for their order."""
    weights = np.zeros((3, 16), np.float32)
    lanes, values = np.array([3, 45, 50, 20, 2], np.uint8), np.ones(5, np.float32)
    chunk_rows.load_lanes(np.array([0]), np.array([5]), lanes, values, 40, 16, weights[1:2])
    expected = np.zeros((3, 16))
    expected[1, [5, 10]] = 1
    np.testing.assert_array_equal(weights, expected)
