"""The clustering kernels against reference implementations. Values are eighths, so that sums of both sides are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

import reference_kernels as reference
from labelwise.kernels import clustering as balanced_kmeans
from labelwise.kernels import clustering as capped_kmeans
from labelwise.kernels import clustering as rows
from labelwise.kernels import clustering as selection
from labelwise.kernels.jit import jit

kth_smallest = jit(selection.kth_smallest.py_func)


def read_only(array):
    array = np.ascontiguousarray(array)[:]
    array.flags.writeable = False
    return array


def as_blocks(matrix, n_columns):
    """The kernels' arrays: the first columns as CSR, the others dense."""
    csr = sparse.csr_array(matrix[:, :n_columns].astype(np.float32))
    blocks = (
        csr.indptr.astype(np.int64),
        csr.indices.astype(np.uint32),
        csr.data,
        matrix[:, n_columns:].astype(np.float32),
    )
    return tuple(read_only(block) for block in blocks)


@st.composite
def matrices(draw, min_rows=1):
    """Rows of eighths (empty and equal ones among them), and how many of the columns are sparse."""
    count, width = draw(st.integers(min_rows, 25)), draw(st.integers(0, 7))
    values = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, -4])
    different = draw(arrays(np.int64, (draw(st.integers(1, count)), width), elements=values))
    picks = draw(arrays(np.int64, count, elements=st.integers(0, len(different) - 1)))
    return different[picks] / 8, draw(st.integers(0, width))


@given(arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([0.0, 1, 2, 3, -1, -np.inf, np.inf])), st.data())
def test_the_kth_smallest_is_that_of_a_sort(values, data):
    k = data.draw(st.integers(0, len(values) - 1))
    assert kth_smallest(values.copy(), k) == np.sort(values)[k]


@pytest.mark.parametrize("arranged", [np.sort, lambda v: np.sort(v)[::-1], lambda v: np.zeros_like(v), np.array])
def test_selection_in_long_vectors(arranged):
    values = np.ascontiguousarray(arranged(np.random.default_rng(0).random(50_000)))
    for k in (0, 1, 25_000, 49_999):
        assert kth_smallest(values.copy(), k) == np.sort(values)[k]


@given(matrices(), st.data())
def test_products_and_sums(case, data):
    matrix, n_columns = case
    width = matrix.shape[1]
    blocks = as_blocks(matrix, n_columns)
    members = np.array(data.draw(st.lists(st.integers(0, len(matrix) - 1), max_size=10)), np.int64)
    signs = data.draw(arrays(np.int8, len(members), elements=st.sampled_from([-1, 0, 1])))
    first = data.draw(st.integers(0, width))
    last = data.draw(st.integers(first, width))
    centre = np.ones(width, np.float32)
    rows.add_to_centre(*blocks, members, signs, first, last, centre)
    expected = np.ones(width)
    expected[first:last] += (signs @ matrix[members])[first:last]
    assert centre.tolist() == expected.tolist()

    begin = data.draw(st.integers(0, len(members)))
    products = np.full(len(members), 7, np.float32)
    rows.dot_with_centre(*blocks, members, begin, len(members), centre, products)
    assert products[:begin].tolist() == [7] * begin
    assert products[begin:].tolist() == (matrix[members] @ expected)[begin:].tolist()

    norms = np.empty(len(matrix))
    rows.row_norms(blocks[0], blocks[2], blocks[3], norms)
    np.testing.assert_allclose(norms, np.linalg.norm(matrix, axis=1))


@given(matrices(), st.data())
def test_copied_rows_hold_only_the_columns_in_use(case, data):
    matrix, _ = case
    indptr, indices, values, _ = as_blocks(matrix, matrix.shape[1])
    members = np.array(data.draw(st.lists(st.integers(0, len(matrix) - 1), min_size=1)), np.int64)
    entries = int((indptr[members + 1] - indptr[members]).sum())
    new_indptr, new_indices = np.empty(len(members) + 1, np.int64), np.empty(entries, np.uint32)
    new_values = np.empty(entries, np.float32)
    used = rows.copy_rows(indptr, indices, values, matrix.shape[1], members, new_indptr, new_indices, new_values)
    in_use = matrix[members][:, (matrix[members] != 0).any(0)]
    assert used == in_use.shape[1]
    found = sparse.csr_array((new_values, new_indices.astype(np.int32), new_indptr), shape=in_use.shape)
    assert found.toarray().tolist() == in_use.tolist()


@given(matrices(), st.integers(0, 4), st.integers(1, 6), st.integers(0, 2), st.integers(1, 3), st.integers(0, 2**32))
def test_halving_gives_the_order_of_the_reference(case, layers, max_iterations, node, starts, seed):
    matrix, n_columns = case
    draws = np.random.default_rng(seed).integers(0, 2**62, ((node + 1) * 2**layers + 2**layers, starts, 2))
    members = np.arange(len(matrix))
    blocks = as_blocks(matrix, n_columns)
    balanced_kmeans.halve_recursively(*blocks, n_columns, layers, draws, node, max_iterations, members)
    assert members.tolist() == reference.halve_recursively(
        matrix, list(range(len(matrix))), layers, draws, node, max_iterations
    )


def test_scores_are_those_of_the_direction_between_unit_sums():
    """The kernel never forms the direction; here it is formed as it is defined."""
    random = np.random.default_rng(3)
    matrix = random.standard_normal((50, 8))
    left = random.permutation(50) < 25
    scores = np.empty(50)
    with_all, with_left = matrix @ matrix.sum(0), matrix @ matrix[left].sum(0)
    objective = balanced_kmeans.score_rows(with_all.astype(np.float32), with_left.astype(np.float32), left, scores)
    sides = [matrix[side].sum(0) for side in (left, ~left)]
    assert objective == pytest.approx(sum(map(np.linalg.norm, sides)), rel=1e-5)
    direction = sides[1] / np.linalg.norm(sides[1]) - sides[0] / np.linalg.norm(sides[0])
    np.testing.assert_allclose(scores, matrix @ direction, atol=1e-5)


@given(matrices(min_rows=2), st.integers(1, 5), st.data())
def test_clusters_are_those_of_the_reference(case, max_iterations, data):
    matrix, n_columns = case
    count = len(matrix)
    n_clusters = data.draw(st.integers(2, min(count, 5)))
    smallest = data.draw(st.sampled_from([0, 1, count // n_clusters]))
    largest = data.draw(st.integers(-(-count // n_clusters), count))
    draws = np.array(data.draw(st.lists(st.integers(0, 15), min_size=n_clusters, max_size=n_clusters))) / 16
    clusters = np.empty(count, np.int64)
    blocks = as_blocks(matrix, n_columns)
    capped_kmeans.cluster_rows(*blocks, n_columns, np.arange(count), draws, smallest, largest, max_iterations, clusters)
    assert clusters.tolist() == reference.cluster_rows(matrix, draws.tolist(), smallest, largest, max_iterations)
    sizes = np.bincount(clusters, minlength=n_clusters)
    assert sizes.min() >= smallest
    assert sizes.max() <= largest
