"""Mapped arrays in pieces: nothing is left out, and what was let go of comes back."""

import numpy as np
import pytest
from scipy import sparse

from labelwise.data.dataset import is_canonical_csr
from labelwise.io import tensors as mapped


@pytest.fixture
def numbers(tmp_path):
    np.arange(10_000, dtype=np.int32).tofile(tmp_path / "numbers")
    return np.asarray(np.memmap(tmp_path / "numbers", np.int32, "r"))


def test_only_mapped_arrays_have_a_mapping(numbers):
    assert mapped.mapping_of(numbers) is not None
    assert mapped.mapping_of(numbers[5:].view(np.uint8)) is not None
    assert mapped.mapping_of(numbers.copy()) is None
    assert mapped.mapping_of(np.frombuffer(b"abc", np.uint8)) is None


def test_what_was_forgotten_comes_back(numbers):
    mapped.release_pages(numbers)
    np.testing.assert_array_equal(numbers, np.arange(10_000))


def test_memory_that_can_be_written_is_never_let_go_of(tmp_path):
    array = np.memmap(tmp_path / "own", np.int32, "w+", shape=(3000,))
    array[:] = 7
    mapped.release_pages(np.asarray(array))
    assert (array == 7).all()


@pytest.mark.parametrize("size", [400, 4096, 39_999, 40_000, 1 << 20])
def test_pieces_are_the_whole(numbers, monkeypatch, size):
    monkeypatch.setattr(mapped, "PIECE_BYTES", size)
    pieces = list(mapped.in_pieces(numbers))
    np.testing.assert_array_equal(np.concatenate(pieces), np.arange(10_000))
    assert len(pieces) == -(-10_000 // (size // 4))


def test_what_is_not_mapped_is_one_piece():
    array = np.arange(5)
    assert [piece is array for piece in mapped.in_pieces(array)] == [True]


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
@pytest.mark.parametrize("fault", ["none", "order", "zero", "outside", "offsets", "first row", "last row"])
def test_a_mapped_matrix_is_checked_as_one_in_memory(tmp_path, monkeypatch, size, fault):
    import labelwise.data.dataset as dataset

    whole = dataset.row_pieces
    monkeypatch.setattr(dataset, "row_pieces", lambda indptr: whole(indptr, size))
    matrix = sparse.random_array((40, 30), density=0.3, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    matrix.sort_indices()
    wide = int(np.argmax(np.diff(matrix.indptr) > 2))
    place = {"first row": 0, "last row": matrix.nnz - 1}.get(fault, matrix.indptr[wide])
    if fault == "order":
        matrix.indices[place + 1] = matrix.indices[place]
    elif fault == "outside":
        matrix.indices[place] = 30
    elif fault == "offsets":
        matrix.indptr[20] = matrix.indptr[22]
    elif fault != "none":
        matrix.data[place] = 0 if fault == "zero" else np.nan
    matrix.indices.tofile(tmp_path / "indices")
    matrix.data.tofile(tmp_path / "data")
    on_disk = matrix.copy()
    on_disk.indices = np.asarray(np.memmap(tmp_path / "indices", matrix.indices.dtype, "r"))
    on_disk.data = np.asarray(np.memmap(tmp_path / "data", np.float32, "r"))
    assert is_canonical_csr(on_disk) == is_canonical_csr(matrix) == (fault == "none")
