import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from labelwise.errors import DataError
from labelwise.strings import Strings
from labelwise.topk import TopK


@given(
    st.integers(0, 6),
    st.integers(1, 8),
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
)
def test_from_csr_equals_sorting_each_row(n, n_labels, k, seed):
    rng = np.random.default_rng(seed)
    dense = np.round(rng.normal(size=(n, n_labels)), 1).astype(np.float32)
    mask = rng.random((n, n_labels)) < 0.6
    matrix = sparse.csr_array((dense[mask], np.nonzero(mask)), shape=(n, n_labels))
    top = TopK.from_csr(matrix, k)
    for row in range(n):
        expected = sorted((-dense[row, j], j) for j in np.flatnonzero(mask[row]))[:k]
        ids = [int(j) for _, j in expected]
        assert top.ids[row].tolist() == ids + [-1] * (k - len(ids))
        assert top.scores[row, : len(ids)].tolist() == [-s for s, _ in expected]
        assert np.isneginf(top.scores[row, len(ids) :]).all()


def test_to_csr_is_the_inverse_of_from_csr():
    matrix = sparse.random_array((20, 30), density=0.2, format="csr", rng=0, dtype=np.float32)
    again = TopK.from_csr(matrix, 30).to_csr(30)
    assert (again != matrix).nnz == 0


def test_names_threshold_and_head():
    top = TopK(np.array([[2, 0, -1]]), np.array([[0.9, 0.2, -np.inf]]), Strings.of(["a", "b", "c"]))
    assert top.labels == [["c", "a"]]
    assert list(top) == [[("c", 0.9), ("a", 0.2)]]
    assert top.above(0.5).labels == [["c"]]
    assert top.head(1).labels == [["c"]]
    assert TopK(top.ids, top.scores).labels == [["2", "0"]]


def test_nan_has_no_rank():
    with pytest.raises(DataError, match="NaN"):
        TopK.from_csr(sparse.csr_array([[np.nan, 1]]), 1)


def test_shapes_must_agree_and_single_rows_are_refused():
    with pytest.raises(ValueError, match="must both have shape"):
        TopK(np.zeros((2, 3), int), np.zeros((2, 2)))
    with pytest.raises(TypeError, match="slice"):
        TopK(np.zeros((2, 3), int), np.zeros((2, 3)))[0]


def test_ranks_go_by_the_scores_that_are_kept():
    close = sparse.csr_array(np.array([[1.0, 1.0 + 1e-12]]))
    assert TopK.from_csr(close, 2).ids.tolist() == [[0, 1]]
    assert TopK.from_csr(sparse.csr_array(np.array([[True, False, True]])), 2).ids.tolist() == [[0, 2]]
    twice = sparse.csr_array((np.array([1.0, 1.0, 1.5]), [1, 1, 0], [0, 3]), shape=(1, 2))
    assert TopK.from_csr(twice, 2).ids.tolist() == [[1, 0]]


def test_only_predictions_over_the_same_labels_are_put_together():
    one, two = (TopK(np.array([[0]]), np.array([[1.0]]), Strings.of([name])) for name in "ab")
    with pytest.raises(ValueError, match="same label names"):
        TopK.concatenate([one, two])
    assert TopK.concatenate([one, TopK(one.ids, one.scores, Strings.of(["a"]))]).labels == [["a"], ["a"]]
