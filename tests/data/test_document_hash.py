"""Hashes of documents: equal content, equal hash; anything else differs; and fractions are uniform."""

import hashlib
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from data.record_files import content, write_records
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import document_hashes, hash_fraction, hash_fractions
from labelwise.data.read import read
from labelwise.model.inputs import TrainingDocuments
from labelwise.strings import Strings


def of_texts(texts):
    return Dataset(sparse.csr_array((len(texts), 1)), texts=Strings.of(texts))


@given(st.lists(st.text(max_size=20), max_size=30))
def test_texts_are_hashed_by_content(texts):
    hashes = document_hashes(of_texts(texts))
    expected = [
        int.from_bytes(hashlib.blake2b(t.encode(), digest_size=8, key=bytes(8)).digest(), "little") for t in texts
    ]
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == expected


@pytest.mark.parametrize("kind", ["texts", "features"])
def test_hashing_takes_little_more_memory_than_the_hashes(kind, monkeypatch):
    count = 50_000
    labels = sparse.csr_array((count, 1), dtype=np.float32)
    if kind == "texts":
        data = Dataset(labels, texts=Strings.of(list(map(str, range(count)))))
    else:
        data = Dataset(labels, features=sparse.csr_array((count, 10), dtype=np.float32))
    expected = document_hashes(data)
    monkeypatch.setattr("labelwise.data.hashing.DOCUMENTS_AT_ONCE", 1000)
    tracemalloc.start()
    try:
        found = document_hashes(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, expected)
    assert peak < 8 * count + 200 * 1000 + 50_000


def test_order_and_selection_do_not_matter():
    data = of_texts([f"text {i}" for i in range(50)])
    rows = np.random.default_rng(0).permutation(50)
    assert document_hashes(data.take(rows)).tolist() == document_hashes(data)[rows].tolist()


def test_sparse_rows_do_not_depend_on_the_number_of_columns():
    matrix = sparse.random_array((20, 10), density=0.3, format="csr", rng=np.random.default_rng(0), dtype=np.float32)
    wide = sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(20, 99))
    labels = sparse.csr_array((20, 1))
    narrow_hashes = document_hashes(Dataset(labels, features=matrix))
    assert narrow_hashes.tolist() == document_hashes(Dataset(labels, features=wide)).tolist()
    distinct = {tuple(row) for row in matrix.toarray().tolist()}
    assert len(set(narrow_hashes.tolist())) == len(distinct)


def test_blocks_and_arrays_differ_where_their_content_does():
    labels, dense = sparse.csr_array((6, 1)), np.arange(12, dtype=np.float32).reshape(6, 2)
    matrix = sparse.csr_array(np.eye(6, 4, dtype=np.float32))
    both = document_hashes(Dataset(labels, features=Blocks(matrix, dense)))
    assert len(set(both.tolist())) == 6
    changed = dense.copy()
    changed[2, 1] += 1
    others = document_hashes(Dataset(labels, features=Blocks(matrix, changed)))
    assert np.flatnonzero(both != others).tolist() == [2]
    images = Dataset(labels, arrays=np.arange(24, dtype=np.uint8).reshape(6, 2, 2))
    assert len(set(document_hashes(images).tolist())) == 6


def of_files(*paths):
    return document_hashes(Dataset(sparse.csr_array((len(paths), 1)), paths=Strings.of(map(str, paths))))


def test_files_are_hashed_by_content_and_not_by_name(tmp_path):
    content = np.random.default_rng(0).bytes(300_000)
    (tmp_path / "a.png").write_bytes(content)
    (tmp_path / "b.png").write_bytes(content)
    (tmp_path / "begin.png").write_bytes(b"?" + content[1:])
    (tmp_path / "end.png").write_bytes(content[:-1] + b"?")
    (tmp_path / "short.png").write_bytes(content[:-1])
    (tmp_path / "empty.png").write_bytes(b"")
    names = ("a", "b", "begin", "end", "short", "empty")
    hashes = of_files(*(tmp_path / f"{name}.png" for name in names))
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 5
    many = of_files(*[tmp_path / "a.png"] * 600, tmp_path / "end.png")
    assert many.tolist() == [hashes[0]] * 600 + [hashes[3]]


def test_files_that_cannot_be_read_have_the_hash_of_their_path(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")  # reading it would wait for ever
    unreadable = [tmp_path / "missing.png", tmp_path / "pipe.png", tmp_path, f"{tmp_path}/no.rec#8"]
    assert len(set(of_files(*unreadable).tolist())) == 4
    assert of_files(*unreadable).tolist() == of_files(*unreadable).tolist()


def test_images_in_record_files_are_hashed_one_by_one(tmp_path):
    write_records(tmp_path / "train.rec", [content(0.0, b"one"), content(1.0, b"two"), content(2.0, b"one")])
    paths = list(read(tmp_path / "train.rec").paths)
    one, two, again = of_files(*paths)
    assert one == again != two


def test_documents_of_another_type_cannot_be_recognised():
    labels = sparse.csr_array(np.eye(2, dtype=np.float32))
    arrays = Dataset(labels, arrays=np.arange(8, dtype=np.uint8).reshape(2, 2, 2))
    known = TrainingDocuments.of(labels, document_hashes(arrays))
    assert known.overlap(arrays, "arrays").seen == 2
    assert known.overlap(Dataset(labels, paths=Strings.of(["a", "b"])), "arrays") is None, "not 0: nobody knows"


def test_nothing_has_no_hashes():
    assert len(document_hashes(Dataset(sparse.csr_array((0, 3))))) == 0


def test_fractions_are_uniform_and_independent_of_each_other():
    hashes = document_hashes(of_texts([f"text {i}" for i in range(4000)]))
    first, second = hash_fractions(hashes, 0), hash_fractions(hashes, 1)
    assert abs(first.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
    assert (first >= 0).all()
    assert (first < 1).all()
    assert 0 <= hash_fraction("text", 3) < 1
