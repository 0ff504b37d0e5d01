"""Label features: the weighted sum of the documents of each label, cut to its largest entries, with unit norm.

A document is a row of a CSR block and a row of a dense block; either block may have no columns. Sums are accumulated in
one dense vector. A bit map marks which of its entries are in use and a coarser map which parts of the bit map are, so
that rows are read in order of columns, and everything is cleared, without a sort and without a pass over all features.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.clustering import kth_smallest
from labelwise.kernels.jit import inner, jit

_SIX, _NINE, _LOW = np.uint64(6), np.uint64(9), np.uint64(63)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_WORDS_PER_LINE = 8
_SPREAD, _SHIFT = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
# The top six bits of _SPREAD times a power of two are unique (De Bruijn); this maps them back to the exponent.
_EXPONENTS = np.empty(64, np.uint64)
for _exponent in range(64):
    _EXPONENTS[((0x03F79D71B4CB0A89 << _exponent) % 2**64) >> 58] = _exponent


@jit
def sum_documents(
    label_indptr: np.ndarray,
    documents: np.ndarray,
    weights: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    first: int,
    last: int,
    n_columns: int,
    keep: int,
    counts: np.ndarray,
    new_indices: np.ndarray,
    new_data: np.ndarray,
    new_dense: np.ndarray,
) -> int:
    """Write the rows of the labels from `first` to `last` (exclusive) one after the other; returns their entries.

    `new_indices` and `new_data` must hold the `keep` largest entries of every label and all of the widest one.
    """
    sums = np.zeros(n_columns, np.float32)
    lines = np.zeros((n_columns >> 9) + 1, np.uint8)
    used = np.zeros(len(lines) * _WORDS_PER_LINE, np.uint64)
    position = np.int64(0)
    for label in range(first, last):
        row = new_dense[label - first]
        for pair in range(label_indptr[label], label_indptr[label + 1]):
            document, weight = documents[pair], weights[pair]
            for k in range(np.uint64(indptr[document]), np.uint64(indptr[document + 1])):
                column = np.uint64(indices[k])
                lines[column >> _NINE] = 1
                used[column >> _SIX] |= _ONE << (column & _LOW)
                sums[column] += weight * data[k]
            for k in range(dense.shape[1]):
                row[k] += weight * dense[document, k]
        count = _flush(sums, used, lines, position, new_indices, new_data)
        if count > keep:
            count = _keep_largest(position, count, keep, new_indices, new_data)
        counts[label - first] = count
        _normalize(new_data[position : position + count], row)
        position += count
    return position


@inner
def _flush(
    sums: np.ndarray, used: np.ndarray, lines: np.ndarray, position: int, new_indices: np.ndarray, new_data: np.ndarray
) -> int:
    """Move the sums to the row that begins at `position`, in order of columns, and reset everything to zero."""
    begin = position
    for line in range(len(lines)):
        if lines[line] == 0:
            continue
        lines[line] = 0
        for word in range(_WORDS_PER_LINE * line, _WORDS_PER_LINE * (line + 1)):
            bits = used[word]
            used[word] = _ZERO
            while bits != _ZERO:
                column = (np.uint64(word) << _SIX) | _lowest_bit(bits)
                bits &= bits - _ONE
                value = sums[column]
                sums[column] = 0
                if value != 0:
                    new_indices[position] = column
                    new_data[position] = value
                    position += 1
    return position - begin


@inner
def _lowest_bit(bits: np.uint64) -> np.uint64:
    return _EXPONENTS[((bits & (~bits + _ONE)) * _SPREAD) >> _SHIFT]


@inner
def _keep_largest(position: int, count: int, keep: int, new_indices: np.ndarray, new_data: np.ndarray) -> int:
    """Reduce the row to its `keep` entries of largest absolute value; ties go to lower columns."""
    sizes = np.empty(count, np.float32)
    for i in range(count):
        sizes[i] = abs(new_data[position + i])
    smallest = kth_smallest(sizes, count - keep)
    equals = keep
    for i in range(position, position + count):
        if abs(new_data[i]) > smallest:
            equals -= 1
    kept = position
    for i in range(position, position + count):
        size = abs(new_data[i])
        if size > smallest or (size == smallest and equals > 0):
            equals -= size == smallest
            new_indices[kept] = new_indices[i]
            new_data[kept] = new_data[i]
            kept += 1
    return kept - position


@inner
def _normalize(values: np.ndarray, row: np.ndarray) -> None:
    squares = 0.0
    for i in range(len(values)):
        squares += np.float64(values[i]) * np.float64(values[i])
    for i in range(len(row)):
        squares += np.float64(row[i]) * np.float64(row[i])
    if squares == 0:
        return
    scale = 1 / np.sqrt(squares)
    for i in range(len(values)):
        values[i] = values[i] * scale
    for i in range(len(row)):
        row[i] = row[i] * scale
