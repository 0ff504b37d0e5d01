"""Sparse and dense features side by side."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from labelwise.data import csr as module
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.errors import DataError


@given(st.integers(0, 12), st.integers(0, 6), st.integers(0, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_one_matrix_from_two(rows, sparse_columns, dense_columns, at_once, seed):
    rng = np.random.default_rng(seed)
    left = sparse.random_array((rows, sparse_columns), density=0.4, format="csr", rng=rng, dtype=np.float32)
    dense = rng.integers(-1, 2, (rows, dense_columns)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", at_once)
        for found, expected in (
            (Blocks(left, dense), [left.toarray(), dense]),
            (Blocks(None, dense), [dense]),
            (Blocks(left, None), [left.toarray()]),
        ):
            matrix = found.to_csr()
            matrix.check_format(full_check=True)
            assert matrix.indices.dtype == np.int32
            assert matrix.shape == found.shape
            np.testing.assert_array_equal(matrix.toarray(), np.hstack(expected))


def test_a_data_set_can_hold_them():
    data = Dataset(sparse.eye_array(4).tocsr(), features=Blocks(sparse.eye_array(4).tocsr(), np.ones((4, 2))))
    assert data.features.shape == (4, 6)
    assert data.features.dense.dtype == data.features.sparse.dtype == np.float32
    part = data.take([2, 0])
    np.testing.assert_array_equal(part.features.to_csr().toarray(), data.features.to_csr().toarray()[[2, 0]])
    with pytest.raises(DataError, match="NaN"):
        Dataset(data.labels, features=Blocks(data.features.sparse, np.full((4, 2), np.nan)))
    with pytest.raises(DataError, match="same number of rows"):
        Blocks(None, None)
