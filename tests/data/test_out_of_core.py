"""Rows in files instead of memory: the same documents as in memory, little memory, and files that leave no trace."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_cases import assert_same
from scipy import sparse

from labelwise.data import out_of_core
from labelwise.data.csr import Blocks, csr_of, pick_rows, row_indices
from labelwise.data.dataset import Dataset
from labelwise.data.out_of_core import split_mapped, take_mapped
from labelwise.data.read import find_parts, read, read_splits
from labelwise.data.write import convert, write, write_splits
from labelwise.errors import ConfigError, DataError
from labelwise.io import tensors as mapped
from labelwise.io.tensors import counts_of, mapping_of


def drawn(rows: int = 60, seed: int = 0, columns: int = 50, **parts) -> Dataset:
    rng = np.random.default_rng(seed)
    features = sparse.random_array((rows, columns), density=0.1, format="csr", dtype=np.float32, rng=rng)
    labels = sparse.csr_array(rng.random((rows, 7)) < 0.3, dtype=np.float32)
    return Dataset(labels, [f"L{n}" for n in range(7)], **{"features": features, **parts}, name="drawn")


def texts_of(what: str, rows: int) -> list[str]:
    return [f"{what} é {row}" * (row % 3) for row in range(rows)]


def whole(rows: int = 60) -> Dataset:
    return drawn(rows, texts=texts_of("text", rows), ids=texts_of("id", rows), paths=texts_of("path", rows))


def same_matrices(found: Dataset, expected: Dataset) -> None:
    """To the type of every array: a fingerprint of the data must not tell them apart."""
    for part in ("labels", "features"):
        one, two = getattr(found, part), getattr(expected, part)
        assert one.shape == two.shape
        if isinstance(two, np.ndarray):
            np.testing.assert_array_equal(one, two)
            continue
        for array in ("indptr", "indices", "data"):
            assert getattr(one, array).dtype == getattr(two, array).dtype
            np.testing.assert_array_equal(getattr(one, array), getattr(two, array))


@pytest.fixture(params=[1, 40, 1 << 22])
def pieces(request, monkeypatch):
    """Pieces of one row, of some, and of all."""
    monkeypatch.setattr(out_of_core, "CHUNK_ENTRIES", request.param)


ROWS = [np.array([3, 0, 3, -1]), np.arange(60) % 3 == 0, slice(0, 20), slice(5, 40, 3), slice(0, 99), np.arange(0)]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("wide", [False, True])
def test_documents_in_files_are_those_in_memory(tmp_path, pieces, rows, wide):
    data = whole()
    expected = data.take(rows)
    if wide:
        for matrix in (data.features, data.labels):
            matrix.indptr = matrix.indptr.astype(np.int64)
    found = take_mapped(data, rows, tmp_path)
    same_matrices(found, expected)
    assert_same(found, expected)


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_dense_features_and_both_kinds_side_by_side(tmp_path, pieces, rows):
    dense = np.random.default_rng(1).random((60, 3), np.float32)
    same_matrices(take_mapped(drawn(features=dense), rows, tmp_path), drawn(features=dense).take(rows))
    both = drawn(features=Blocks(drawn().features, dense))
    found, expected = take_mapped(both, rows, tmp_path).features, both.take(rows).features
    np.testing.assert_array_equal(found.to_csr().toarray(), expected.to_csr().toarray())


def test_a_split_in_files_is_that_in_memory(tmp_path, pieces):
    data = whole()
    for found, expected in zip(split_mapped(data, 0.3, 5, tmp_path), data.split(0.3, 5), strict=True):
        same_matrices(found, expected)
        assert_same(found, expected)
        assert mapping_of(found.features.data) is not None
        assert mapping_of(found.labels.indices) is not None
    assert list(tmp_path.iterdir()) == [], "mapped files have no names"


def test_the_first_rows_of_mapped_data_are_not_copied(tmp_path):
    data = take_mapped(drawn(), np.arange(60), tmp_path)
    first = take_mapped(data, slice(0, 10), tmp_path)
    assert np.shares_memory(first.features.data, data.features.data)


def test_a_full_disk_names_the_folder(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DataError, match=f"{tmp_path}: rows cannot be written to: No space left"):
        split_mapped(drawn(), 0.5, 0, tmp_path)


def test_a_file_that_cannot_be_mapped_names_the_folder(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(np, "memmap", refused)
    with pytest.raises(DataError, match=f"{tmp_path}: rows cannot be mapped: No such device"):
        split_mapped(drawn(), 0.5, 0, tmp_path)


def test_dense_features_are_checked_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "PIECE_BYTES", 1 << 14)
    dense = np.ones((2000, 300), np.float32)
    data = take_mapped(drawn(2000, features=dense), np.arange(2000), tmp_path)
    assert mapping_of(data.features) is not None
    tracemalloc.start()
    Dataset(data.labels, features=data.features)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < dense.nbytes / 20, peak
    dense[1999, 299] = np.nan
    dense.tofile(tmp_path / "dense")
    with pytest.raises(DataError, match="NaN"):
        drawn(2000, features=np.memmap(tmp_path / "dense", np.float32, "r", shape=(2000, 300)))


def test_memory_does_not_grow_with_the_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_core, "CHUNK_ENTRIES", 1 << 14)
    for name in ("train-0", "train-1"):
        write(drawn(5000, columns=1000), tmp_path / "in" / name)
    (tmp_path / "scratch").mkdir()

    def work() -> int:
        data = read(tmp_path / "in", scratch=tmp_path / "scratch")
        split_mapped(data, 0.3, 0, tmp_path / "scratch")
        return data.features.nnz * 8

    work()
    tracemalloc.start()
    size = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 5, (peak, size)


# --- shards of the native format ------------------------------------------------------------------------------------


def put_shards(folder: Path, data: Dataset, ends: list[int], name: str = "train-{:02d}") -> None:
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        write(data.take(slice(begin, end)), folder / name.format(number))


@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("kind", ["sparse", "dense", "texts"])
def test_shards_are_one_part_in_the_order_of_their_names(tmp_path, pieces, scratch, kind):
    dense = np.random.default_rng(1).random((60, 3), np.float32)
    data = {"sparse": whole(), "dense": drawn(features=dense)}.get(kind) or drawn(features=None, texts=["é"] * 60)
    put_shards(tmp_path / "in", data, [20, 20, 55, 60])
    write(data.take(slice(0, 5)), tmp_path / "in" / "tst")
    found, parts = find_parts(tmp_path / "in")
    assert (found.name, list(parts)) == ("native", ["train", "test"])
    folder = tmp_path / "scratch"
    folder.mkdir()
    train = read(tmp_path / "in", split="train", scratch=folder if scratch else None)
    assert_same(train, data)
    assert list(train.label_names) == list(data.label_names)
    if kind != "texts":
        same_matrices(train, data)
        rows = train.features if kind == "dense" else train.features.indices
        assert (mapping_of(rows) is not None) == scratch
    if train.texts is not None:
        assert (mapping_of(train.texts.buffer) is not None) == scratch
    assert list(folder.iterdir()) == []
    assert len(read_splits(tmp_path / "in")["test"]) == 5


def test_a_folder_called_after_the_split_is_the_part_alone(tmp_path):
    for name in ("train", "train-00", "notes", "dev", "valid"):
        write(drawn(3), tmp_path / name)
    assert {split: path.name for split, path in find_parts(tmp_path)[1].items()} == {
        "train": "train", "valid": "valid", "dev": "dev", "train-00": "train-00"
    }  # fmt: skip


def test_one_shard_is_the_part(tmp_path):
    write(drawn(3), tmp_path / "corpus_train")
    assert len(read(tmp_path, split="train")) == 3


def test_label_texts_are_those_of_the_first_shard_that_has_some(tmp_path):
    write(drawn(3), tmp_path / "train-0")
    write(drawn(3, label_texts=list("abcdefg")), tmp_path / "train-1")
    assert list(read(tmp_path).label_texts) == list("abcdefg")


def test_shards_are_converted_into_one(tmp_path):
    put_shards(tmp_path / "in", whole(), [10, 60])
    assert convert(tmp_path / "in", tmp_path / "out") == 60
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train"]
    assert_same(read(tmp_path / "out"), whole())


@pytest.mark.parametrize("force", [False, True])
def test_nothing_is_written_beside_shards(tmp_path, force):
    put_shards(tmp_path / "in", whole(), [10, 60])
    with pytest.raises(ConfigError, match=r"\*train\* \(native\)"):
        write_splits({"train": whole()}, tmp_path / "in", "native", force)
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["train-00", "train-01"]


def renamed(data: Dataset, names: list[str]) -> Dataset:
    return Dataset(data.labels, names, features=data.features)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (drawn(columns=51), "the first has 50 features and the second 51"),
        (renamed(drawn(), list("abcdefg")), "label 0 is 'L0' in the first and 'a' in the second"),
        (Dataset(drawn().labels[:, :6], [f"L{n}" for n in range(6)], features=drawn().features), "7 labels and the"),
        (drawn(ids=["x"] * 60), "only one of them has ids"),
        (drawn(features=None, texts=["x"] * 60), "only one of them has texts"),
        (drawn(features=np.zeros((60, 50), np.float32)), "only one of them has dense features"),
    ],
)
def test_shards_that_do_not_fit_together_are_both_named(tmp_path, other, message):
    write(drawn(), tmp_path / "a_train")
    write(other, tmp_path / "b_train")
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, split="train")
    assert str(tmp_path / "a_train") in str(caught.value)
    assert str(tmp_path / "b_train") in str(caught.value)


# --- what the large arrays go through -------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 100, 1 << 22])
def test_numbers_are_counted_in_pieces(monkeypatch, at_once):
    monkeypatch.setattr(mapped, "COUNT_BATCH", at_once)
    rng = np.random.default_rng(0)
    numbers, table = rng.integers(0, 50, 1000).astype(np.int32), rng.integers(0, 9, 50).astype(np.uint16)
    np.testing.assert_array_equal(counts_of(numbers, 60), np.bincount(numbers, minlength=60))
    np.testing.assert_array_equal(counts_of(numbers, 12, table), np.bincount(table[numbers], minlength=12))
    np.testing.assert_array_equal(counts_of(numbers[:0], 3), [0, 0, 0])


@pytest.mark.parametrize("rows", [np.array([60]), np.array([-61]), np.ones(59, bool)])
def test_rows_that_are_not_there(rows):
    data = drawn()
    data.features.indptr = data.features.indptr.astype(np.int64)
    with pytest.raises(IndexError):
        pick_rows(data.features, rows)
    assert list(row_indices(-1, 5)) == [4]


def test_a_matrix_of_given_arrays_shares_them():
    matrix = drawn().features
    wide = csr_of(matrix.data, matrix.indices, matrix.indptr.astype(np.int64), (60, 99))
    assert wide.shape == (60, 99)
    assert wide.indices is matrix.indices
