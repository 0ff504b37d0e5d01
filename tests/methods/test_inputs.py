"""Documents of every kind through one door: what a user may give, and what is refused in which words."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from labelwise.data.csr import Blocks
from labelwise.errors import DataError
from labelwise.model.inputs import FeatureWidth, as_dataset, as_documents
from labelwise.strings import Strings

ARRAYS = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
MATRIX = np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("texts", "a text", ["a text"]),
        ("texts", ["a.jpg", "b"], ["a.jpg", "b"]),
        ("texts", iter(["a", "b"]), ["a", "b"]),
        ("texts", np.array(["a", "b"]), ["a", "b"]),
        ("paths", "a.jpg", ["a.jpg"]),
        ("paths", Path("x/a.jpg"), ["x/a.jpg"]),
        ("paths", ["a.jpg", Path("b.jpg")], ["a.jpg", "b.jpg"]),
        ("paths", (Path(name) for name in ("a.jpg", "b.jpg")), ["a.jpg", "b.jpg"]),
        ("paths", Strings.of(["a.jpg"]), ["a.jpg"]),
    ],
)
def test_strings_are_what_the_model_reads(kind, given, expected):
    documents = as_documents(given, kind, None)
    assert list(getattr(documents, kind)) == expected
    assert len(documents) == len(expected)
    assert list(getattr(documents.take([0]), kind)) == expected[:1]


@pytest.mark.parametrize("given", [ARRAYS, list(ARRAYS), tuple(ARRAYS)])
def test_arrays_keep_their_shape_and_type(given):
    documents = as_documents(given, "arrays", None)
    np.testing.assert_array_equal(documents.arrays, ARRAYS)
    assert documents.arrays.dtype == np.uint8
    assert len(documents) == 2
    assert documents.take(slice(1, 2)).arrays.shape == (1, 3, 4, 5)


@pytest.mark.parametrize(
    "given", [MATRIX, sparse.csr_array(MATRIX), Blocks(sparse.csr_array(MATRIX[:, :1]), MATRIX[:, 1:])]
)
def test_matrices_are_features_or_arrays(given):
    features = as_documents(given, "features", FeatureWidth(2)).features
    dense = (
        features
        if isinstance(features, np.ndarray)
        else features.to_csr()
        if isinstance(features, Blocks)
        else features
    )
    np.testing.assert_array_equal(dense if isinstance(dense, np.ndarray) else dense.toarray(), MATRIX)
    if isinstance(given, np.ndarray):
        np.testing.assert_array_equal(as_documents(given, "arrays", None).arrays, MATRIX)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("texts", MATRIX, "trained on texts, but features were given; give a list of texts"),
        ("texts", ARRAYS, "trained on texts, but arrays were given"),
        ("texts", [Path("a.jpg")], "trained on texts, but paths were given"),
        ("features", ["a"], "trained on features, but texts were given; give a matrix with a row per document"),
        ("features", ARRAYS, "trained on features, but arrays were given"),
        ("features", MATRIX[:, :1], "trained on 2 features, the documents have 1"),
        ("paths", sparse.csr_array(MATRIX), "trained on paths, but features were given; give a list of paths"),
        ("paths", 7, "documents must be a list of paths to files, got int"),
        ("arrays", ["a.jpg"], "trained on arrays, but texts were given; give an array whose first axis"),
        ("arrays", sparse.csr_array(MATRIX), "trained on arrays, but features were given"),
        ("arrays", np.full((1, 2, 2), np.nan), "NaN or infinity"),
        ("arrays", np.zeros(3), "documents as the first axis, got float64 of shape"),
        ("arrays", [ARRAYS[0], ARRAYS[1][:1]], r"document 1: an array of numbers .* got uint8 of shape \(1, 4, 5\)"),
        ("arrays", [ARRAYS[0], "a"], "document 1: .* got str"),
    ],
)
def test_other_kinds_are_refused(kind, given, message):
    with pytest.raises(DataError, match=message):
        as_documents(given, kind, FeatureWidth(2) if kind == "features" else None)


@pytest.mark.parametrize("kind", ["texts", "features", "paths", "arrays"])
def test_no_documents_are_of_any_kind(kind):
    assert len(as_documents([], kind, FeatureWidth(2) if kind == "features" else None)) == 0


def test_a_method_decides_what_it_learns_from():
    labels = [["x"], ["y"]]
    assert as_dataset(["a", "b"], labels, ("texts", "paths")).texts is not None
    assert list(as_dataset(["a", "b"], labels, ("paths",)).paths) == ["a", "b"]
    assert list(as_dataset([Path("a"), Path("b")], labels, ("texts", "paths")).paths) == ["a", "b"]
    assert as_dataset(MATRIX, labels, ("features", "arrays")).features is not None
    assert as_dataset(MATRIX, labels, ("arrays",)).arrays is not None
    assert as_dataset(ARRAYS, labels, ("features", "arrays")).arrays.shape == ARRAYS.shape


def test_data_sets_hold_arrays(tmp_path):
    data = lw.Dataset(np.eye(2), arrays=ARRAYS)
    assert "2 documents with arrays" in repr(data)
    np.testing.assert_array_equal(data.take([1]).arrays, ARRAYS[1:])
    with pytest.raises(DataError, match="1 arrays for 2 rows of labels"):
        lw.Dataset(np.eye(2), arrays=ARRAYS[:1])
    lw.write(replace(data, texts=["a", "b"]), tmp_path / "folder", format="native")
    np.testing.assert_array_equal(lw.read(tmp_path / "folder").arrays, ARRAYS)
    with pytest.raises(DataError, match="arrays"):
        lw.write(replace(data, texts=["a", "b"]), tmp_path / "train.jsonl")
