"""`pecos`: matrices in .npz and .npy files, which may come from anyone."""

from __future__ import annotations

import io
import pickle
import zipfile

import numpy as np
import pytest
from data_cases import plain, put, small
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.formats.pecos import load_npy_matrix, load_npz_matrix
from labelwise.data.read import read
from labelwise.data.write import write
from labelwise.errors import ConfigError, DataError
from labelwise.strings import Strings

LABELS = sparse.csr_matrix(np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], np.float32))
FEATURES = sparse.csr_matrix(np.array([[1, 0], [0, 2], [3, 4]], np.float32))


def pecos(folder, split="trn"):
    """A folder as PECOS keeps it, written by SciPy alone."""
    sparse.save_npz(folder / f"Y.{split}.npz", LABELS)
    sparse.save_npz(folder / f"X.{split}.npz", FEATURES, compressed=False)
    put(folder / f"X.{split}.txt", "one\ntwo\nthree\n")
    return folder


def test_any_file_of_a_part_stands_for_the_part(tmp_path):
    pecos(tmp_path)
    put(tmp_path / "output-items.txt", "zero\none\ntwo\n")
    for name in ("X.trn.txt", "X.trn.npz", "Y.trn.npz", "."):
        found = read(tmp_path / name)
        np.testing.assert_array_equal(found.labels.toarray(), LABELS.toarray())
        np.testing.assert_array_equal(found.features.toarray(), FEATURES.toarray())
        assert list(found.texts) == ["one", "two", "three"]
        assert list(found.label_names) == ["0", "1", "2"]
        assert list(found.label_texts) == ["zero", "one", "two"]


def test_parts_go_by_their_short_names(tmp_path):
    for split in ("trn", "tst"):
        pecos(tmp_path, split)
    assert len(read(tmp_path, split="test")) == 3
    with pytest.raises(DataError, match="parts train, test"):
        read(tmp_path)


def test_features_may_lie_one_folder_down(tmp_path):
    pecos(tmp_path)
    (tmp_path / "tfidf-attnxml").mkdir()
    (tmp_path / "X.trn.npz").rename(tmp_path / "tfidf-attnxml" / "X.trn.npz")
    np.testing.assert_array_equal(read(tmp_path).features.toarray(), FEATURES.toarray())


def test_dense_features_and_other_sparse_forms(tmp_path):
    pecos(tmp_path)
    (tmp_path / "X.trn.npz").unlink()
    dense = np.asfortranarray(FEATURES.toarray().astype(np.float64))
    np.save(tmp_path / "X.trn.npy", dense)
    sparse.save_npz(tmp_path / "Y.trn.npz", LABELS.tocsc().astype(np.int8))
    found = read(tmp_path)
    np.testing.assert_array_equal(found.features, dense)
    np.testing.assert_array_equal(found.labels.toarray(), LABELS.toarray())


def test_what_is_written_is_loaded_by_scipy(tmp_path):
    data = Dataset(sparse.csr_array(LABELS), texts=Strings.of(["a", "b", "c"]), features=sparse.csr_array(FEATURES))
    write(data, tmp_path / "Y.tst.npz")
    loaded = sparse.load_npz(tmp_path / "Y.tst.npz")
    assert isinstance(loaded, sparse.csr_matrix)
    np.testing.assert_array_equal(loaded.toarray(), LABELS.toarray())
    assert (tmp_path / "X.tst.txt").read_text() == "a\nb\nc\n"


def test_columns_that_are_named_need_a_word_to_be_numbered(tmp_path):
    with pytest.raises(DataError, match=r"cannot store the label_names.*with drop \(--drop label_names\)"):
        write(small(), tmp_path / "Y.trn.npz")
    write(small(), tmp_path / "Y.trn.npz", drop=["label_names"])
    found = read(tmp_path)
    assert list(found.label_texts) == ["x", "y"]
    assert plain(found) == [{"0": 1, "1": 1}, {}, {"0": 1}]


