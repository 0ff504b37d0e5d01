"""Conversion over files beside the output: equal to reading and writing, little memory, nothing left behind."""

from __future__ import annotations

import errno
import tracemalloc

import numpy as np
import pytest
from data_cases import put
from scipy import sparse

from labelwise.data import csr
from labelwise.data.csr import Blocks, pick_rows
from labelwise.data.dataset import Dataset
from labelwise.data.formats import sparse_text as xc
from labelwise.data.formats import vowpal
from labelwise.data.formats.native import TENSORS
from labelwise.data.read import read, read_splits
from labelwise.data.write import convert, write, write_splits
from labelwise.errors import ConfigError, DataError

FILES = {"xc": "a.txt", "vowpal": "a.vw", "tfrecord": "a.tfrecords"}


def drawn(rows: int, labels: int = 40, columns: int = 200, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    features = sparse.random_array((rows, columns), density=0.05, format="csr", dtype=np.float32, rng=rng)
    marks = sparse.csr_array(rng.random((rows, labels)) < 0.05, dtype=np.float32)
    return Dataset(marks, features=features)


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_file_becomes_what_reading_and_writing_make_of_it(tmp_path, monkeypatch, format, packed):
    monkeypatch.setattr(xc, "READ_BYTES", 2000)
    monkeypatch.setattr(vowpal, "READ_BYTES", 2000)
    path = tmp_path / (FILES[format] + packed)
    write(drawn(300), path)
    put(tmp_path / "label_names.tsv", "3\tthree\n7\tseven\n")
    write(read(path), tmp_path / "one")
    assert convert(path, tmp_path / "two") == 300
    assert files_below(tmp_path / "one") == files_below(tmp_path / "two")
    assert list(read(tmp_path / "two").label_texts)[3] == "three"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "label_names.tsv", "one", "two"])


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("labels", [(40, 40), (40, 30), (30, 40)])
def test_a_folder_becomes_what_reading_and_writing_make_of_it(tmp_path, format, labels):
    parts = {"train": drawn(50, labels[0]), "test": drawn(20, labels[1], 250, 1)}
    for split, part in parts.items():
        write(part, tmp_path / "in" / f"{split}{FILES[format].removeprefix('a')}", format)
    write_splits(read_splits(tmp_path / "in"), tmp_path / "one", "native")
    assert convert(tmp_path / "in", tmp_path / "two") == 70
    assert files_below(tmp_path / "one") == files_below(tmp_path / "two")
    convert(tmp_path / "in", tmp_path / "test", split="test")
    assert len(read(tmp_path / "test")) == 20


@pytest.mark.parametrize("target", ["b.tfrecords", "b.txt", "b.vw", "b.jsonl"])
def test_other_outputs_come_back_equal(tmp_path, target):
    data = drawn(60)
    write(data, tmp_path / "a.tfrecords")
    convert(tmp_path / "a.tfrecords", tmp_path / target)
    found = read(tmp_path / target)
    found = found.align(read(tmp_path / "a.tfrecords").label_names) if target != "b.vw" else found
    assert (found.features != data.features[:, : found.features.shape[1]]).nnz == 0
    assert [found.labels_of(row) for row in range(60)] == [data.labels_of(row) for row in range(60)]


def test_formats_that_hold_texts_are_converted_as_before(tmp_path):
    put(tmp_path / "a.tsv", "x y\tone\nz\ttwo\n")
    assert convert(tmp_path / "a.tsv", tmp_path / "out") == 2
    assert list(read(tmp_path / "out").texts) == ["one", "two"]


@pytest.mark.parametrize("format", FILES)
def test_rows_are_mapped_while_they_are_converted(tmp_path, format):
    write(drawn(30), tmp_path / FILES[format])
    (tmp_path / "scratch").mkdir()
    found = read(tmp_path / FILES[format], scratch=tmp_path / "scratch")
    array = found.features.data
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    assert isinstance(array, np.memmap)


@pytest.mark.parametrize("format", FILES)
def test_memory_does_not_grow_with_the_documents(tmp_path, monkeypatch, format):
    """Beside offsets and counts, which are some bytes a document; its features are hundreds."""
    monkeypatch.setattr("labelwise.data.formats.sparse_text.READ_BYTES", 1 << 14)
    for module in (xc, vowpal):
        monkeypatch.setattr(module, "READ_BYTES", 1 << 14)
    monkeypatch.setattr("labelwise.data.formats.tfrecord.READ_BYTES", 1 << 14)
    peaks = []
    for rows in (500, 500, 5000):  # the first compiles and imports
        data = drawn(rows, 5, 2000)
        write(data, tmp_path / FILES[format], force=True)
        tracemalloc.start()
        convert(tmp_path / FILES[format], tmp_path / "out", force=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert data.features.nnz * 8 > 750 * 5000
    assert (peaks[2] - peaks[1]) / 4500 < 150, peaks


@pytest.mark.parametrize(("name", "content"), [("a.txt", "1 3 2\n0 0:1\n0 9:1\n"), ("a.vw", "1 | 2\nno bar\n")])
def test_a_fault_leaves_nothing(tmp_path, name, content):
    path = put(tmp_path / "in" / name, content)
    with pytest.raises(DataError, match=name):
        convert(path, tmp_path / "new" / "deeper" / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    write(drawn(30), tmp_path / "in.txt")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(csr.MappedCsrBuilder, "add", full)
    with pytest.raises(DataError, match="cannot be written to: No space left"):
        convert(tmp_path / "in.txt", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in.txt"]


def test_what_is_there_is_refused_before_anything_is_read(tmp_path):
    put(tmp_path / "in" / "train.txt", "1 3 2\nthis is no document\n")
    put(tmp_path / "out.txt", "keep me")
    write(drawn(3), tmp_path / "out" / "train")
    with pytest.raises(ConfigError, match="exists already"):
        convert(tmp_path / "in" / "train.txt", tmp_path / "out.txt")
    with pytest.raises(ConfigError, match="has parts already"):
        convert(tmp_path / "in", tmp_path / "out")


# --- rows of mapped matrices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows", [np.array([3, 0, 3, -1]), slice(2, 9, 3), np.arange(10) % 3 == 0, np.arange(0), slice(4, 4)]
)
def test_rows_of_a_matrix_with_wide_offsets(rows):
    matrix = drawn(10).features
    wide = matrix.copy()
    wide.indptr = wide.indptr.astype(np.int64)
    found = pick_rows(wide, rows)
    np.testing.assert_array_equal(found.toarray(), matrix[rows].toarray())
    both = Blocks(wide, np.arange(10, dtype=np.float32)[:, None])[rows]
    np.testing.assert_array_equal(both.sparse.toarray(), matrix[rows].toarray())


def test_picked_rows_alone_are_loaded(tmp_path):
    """Also when the offsets are wider than the columns, as those of very large data are."""
    write(drawn(20_000, 5, 1000), tmp_path / "out")
    data = read(tmp_path / "out")
    rows = np.random.default_rng(0).integers(0, len(data), 100)
    size = (tmp_path / "out" / TENSORS).stat().st_size
    for wide in (False, True):
        if wide:
            data.features.indptr = data.features.indptr.astype(np.int64)
        data.take(rows)
        tracemalloc.start()
        data.take(rows)
        pick_rows(data.features, rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size / 10
