"""Label features against the formula in dense float64, and the kernel against its reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

import reference_kernels as reference
from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError, DataError
from labelwise.features import labels as label_features
from labelwise.features.labels import pifa
from labelwise.kernels.label_features import sum_documents
from labelwise.runtime import threads as parallel


def by_formula(features, labels):
    norms = np.linalg.norm(labels, axis=1, keepdims=True)
    sums = (labels / np.where(norms == 0, 1, norms)).T @ features
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return sums / np.where(norms == 0, 1, norms)


@pytest.fixture(scope="module")
def example():
    """Documents, some of them empty, over 700 columns; labels, some without documents, some with a relevance."""
    random = np.random.default_rng(1)
    features = sparse.random_array((300, 700), density=0.03, rng=random, format="csr", dtype=np.float32)
    features.data -= np.float32(0.3)
    labels = sparse.random_array((300, 90), density=0.02, rng=random, format="csr", dtype=np.float32)
    labels.data[::3] = 1
    labels = labels.tolil()
    labels[:, [0, 17, 89]] = 0
    return features, sparse.csr_array(labels)


def test_sparse_features_follow_the_formula(example):
    features, labels = example
    found = pifa(features, labels)
    assert found.has_canonical_format
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), by_formula(features.toarray(), labels.toarray()), atol=1e-6)
    assert (np.diff(found.indptr)[[0, 17, 89]] == 0).all()


def test_dense_features_follow_the_formula(example):
    dense = np.random.default_rng(2).standard_normal((300, 12)).astype(np.float32)
    found = pifa(dense, example[1])
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, by_formula(dense, example[1].toarray()), atol=1e-6)


def test_two_blocks_share_one_norm(example):
    features, labels = example
    dense = np.random.default_rng(2).standard_normal((300, 12)).astype(np.float32)
    found = pifa(Blocks(features, dense), labels)
    expected = by_formula(np.hstack([features.toarray(), dense]), labels.toarray())
    np.testing.assert_allclose(np.hstack([found.sparse.toarray(), found.dense]), expected, atol=1e-6)
    only = pifa(Blocks(features, None), labels)
    assert only.dense is None
    assert (only.sparse != pifa(features, labels)).nnz == 0


def test_keep_leaves_the_largest_of_each_row_at_unit_norm(example):
    features, labels = example
    whole, cut = pifa(features, labels).toarray(), pifa(features, labels, keep=5).toarray()
    for full, kept in zip(whole, cut, strict=True):
        kept_columns = np.flatnonzero(kept)
        assert len(kept_columns) == min(5, np.count_nonzero(full))
        if len(kept_columns):
            rest = np.delete(np.abs(full), kept_columns)
            assert np.abs(full[kept_columns]).min() >= rest.max()
            np.testing.assert_allclose(
                kept[kept_columns], full[kept_columns] / np.linalg.norm(full[kept_columns]), rtol=1e-5
            )


def test_keep_more_than_there_is_changes_nothing(example):
    assert (pifa(*example, keep=10_000) != pifa(*example)).nnz == 0


def test_any_number_of_threads_and_tasks_gives_the_same_bits(example, monkeypatch):
    found = []
    for threads, work in ((1, 10**9), (2, 10**9), (3, 50), (1, 1)):
        monkeypatch.setattr(label_features, "MAX_WORK_PER_TASK", work)
        with parallel.using_threads(threads):
            found.append(pifa(*example, keep=20))
    for other in found[1:]:
        assert np.array_equal(found[0].indptr, other.indptr)
        assert np.array_equal(found[0].indices, other.indices)
        assert found[0].data.tobytes() == other.data.tobytes()


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (sparse.csr_array((4, 3), dtype=np.float32), np.eye(4)),
        (sparse.csr_array((4, 0), dtype=np.float32), np.eye(4)),
        (sparse.csr_array((0, 3), dtype=np.float32), np.zeros((0, 2))),
        (sparse.csr_array(np.eye(4)), np.zeros((4, 2))),
        (sparse.csr_array(np.eye(4)), np.zeros((4, 0))),
        (np.zeros((4, 3), np.float32), np.eye(4)),
    ],
)
def test_nothing_to_sum_gives_empty_rows(features, labels):
    found = pifa(features, sparse.csr_array(labels), keep=2)
    assert found.shape == (labels.shape[1], features.shape[1])
    assert not np.any(found.toarray() if sparse.issparse(found) else found)


def test_the_input_is_not_changed(example):
    before = [matrix.copy() for matrix in example]
    pifa(*example, keep=3)
    assert all((old != new).nnz == 0 for old, new in zip(before, example, strict=True))


def test_what_is_refused(example):
    features, labels = example
    with pytest.raises(DataError, match="299 rows of features for 300 rows of labels"):
        pifa(features[:299], labels)
    with pytest.raises(ConfigError, match="keep must be 1 or more"):
        pifa(features, labels, keep=0)
    with pytest.raises(DataError, match="NaN or infinity"):
        pifa(np.full((300, 2), np.nan), labels)
    with pytest.raises(DataError, match=r"sum of the features.*infinite"):
        pifa(np.full((2, 1), 3e38, np.float32), np.ones((2, 1)))
    with pytest.raises(DataError, match="no block"):
        Blocks(None, None)
    with pytest.raises(DataError, match=r"the same number of rows, got \[7, 300\]"):
        Blocks(features, np.zeros((7, 2)))


@given(st.data())
def test_the_kernel_agrees_with_its_reference(data):
    """Small whole numbers, so that both sum exactly and equal entries are equal in both."""
    documents, n_labels = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    width, dense_width = data.draw(st.sampled_from([(3, 0), (70, 0), (600, 0), (5, 3), (4, 4)]))
    n_columns = width - dense_width
    keep = n_columns if dense_width else data.draw(st.integers(1, 6))  # only sparse blocks are cut
    numbers = st.sampled_from([0, 0, 0, 1, 2, -1])
    features = data.draw(arrays(np.int64, (documents, width), elements=numbers)).astype(np.float32)
    weights = data.draw(arrays(np.int64, (n_labels, documents), elements=numbers)).astype(np.float32)
    first = data.draw(st.integers(0, n_labels - 1))
    inputs = (*csr_arrays(weights), *csr_arrays(features[:, :n_columns]), features[:, n_columns:])
    counts, capacity = np.empty(n_labels - first, np.int64), n_labels * width + 1
    indices, values = np.empty(capacity, np.int32), np.empty(capacity, np.float32)
    dense = np.zeros((n_labels - first, dense_width), np.float32)
    filled = sum_documents(
        *map(label_features.read_only, inputs), first, n_labels, n_columns, keep, counts, indices, values, dense
    )
    parts = (values[:filled], indices[:filled], np.concatenate([[0], np.cumsum(counts)]))
    found = sparse.csr_array(parts, shape=(n_labels - first, n_columns)).toarray()
    expected = reference.sum_documents(weights.astype(float), features.astype(float), width if dense_width else keep)
    np.testing.assert_allclose(np.hstack([found, dense]), expected[first:], atol=1e-6)


def csr_arrays(matrix):
    csr = sparse.csr_array(matrix)
    return csr.indptr.astype(np.int64), csr.indices.astype(np.uint32), csr.data