def test_a_forced_write_leaves_no_file_of_the_old_part(tmp_path):
    pecos(tmp_path)
    (tmp_path / "X.trn.npz").unlink()
    data = Dataset(sparse.csr_array(LABELS), features=sparse.csr_array(FEATURES))
    with pytest.raises(ConfigError, match=r"X\.trn\.txt exists already and would be read with"):
        write(data, tmp_path / "X.trn.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.trn.txt", "Y.trn.npz"]
    write(data, tmp_path / "X.trn.npz", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.trn.npz", "Y.trn.npz"]


def test_a_part_is_named_by_its_file(tmp_path):
    with pytest.raises(DataError, match=r"named like Y\.trn\.npz"):
        write(small(), tmp_path / "train.npz", drop=["label_names"])
    with pytest.raises(DataError, match=r"named like X\.trn\.txt"):
        read(put(tmp_path / "a.npz", "x"), "pecos")


@pytest.mark.parametrize(
    ("missing", "message"),
    [(["Y.trn.npz"], "there is no Y.trn.npz"), (["X.trn.npz", "X.trn.txt"], "there is no X.trn.txt, .npz or .npy")],
)
def test_missing_files(tmp_path, missing, message):
    pecos(tmp_path)
    for name in missing:
        (tmp_path / name).unlink()
    with pytest.raises(DataError, match=message):
        read(tmp_path / ("X.trn.txt" if "Y.trn.npz" in missing else "Y.trn.npz"), "pecos")


@pytest.mark.parametrize("name", ["X.trn.txt", "X.trn.npz"])
def test_different_numbers_of_rows(tmp_path, name):
    pecos(tmp_path)
    put(tmp_path / "X.trn.txt", "one\ntwo\n" if name.endswith("txt") else "one\ntwo\nthree\n")
    sparse.save_npz(tmp_path / "X.trn.npz", FEATURES[:2] if name.endswith("npz") else FEATURES)
    with pytest.raises(DataError, match=rf"{name}: 2 documents, but 3 rows of labels in .*Y\.trn\.npz"):
        read(tmp_path)


# --- files from anyone --------------------------------------------------------------------------------------


def archive(path, **arrays):
    with zipfile.ZipFile(path, "w") as file:
        for name, value in arrays.items():
            raw = value
            if not isinstance(value, bytes):
                stream = io.BytesIO()
                np.save(stream, value, allow_pickle=True)
                raw = stream.getvalue()
            file.writestr(f"{name}.npy", raw)
    return path


def header(shape, dtype="<f4"):
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


GOOD = {
    "format": np.array(b"csr"), "shape": np.array([2, 3]), "indptr": np.array([0, 1, 2]),
    "indices": np.array([0, 2]), "data": np.array([1.0, 2.0]),
}  # fmt: skip


def test_the_good_archive_is_read(tmp_path):
    found = load_npz_matrix(archive(tmp_path / "a.npz", **GOOD))
    np.testing.assert_array_equal(found.toarray(), [[1, 0, 0], [0, 0, 2]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": np.array(b"dia")}, "in the format csr or csc is needed, this is 'dia'"),
        ({"format": np.array([])}, "csr or csc"),
        ({"indices": np.array([0, 3])}, "damaged"),
        ({"indices": np.array([0, -1])}, "damaged"),
        ({"indices": np.array([0.0, 1.0])}, "wrong types or shapes"),
        ({"indices": np.array([[0, 2]])}, "wrong types or shapes"),
        ({"indices": np.array([0, 2**63], np.uint64)}, "damaged"),
        ({"indptr": np.array([0, 2, 1])}, "damaged"),
        ({"indptr": np.array([0, 1, 5])}, "damaged"),
        ({"indptr": np.array([1, 1, 2])}, "damaged"),
        ({"indptr": np.array([0, 2])}, "damaged"),
        ({"data": np.array([1.0])}, "damaged"),
        ({"data": np.array([1.0, np.nan])}, "NaN or infinity"),
        ({"data": np.array(["a", "b"])}, "wrong types or shapes"),
        ({"data": np.array([1j, 2j])}, "has type complex128"),
        ({"data": np.array([{}, []], object)}, "has type object"),
        ({"shape": np.array([2, -1])}, "wrong types or shapes"),
        ({"shape": np.array([2, 3, 1])}, "wrong types or shapes"),
        ({"shape": np.array([2, 2**40])}, "wrong types or shapes"),
        ({"data": header((2**40,))}, "says 4,398,046,511,104 bytes, but there are 0"),
        ({"data": header((2,)) + b"1234"}, "says 8 bytes, but there are 4"),
        ({"data": header((2**59, 2**59)) + b"1234"}, "bytes, but there are 4"),
        ({"data": header((-1,))}, "shape"),
        ({"data": header((2,), "|O") + pickle.dumps([1, 2])}, "has type object"),
        ({"data": header((2,), "|V0")}, "has type"),
        ({"data": b"\x93NUMPY\x09\x00"}, "format version"),
        ({"data": b"nothing of the kind"}, "magic string is not correct"),
        ({"data": header((2,), "__import__('os')")}, "descr is not a valid dtype"),
        ({"data": header((2,))[:9]}, "EOF"),
        ({"data": b""}, "EOF"),
    ],
)  # fmt: skip
def test_a_wrong_array_is_an_error_that_names_the_file(tmp_path, change, message):
    with pytest.raises(DataError, match=rf"a\.npz: .*({message})"):
        load_npz_matrix(archive(tmp_path / "a.npz", **(GOOD | change)))


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_array_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"the array '{name}' .* is missing"):
        load_npz_matrix(archive(tmp_path / "a.npz", **{key: value for key, value in GOOD.items() if key != name}))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive"])
