from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from labelwise.data import csr as label_space
from labelwise.data.csr import first_duplicate, labels_from_lists, positions_in, sorted_label_names
from labelwise.data.dataset import Dataset, canonical_csr
from labelwise.errors import DataError
from labelwise.strings import Strings


def example():
    labels, names = labels_from_lists([["b", "a"], [], ["c", "b", "b"]])
    return Dataset(labels, names, texts=["one", "", "three"], label_texts=["Aa", "Bb", "Cc"], name="example")


def test_labels_from_lists():
    data = example()
    assert list(data.label_names) == ["a", "b", "c"]
    assert data.labels.toarray().tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 1]]
    assert data.label_counts().tolist() == [1, 2, 1]


def test_names_of_numbers_are_in_the_order_of_numbers():
    assert list(sorted_label_names({"10", "9", "0"})) == ["0", "9", "10"]
    assert list(sorted_label_names({"10", "9", "x"})) == ["10", "9", "x"]
    assert list(sorted_label_names({"10", "9", "007"})) == ["007", "10", "9"]


def test_take_and_split():
    data = example()
    assert list(data.take([2, 0]).texts) == ["three", "one"]
    rest, held = data.split(1 / 3, seed=3)
    assert len(rest) == 2
    assert len(held) == 1
    assert sorted([*rest.texts, *held.texts]) == sorted(data.texts)
    again = data.split(1 / 3, seed=3)[1]
    assert again.texts == held.texts
    with pytest.raises(DataError, match="between 0 and 1"):
        data.split(1.0)


def test_align_puts_known_labels_first_and_keeps_new_ones():
    data = example()
    aligned = data.align(Strings.of(["c", "z", "a"]))
    assert list(aligned.label_names) == ["c", "z", "a", "b"]
    assert aligned.labels.toarray().tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1]]
    assert list(aligned.label_texts) == ["Cc", "z", "Aa", "Bb"]
    assert data.align(data.label_names) is data


def test_align_drops_new_labels_that_no_document_has():
    data = example().take([0])
    assert list(data.align(Strings.of(["b"])).label_names) == ["b", "a"]


@given(st.lists(st.text("abc", max_size=3), unique=True), st.lists(st.text("abc", max_size=3), unique=True))
def test_small_and_large_label_spaces_go_by_the_same_rule(names, within):
    expected = [within.index(n) if n in within else -1 for n in names]
    strings = Strings.of(names), Strings.of(within)
    assert positions_in(*strings).tolist() == expected
    with mock.patch.object(label_space, "LARGE", 0):
        assert positions_in(*strings).tolist() == expected
        assert first_duplicate(Strings.of(names)) is None
        if names:
            assert first_duplicate(Strings.of([*names, names[0]])) == names[0]


def test_two_labels_of_one_name_are_refused():
    with pytest.raises(DataError, match="duplicate label name 'b'"):
        Dataset(sparse.csr_array((1, 3)), ["a", "b", "b"], texts=["x"])


def test_canonical_matrices():
    messy = sparse.csr_array((np.array([1.0, 2, 0, 3]), [2, 0, 1, 2], [0, 3, 4]), shape=(2, 3))
    before = messy.copy()
    clean = canonical_csr(messy, "features")
    assert clean.has_canonical_format
    assert clean.nnz == 3
    assert clean.dtype == np.float32
    np.testing.assert_array_equal(clean.toarray(), messy.toarray())
    np.testing.assert_array_equal(messy.indices, before.indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": ["one"]}, "1 texts for 3 rows"),
        ({"label_names": ["a"]}, "1 label names for 3 label columns"),
        ({"label_texts": ["a"]}, "1 label texts"),
        ({"texts": None}, "need texts, features, paths or arrays"),
        ({"features": np.array([[1.0], [np.nan], [2]])}, "NaN"),
        ({"features": np.array([["a"], ["b"], ["c"]])}, "numeric matrix"),
        ({"features": np.zeros((2, 2))}, "2 features for 3"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    data = example()
    parts = {"labels": data.labels, "label_names": data.label_names, "texts": data.texts, **change}
    with pytest.raises(DataError, match=message):
        Dataset(**parts)


def test_out_of_range_indices_are_refused():
    bad = sparse.csr_array((2, 2), dtype=np.float32)
    bad.indptr, bad.indices, bad.data = np.array([0, 1, 1]), np.array([5]), np.array([1.0], np.float32)
    with pytest.raises(DataError, match="not a valid sparse matrix"):
        Dataset(bad, texts=["a", "b"])
