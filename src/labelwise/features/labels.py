"""PIFA (positive instance feature aggregation): a label's features are the sum of its documents' features.

Rows of the label matrix are normalized to unit norm first, so that a document with many labels counts less for each;
then Z = Y^T X, rows normalized. Labels without documents, or with empty ones only, get an empty row.

Cost: one pass over the features of all (document, label) pairs; memory for the result and one dense vector of all
features per thread. `keep` cuts each row to its largest entries: a tree built from 500 per label is as good and faster.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import read_only
from labelwise.data.dataset import canonical_csr, canonical_features
from labelwise.errors import ConfigError, DataError
from labelwise.features.rows import ENTRY_BYTES, FeatureRows, HeldRows, batches_of, hold_rows, sparse_and_dense
from labelwise.io.tensors import all_finite, mapping_of, release_pages
from labelwise.runtime import threads as parallel

MAX_WORK_PER_TASK = 8_000_000
"""Maximum number of features summed in one task: bounds the task's buffers."""


def pifa(features: Any, labels: Any, keep: int | None = None, hold: int | None = None) -> Any:
    """Aggregate the features of each label's documents into the label's features.

    Parameters
    ----------
    features
        [documents, features]: CSR, dense, or both side by side as `Blocks`.
    labels
        CSR [documents, labels]; stored values weight a document's labels relative to each other.
    keep
        Number of largest entries (by absolute value) to keep per row of a CSR block; None keeps all. Dense blocks are
        not cut.
    hold
        For mapped features: bytes of documents in memory at a time. The result is the same.

    Returns
    -------
    The same type as `features` with one row per label, columns sorted, rows of unit norm or empty.
    """
    csr, dense = two_blocks(features)
    by_label = _unit_rows(canonical_csr(labels, "labels")).T.tocsr()
    n_labels, documents = by_label.shape
    if csr.shape[0] != documents:
        raise DataError(f"{csr.shape[0]:,} rows of features for {documents:,} rows of labels")
    if keep is not None and keep < 1:
        raise ConfigError(f"keep must be 1 or more features per label, or None for all; got {keep}")
    work = np.concatenate([[0], np.cumsum(np.diff(csr.indptr)[by_label.indices], dtype=np.int64)])[by_label.indptr]
    sums = _Sums(by_label, csr, dense, work, keep)
    work_of_all = work + dense.shape[1] * by_label.indptr
    if hold is None or dense.shape[1] or mapping_of(csr.indices) is None:
        parts = parallel.run_all(sums.of_range, _equal_work(work_of_all, MAX_WORK_PER_TASK))
    else:  # each label of a range that is not held reads the file once
        label_ranges = _equal_work(work_of_all, min(MAX_WORK_PER_TASK, max(1, hold // (2 * ENTRY_BYTES))))
        parts = _in_batches(sums, by_label, csr, label_ranges, hold)
    new_csr, new_dense = _joined(parts, (n_labels, csr.shape[1])), sums.new_dense
    if not all_finite(new_csr.data) or not all_finite(new_dense):
        raise DataError("the sum of the features of a label's documents is infinite; scale the features down")
    if isinstance(features, np.ndarray):
        return new_dense
    if sparse.issparse(features):
        return new_csr
    return replace(
        features,
        sparse=None if features.sparse is None else new_csr,
        dense=None if features.dense is None else new_dense,
    )


def _in_batches(sums: _Sums, by_label: Any, csr: Any, label_ranges: list[tuple[int, int]], hold: int) -> list:
    """The sums of all ranges, in order, from documents that are read in batches."""
    rows, found = FeatureRows.of(csr), {}
    documents = (
        np.unique(by_label.indices[by_label.indptr[first] : by_label.indptr[last]]) for first, last in label_ranges
    )
    for batch, chosen in batches_of(label_ranges, documents, rows, hold):
        here = None  # freed before others are read
        here = sums if not len(chosen) else sums.moved(hold_rows(rows, chosen))
        found |= zip(batch, parallel.run_all(here.of_range, batch), strict=True)
        release_pages(csr.indices)
        release_pages(csr.data)
    return [found[one] for one in label_ranges]


def with_label_texts(described: Any, texts: sparse.csr_array, weight: float) -> Any:
    """Label features of documents and of label texts: ``(1 - weight) * documents + weight * texts``, row by row.

    Parameters
    ----------
    described
        From `pifa`: CSR, or `Blocks`, whose dense block has no counterpart in texts.
    texts
        CSR [labels, features] with the columns of the sparse block. A label without documents, or without a known word
        in its text, has the features of the other alone.
    weight
        From 0 (documents alone) to 1 (texts alone).
    """
    csr, dense = two_blocks(described)
    mixed = (1 - weight) * csr + weight * _unit_rows(texts)
    mixed.data = mixed.data.astype(np.float32, copy=False)
    if sparse.issparse(described):
        return mixed
    return replace(described, sparse=mixed, dense=((1 - weight) * dense).astype(np.float32, copy=False))


def two_blocks(features: Any) -> tuple[Any, np.ndarray]:
    """A CSR and a dense float32 block, both checked, from CSR, dense or `Blocks`; a missing block has no columns."""
    csr, dense = sparse_and_dense(canonical_features(features))
    rows = (csr if dense is None else dense).shape[0]
    csr = sparse.csr_array((rows, 0), dtype=np.float32) if csr is None else csr
    return csr, np.empty((rows, 0), np.float32) if dense is None else dense.astype(np.float32, copy=False)


class _Sums:
    """Holds the kernel's inputs and computes the sums of a range of labels; dense ones go to `new_dense`."""

    def __init__(
        self, by_label: sparse.csr_array, csr: sparse.csr_array, dense: np.ndarray, work: np.ndarray, keep: int | None
    ) -> None:
        self.arrays = (
            read_only(by_label.indptr.astype(np.int64)),
            read_only(unsigned(by_label.indices)),
            read_only(by_label.data),
            read_only(csr.indptr.astype(np.int64)),
            read_only(unsigned(csr.indices)),
            read_only(csr.data),
            read_only(dense),
        )
        self.work, self.n_columns = work, csr.shape[1]
        self.max_entries = self.n_columns if keep is None else min(keep, self.n_columns)
        self.new_dense = np.zeros((len(work) - 1, dense.shape[1]), np.float32)

    def moved(self, held: HeldRows) -> _Sums:
        """The same with the documents of some labels, read from memory."""
        positions = np.zeros(len(self.arrays[3]) - 1, np.uint32)
        positions[held.rows] = np.arange(len(held.rows), dtype=np.uint32)
        other = copy.copy(self)
        label_indptr, documents, weights, *_, dense = self.arrays
        other.arrays = (
            label_indptr, read_only(positions[documents]), weights,
            read_only(held.indptr), read_only(unsigned(held.indices)), read_only(held.data), dense,
        )  # fmt: skip
        return other

    def of_range(self, labels: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries per label, their columns and values."""
        from labelwise.kernels.label_features import sum_documents

        first, last = labels
        widths = np.minimum(np.diff(self.work[first : last + 1]), self.n_columns)
        capacity = int(np.minimum(widths, self.max_entries).sum() + widths.max(initial=0))
        counts = np.empty(last - first, np.int64)
        indices, data = np.empty(capacity, np.int32), np.empty(capacity, np.float32)
        dense = self.new_dense[first:last]
        filled = sum_documents(
            *self.arrays, first, last, self.n_columns, self.max_entries, counts, indices, data, dense
        )
        return counts, indices[:filled].copy(), data[:filled].copy()


def unsigned(indices: np.ndarray) -> np.ndarray:
    """Column numbers as uint32, which kernels index with at half the cost of signed ones."""
    return indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32)


def _unit_rows(matrix: sparse.csr_array) -> Any:
    """The matrix with rows of unit norm."""
    n_rows = matrix.shape[0]
    rows = np.repeat(np.arange(n_rows), np.diff(matrix.indptr))
    norms = np.sqrt(np.bincount(rows, np.square(matrix.data, dtype=np.float64), n_rows))
    values = (matrix.data / norms[rows]).astype(np.float32)
    return sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _equal_work(work: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Ranges of labels with about equal work, given its cumulative sum; several per thread.

    Ranges have less than twice the work of `most`, except labels that have more than `most`: these are alone.
    """
    parts = max(4 * parallel.threads(), -(-int(work[-1]) // most))
    edges = np.searchsorted(work, np.linspace(0, work[-1], parts + 1)[1:-1])
    large = np.flatnonzero(np.diff(work) > most)
    edges = np.unique(np.concatenate([[0], edges, large, large + 1, [len(work) - 1]])).tolist()
    return list(pairwise(edges))


def _joined(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], shape: tuple[int, int]) -> Any:
    """One CSR from the rows of all ranges; each range's arrays are freed once they are copied."""
    indptr = np.cumsum(np.concatenate([[0], *(counts for counts, _, _ in parts)]))
    if indptr[-1] <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)  # otherwise scipy makes the columns int64 too
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    filled = 0
    while parts:
        _, part_indices, part_data = parts.pop(0)
        indices[filled : filled + len(part_indices)] = part_indices
        data[filled : filled + len(part_data)] = part_data
        filled += len(part_indices)
    return sparse.csr_array((data, indices, indptr), shape=shape)
