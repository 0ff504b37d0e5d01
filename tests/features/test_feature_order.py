"""Features by frequency against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from labelwise.errors import ModelFormatError
from labelwise.features.rows import FeatureOrder


@given(st.integers(0, 2**32 - 1), st.integers(1, 150), st.sampled_from([1, 2, 30, 64, 65, 5000]), st.booleans())
@settings(max_examples=40)
def test_the_same_matrix_with_the_most_frequent_column_first(seed, rows, columns, in_place):
    rng = np.random.default_rng(seed)
    X = sparse.random_array((rows, columns), density=0.4, format="csr", rng=rng, dtype=np.float32)
    X.sort_indices()
    dense, counts = X.toarray(), np.bincount(X.indices, minlength=columns)
    order = FeatureOrder.by_frequency(X)
    np.testing.assert_array_equal(order.original, np.argsort(-counts, kind="stable"))
    given = sparse.csr_array(X, copy=True)
    renumbered = order.apply(given, in_place=in_place)
    assert renumbered.has_sorted_indices
    np.testing.assert_array_equal(renumbered.toarray(), dense[:, order.original])
    if not in_place:
        np.testing.assert_array_equal(given.toarray(), dense)
        bare = order.rows(given)
        np.testing.assert_array_equal(bare.indices, renumbered.indices)
        np.testing.assert_array_equal(bare.data, renumbered.data)


@pytest.mark.parametrize(
    "original", [[0, 1, 1], [0, 1], [0, 1, 3], [0, 1, -1], [[0, 1, 2]]], ids=["twice", "few", "far", "below", "matrix"]
)
def test_a_damaged_order_is_refused(original, tmp_path):
    with pytest.raises(ModelFormatError, match="order of features"):
        FeatureOrder.from_tensors({"feature_order": np.array(original, np.int32)}, 3, tmp_path)
    with pytest.raises(ModelFormatError, match="order of features"):
        FeatureOrder.from_tensors({"feature_order": np.array([0, 1, 2], np.int64)}, 3, tmp_path)
