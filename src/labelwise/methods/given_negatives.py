"""Negative examples given by the user: a sparse matrix, or a data set with wrong labels."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_csr
from labelwise.data.read import read
from labelwise.errors import DataError


def read_negatives(path: str | Path, data: Dataset) -> Any:
    """CSR [documents, labels] of ones: the additional training documents of each label and its siblings.

    A .npz is a sparse matrix as SciPy saves it, with the documents and labels of `data` in their order. Anything else
    is read as a data set with the same documents; its labels are matched by name.
    """
    path = Path(path)
    if not path.exists():
        raise DataError("user_negatives: there is no such file", path)
    matrix = _matrix(path, data) if path.suffix == ".npz" else _labels(path, data)
    if matrix.shape[0] != len(data):
        raise DataError(
            f"user_negatives: {matrix.shape[0]:,} documents, but training has {len(data):,}; "
            "both must hold the same documents in the same order (splits and limits count)",
            path,
        )
    ones = canonical_csr(matrix, "user_negatives").copy()
    ones.data[:] = 1
    return ones


def _matrix(path: Path, data: Dataset) -> Any:
    try:
        matrix = sparse.load_npz(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"user_negatives: not a sparse matrix saved by SciPy: {error}", path) from None
    if matrix.shape[1] != data.n_labels:
        raise DataError(f"user_negatives: {matrix.shape[1]:,} labels, but training has {data.n_labels:,}", path)
    return matrix


def _labels(path: Path, data: Dataset) -> Any:
    negatives = read(path)
    aligned = negatives.align(data.label_names)
    unknown = aligned.n_labels - data.n_labels
    if unknown:
        raise DataError(
            f"user_negatives: {unknown:,} labels that training does not have, for example "
            f"'{aligned.label_names[data.n_labels]}'",
            path,
        )
    return aligned.labels