def test_what_is_no_archive(tmp_path, content):
    with pytest.raises(DataError, match="not a sparse matrix written by"):
        load_npz_matrix(put(tmp_path / "a.npz", content))


def test_a_cut_archive_is_an_error(tmp_path):
    raw = archive(tmp_path / "a.npz", **GOOD).read_bytes()
    for end in range(0, len(raw), 7):
        with pytest.raises(DataError):
            load_npz_matrix(put(tmp_path / "b.npz", raw[:end]))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUMPY", header((2, 3)), header((2, 3), "|O"), header((24,)) + b"\0" * 96, header((2, 3)) + b"\0" * 23,
     header((2, 3), "<U1") + b"\0" * 24, header((2**60, 2**60))],
)  # fmt: skip
def test_a_dense_file_that_is_wrong(tmp_path, content):
    with pytest.raises(DataError, match=r"a\.npy: "):
        load_npy_matrix(put(tmp_path / "a.npy", content))


def test_a_dense_file_is_mapped(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    found = load_npy_matrix(tmp_path / "a.npy")
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize("offsets", [[0, 2**63 - 1, -(2**63), -1, 3], [0, 3, 0, 2, 3], [0, -1, 1, 2, 3], [0, 1, 2, 3]])
def test_offsets_that_wrap_around_are_refused(tmp_path, kind, offsets):
    arrays = {"data": np.ones(3, np.float32), "indices": np.zeros(3, np.int64), "indptr": np.array(offsets)}
    np.savez(tmp_path / "Y.trn.npz", **arrays, shape=np.array([4, 4]), format=kind.encode())
    (tmp_path / "X.trn.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(DataError, match=r"Y\.trn\.npz: the sparse matrix is damaged"):
        read(tmp_path)
    matrix = {"csr": sparse.csr_array, "csc": sparse.csc_array}[kind]((4, 4), dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    with pytest.raises(DataError, match="not a valid sparse matrix"):
        Dataset(matrix, texts=["a", "b", "c", "d"])


@pytest.mark.parametrize(("name", "dense"), [("feat.npz", False), ("vectors of today.npy", True), ("X_new.npz", False)])
def test_features_may_have_any_name(tmp_path, name, dense):
    if dense:
        np.save(tmp_path / name, FEATURES.toarray())
    else:
        sparse.save_npz(tmp_path / name, FEATURES)
    found = read(tmp_path / name, labels=False)
    assert (found.n_labels, len(found)) == (0, 3)
    np.testing.assert_array_equal(found.features if dense else found.features.toarray(), FEATURES.toarray())
    with pytest.raises(DataError, match=r"the labels are missing: .* X_new\.npz.* --set labels=false"):
        read(tmp_path / name)
    sparse.save_npz(tmp_path / f"Y{name[1:]}", LABELS)
    if name.startswith("X"):
        assert read(tmp_path / name).labels.nnz == LABELS.nnz
    else:
        with pytest.raises(DataError, match="the labels are missing"):
            read(tmp_path / name)
