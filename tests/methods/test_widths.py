"""Documents need the columns that a model was trained on, and labels without names are never matched by number."""

import json

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from common import same_predictions
from conformance.planted import planted_features
from labelwise.data.csr import Blocks
from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import MANIFEST

DATA = planted_features(120, 12)
X, Y = DATA.features, DATA.labels
D = np.random.default_rng(0).normal(size=(X.shape[0], 4)).astype(np.float32)
WIDTH = X.shape[1]


@pytest.fixture(scope="module")
def side_by_side():
    return lw.LinearTree(trees=1).fit(Blocks(X, D), Y)


@pytest.fixture(scope="module")
def narrow():
    return lw.LinearTree(trees=1).fit(X, Y)


@pytest.mark.parametrize(
    ("documents", "given"),
    [
        (X, f"{WIDTH} sparse and 0 dense"),
        (D, "4 sparse and 0 dense"),
        (Blocks(X, None), f"{WIDTH} sparse and 0 dense"),
        (Blocks(None, D), "0 sparse and 4 dense"),
        (Blocks(X[:, :-1], D), f"{WIDTH - 1} sparse and 4 dense"),
        (Blocks(X[:, :-1], np.hstack([D, D[:, :1]])), f"{WIDTH - 1} sparse and 5 dense"),
    ],
)
def test_a_model_of_two_blocks_needs_both(side_by_side, documents, given):
    with pytest.raises(DataError, match=f"trained on {WIDTH} sparse and 4 dense features, the documents have {given}"):
        side_by_side.predict(documents)


def test_two_blocks_after_loading_and_as_one_matrix(side_by_side, tmp_path):
    side_by_side.save(tmp_path / "model")
    loaded = lw.load(tmp_path / "model")
    with pytest.raises(DataError, match="4 dense features"):
        loaded.predict(X)
    expected = side_by_side.predict(Blocks(X, D), k=3)
    same_predictions(loaded.predict(Blocks(X, D), k=3), expected)
    same_predictions(loaded.predict(Blocks(X, D).to_csr(), k=3), expected)
    assert loaded.n_features_in_ == WIDTH + 4


def test_folders_that_do_not_say_how_many_columns_are_dense_are_refused(side_by_side, tmp_path):
    side_by_side.save(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / MANIFEST).read_text())
    (tmp_path / "model" / MANIFEST).write_text(json.dumps({**manifest, "n_dense_features": WIDTH + 5}))
    with pytest.raises(ModelFormatError, match="do not fit the manifest"):
        lw.load(tmp_path / "model")
    for key in ("n_dense_features", "numbered_labels"):
        lacking = {name: value for name, value in manifest.items() if name != key}
        (tmp_path / "model" / MANIFEST).write_text(json.dumps(lacking))
        with pytest.raises(ModelFormatError, match="do not fit the manifest"):
            lw.load(tmp_path / "model")


@pytest.mark.parametrize("columns", [WIDTH - 1, WIDTH + 1])
def test_sparse_arrays_need_all_columns(narrow, columns):
    documents = sparse.csr_array((2, columns), dtype=np.float32)
    for given in (documents, lw.Dataset(Y[:2], features=documents)):
        with pytest.raises(DataError, match=f"trained on {WIDTH} features, the documents have {columns}; .* same col"):
            narrow.predict(given)
    with pytest.raises(DataError, match="same columns"):
        lw.LinearTree(trees=1).fit(DATA, valid=lw.Dataset(Y[:2], DATA.label_names, features=documents))


def test_files_may_lack_the_last_columns(narrow, side_by_side, tmp_path):
    (tmp_path / "some.txt").write_text("2 7 12\n0,3 1:1 5:2\n2 6:1\n")
    data = lw.read(tmp_path / "some.txt")
    assert data.features.shape[1] == 7
    wide = sparse.csr_array((data.features.data, data.features.indices, data.features.indptr), shape=(2, WIDTH))
    same_predictions(narrow.predict(data, k=3), narrow.predict(wide, k=3))
    same_predictions(narrow.predict(data.take([1]), k=3), narrow.predict(wide[[1]], k=3))
    with pytest.raises(DataError, match="7 sparse and 0 dense"):
        side_by_side.predict(data)


def test_labels_without_names_are_matched_only_with_the_same_columns(narrow, tmp_path):
    assert narrow.score(X, Y) > 0
    assert narrow.score(X[:3], [row.nonzero()[0].tolist() for row in Y[:3].toarray()]) > 0, "lists of column numbers"
    narrow.save(tmp_path / "model")
    top = narrow.predict(X[:2], k=3)
    numbers = lw.Dataset(Y[:2], [str(100 + column) for column in range(12)], features=X[:2])
    fewer = lw.Dataset(Y[:2, :7], features=X[:2])
    for model in (narrow, lw.load(tmp_path / "model")):
        for data in (numbers, fewer, lw.Dataset(Y[:2, :7], [str(j) for j in range(7)], features=X[:2])):
            with pytest.raises(DataError, match="cannot be matched with 12 labels without names"):
                lw.evaluate(model.predict(X[:2], k=3), data)
            with pytest.raises(DataError, match="Give both label names"):
                model.calibrate(data)
    assert lw.evaluate(top, lw.Dataset(Y[:2], features=X[:2]), "P@1")["P@1"] >= 0
    named = lw.LinearTree(trees=1).fit(DATA)
    with pytest.raises(DataError, match=r"without names cannot be matched with 12 labels \('L0', ...\)"):
        named.calibrate(X, Y)
