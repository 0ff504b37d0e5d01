"""The 16-lane solver against scikit-learn's LIBLINEAR, and its vector loops against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from labelwise.data.csr import read_only
from labelwise.kernels import solver as dual_descent
from labelwise.kernels.intrinsics import (
    LANES,
    add_block,
    add_rows,
    dot_block,
    dot_rows,
)


@njit
def dot(indices, values, start, end, weights, out):
    dot_rows(indices, values, start, end, weights, out)


@njit
def add(indices, values, start, end, weights, delta):
    add_rows(indices, values, start, end, weights, delta)


@given(st.integers(0, 30), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_vector_loops_equal_numpy(count, start, seed):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(20, LANES)).astype(np.float32)
    indices = rng.integers(0, 20, start + count).astype(np.int32)
    values = rng.normal(size=start + count).astype(np.float32)
    out = rng.normal(size=LANES).astype(np.float32)
    expected = out + values[start:].astype(np.float64) @ weights[indices[start:]].astype(np.float64)
    dot(indices, values, start, start + count, weights, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    delta = rng.normal(size=LANES).astype(np.float32)
    changed = weights.astype(np.float64)
    np.add.at(changed, indices[start:], values[start:, None].astype(np.float64) * delta)
    add(indices, values, start, start + count, weights, delta)
    np.testing.assert_allclose(weights, changed, rtol=1e-4, atol=1e-4)


@njit
def dot_dense(dense, row, weights, first, out):
    dot_block(dense, row, weights, first, out)


@njit
def add_dense(dense, row, weights, first, delta):
    add_block(dense, row, weights, first, delta)


@given(st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_vector_loops_over_a_dense_block_equal_numpy(count, seed):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(23, LANES)).astype(np.float32)
    first = int(rng.integers(0, 24 - count))
    values, out, delta = (rng.normal(size=size).astype(np.float32) for size in (count, LANES, LANES))
    dense = np.stack([values + 1, values, values - 1])
    expected = out + values.astype(np.float64) @ weights[first : first + count].astype(np.float64)
    dot_dense(dense, 1, weights, first, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    changed = weights.astype(np.float64)
    changed[first : first + count] += values[:, None].astype(np.float64) * delta
    add_dense(dense, 1, weights, first, delta)
    np.testing.assert_allclose(weights, changed, rtol=1e-4, atol=1e-4)


def problem(seed, n=120, d=40, width=5):
    rng = np.random.default_rng(seed)
    X = sparse.random_array((n, d), density=0.3, format="csr", rng=rng, dtype=np.float32)
    X.data = rng.normal(size=X.nnz).astype(np.float32)
    truth = rng.normal(size=(d, width))
    signs = np.where(X @ truth + 0.5 * rng.normal(size=(n, width)) > 0.3, 1, -1)
    return X, signs


def solve(X, signs, loss, positive=1.0, negative=1.0, costs=None, bias=1.0, tolerance=1e-3, dense=None, block=None):
    """Margins of the solver's weights; `dense` (float32, or float16 as uint16) are further columns of some rows."""
    n, width = signs.shape
    padded = np.zeros((n, LANES), np.int8)
    padded[:, :width] = signs
    weighted = costs is not None
    given = np.ones((n, LANES), np.float32) if weighted else np.array([[negative, positive]], np.float32)
    if weighted:
        given[:, :width] = costs
    offsets = np.zeros(LANES, np.float32)
    norms = np.asarray((X * X).sum(axis=1)).ravel().astype(np.float32)
    rows = np.arange(n)
    if dense is None:
        dense, numbers = np.empty((0, 0), np.float32), np.empty((n, 0), np.float32)
    else:
        rows = np.random.default_rng(1).permutation(2 * n)[:n]  # the chunk's rows are some of all documents
        numbers, dense = dense, np.repeat(dense, 2, axis=0)
        dense[rows] = numbers
        numbers = (numbers.view(np.float16) if numbers.dtype == np.uint16 else numbers).astype(np.float32)
        norms += (numbers * numbers).sum(axis=1)
    weights = np.zeros((X.shape[1] + dense.shape[1], LANES), np.float32)
    dense.flags.writeable = False  # as training has it, which saves a compilation
    passes = dual_descent.solve_lanes(
        X.indptr[:-1].astype(np.int64), X.indptr[1:].astype(np.int64), read_only(X.indices),
        read_only(X.data), rows, dense, X.shape[1],
        norms, padded, given, weighted, width, loss, np.float32(bias), np.float32(tolerance), 5000, 0, block or n, weights,
        offsets,
    )  # fmt: skip
    assert passes < 5000
    assert (weights[:, width:] == 0).all()
    sparse_weights, dense_weights = weights[: X.shape[1], :width], weights[X.shape[1] :, :width]
    return X @ sparse_weights + numbers @ dense_weights + offsets[:width] * bias


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("loss", [dual_descent.SQUARED_HINGE, dual_descent.LOGISTIC])
@pytest.mark.parametrize("n_sparse", [0, 25])
def test_dense_columns_are_learned_like_sparse_ones(n_sparse, loss, dtype):
    X, signs = problem(3)
    dense = (X[:, n_sparse:].toarray() + 0.25).astype(dtype)
    whole = np.hstack([X[:, :n_sparse].toarray(), dense.astype(np.float32)])
    given = dense.view(np.uint16) if dtype == np.float16 else dense
    found = solve(X[:, :n_sparse], signs, loss, dense=given)
    for lane in range(signs.shape[1]):
        if loss == dual_descent.LOGISTIC:
            peer = LogisticRegression(solver="liblinear", C=1.0, tol=1e-8, max_iter=10_000)
        else:
            peer = LinearSVC(loss="squared_hinge", C=1.0, tol=1e-8, max_iter=1_000_000, dual=True)
        expected = peer.fit(whole, signs[:, lane]).decision_function(whole)
        np.testing.assert_allclose(found[:, lane], expected, atol=0.02)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("loss", "name"), [(dual_descent.SQUARED_HINGE, "squared_hinge"), (dual_descent.HINGE, "hinge")]
)
@pytest.mark.parametrize("block", [None, 7])
def test_margins_are_those_of_liblinear(seed, loss, name, block):
    X, signs = problem(seed)
    found = solve(X, signs, loss, positive=2.0, negative=0.5, block=block)
    for lane in range(signs.shape[1]):
        peer = LinearSVC(loss=name, C=1.0, class_weight={1: 2.0, -1: 0.5}, tol=1e-8, max_iter=1_000_000, dual=True)
        expected = peer.fit(X, signs[:, lane]).decision_function(X)
        np.testing.assert_allclose(found[:, lane], expected, atol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_logistic_margins_are_those_of_liblinear(seed):
    X, signs = problem(seed)
    found = solve(X, signs, dual_descent.LOGISTIC)
    for lane in range(signs.shape[1]):
        peer = LogisticRegression(solver="liblinear", C=1.0, tol=1e-8, max_iter=10_000)
        np.testing.assert_allclose(found[:, lane], peer.fit(X, signs[:, lane]).decision_function(X), atol=0.02)


def test_costs_of_single_examples():
    X, signs = problem(7)
    costs = np.random.default_rng(0).uniform(0.2, 3, signs.shape).astype(np.float32)
    found = solve(X, signs, dual_descent.SQUARED_HINGE, costs=costs)
    for lane in range(signs.shape[1]):
        peer = LinearSVC(loss="squared_hinge", C=1.0, tol=1e-8, max_iter=1_000_000)
        expected = peer.fit(X, signs[:, lane], sample_weight=costs[:, lane]).decision_function(X)
        np.testing.assert_allclose(found[:, lane], expected, atol=0.02)


def test_without_a_constant_feature():
    X, signs = problem(3)
    found = solve(X, signs, dual_descent.SQUARED_HINGE, bias=0.0)
    peer = LinearSVC(loss="squared_hinge", fit_intercept=False, tol=1e-8, max_iter=1_000_000)
    np.testing.assert_allclose(found[:, 0], peer.fit(X, signs[:, 0]).decision_function(X), atol=0.02)
