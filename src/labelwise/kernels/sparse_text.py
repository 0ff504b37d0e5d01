"""Parse lines of sparse features to CSR rows, and format them: `12,40 7:0.5 19:1` (text format of the XC repository).

A parser takes one block that ends in a newline and writes into arrays that are large enough. It stops at the first
fault and returns it with its byte; error messages are built elsewhere. Rows are canonical: columns ascending and unique
(values of duplicate columns summed), no zeros, labels ascending and unique.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.numbers import (
    FLOAT32_OVERFLOW,
    read_integer,
    read_number,
    write_integer,
    write_number,
)

FINE, BAD_LABEL, BAD_FEATURE, BAD_VALUE, SUM_TOO_LARGE = range(5)
INDEX_TOO_LARGE, FEATURE_OUT_OF_RANGE, LABEL_OUT_OF_RANGE = range(5, 8)

MAX_INDEX = 2**31 - 2
SPACE, TAB, NEWLINE, RETURN, COMMA, COLON = 32, 9, 10, 13, 44, 58
MAX_ENTRY_BYTES = 36
"""Maximum bytes of a formatted `column:value `."""


@inner(forceinline=True)
def at_line_end(data: np.ndarray, position: int) -> bool:
    """Whether a newline, or a carriage return and a newline, is at `position`."""
    byte = data[position]
    return byte == NEWLINE or (byte == RETURN and data[position + 1] == NEWLINE)


@inner(forceinline=True)
def at_token_end(data: np.ndarray, position: int) -> bool:
    """Whether a blank or the line's end is at `position`."""
    byte = data[position]
    return byte in (SPACE, TAB) or at_line_end(data, position)


@inner
def sort_keys(keys: np.ndarray) -> np.ndarray:
    """The keys in ascending order (overwrites their array): insertion sort in runs of 16, then merge sort."""
    size = len(keys)
    for begin in range(0, size, 16):
        for index in range(begin + 1, min(begin + 16, size)):
            key = keys[index]
            hole = index
            while hole > begin and keys[hole - 1] > key:
                keys[hole] = keys[hole - 1]
                hole -= 1
            keys[hole] = key
    width = 16
    source, target = keys, np.empty_like(keys)
    while width < size:
        for begin in range(0, size, 2 * width):
            middle = min(begin + width, size)
            end = min(begin + 2 * width, size)
            left, right = begin, middle
            for index in range(begin, end):
                if left < middle and (right >= end or source[left] <= source[right]):
                    target[index] = source[left]
                    left += 1
                else:
                    target[index] = source[right]
                    right += 1
        source, target = target, source
        width *= 2
    return source


@inner
def sort_features(indices: np.ndarray, values: np.ndarray, begin: int, end: int) -> int:
    """Sort a row by column, sum duplicate columns, drop zeros; returns its new end, -1 for an overflow."""
    size = end - begin
    keys = np.empty(size, np.int64)
    for index in range(size):  # with the index, so that equal columns are added in the order of the line
        keys[index] = (np.int64(indices[begin + index]) << 32) | index
    keys = sort_keys(keys)
    weights = values[begin:end].copy()
    kept = begin
    index = 0
    while index < size:
        column = keys[index] >> 32
        total = weights[keys[index] & 0xFFFFFFFF]
        index += 1
        while index < size and keys[index] >> 32 == column:
            total += weights[keys[index] & 0xFFFFFFFF]
            index += 1
        if not np.isfinite(total):
            return -1
        if total != 0:
            indices[kept] = column
            values[kept] = total
            kept += 1
    return kept


@inner
def sort_labels(labels: np.ndarray, begin: int, end: int) -> int:
    """Sort one row of labels and drop duplicates; returns the new end."""
    row = sort_keys(labels[begin:end].copy())
    kept = begin
    for index in range(len(row)):
        if index == 0 or row[index] != row[index - 1]:
            labels[kept] = row[index]
            kept += 1
    return kept


@jit
def parse_xc(
    data: np.ndarray,
    n_features: int,
    n_labels: int,
    feature_counts: np.ndarray,
    label_counts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
) -> tuple[int, int, int, int, int, int]:
    """Parse the lines of a block.

    `feature_counts` and `label_counts` have one element per line, `indices` and `values` one per colon, `labels` one
    per line and comma. Returns (fault, its byte, features stored, labels stored, feature columns, label columns).
    """
    # Typed, because functions called with a literal 0 would be compiled for it and for int64.
    position = row = stored = tagged = int(np.int64(0))
    top_feature = -1
    top_label = -1
    while position < data.size:
        first_label = tagged
        label_fault, position, tagged, top = _line_labels(data, position, n_labels, labels, tagged)
        if label_fault != FINE:
            return label_fault, position, stored, tagged, top_feature + 1, top_label + 1
        top_label = max(top_label, top)
        label_counts[row] = tagged - first_label

        first_feature = stored
        previous = -1
        ascending = True
        while True:
            while data[position] == SPACE or data[position] == TAB:
                position += 1
            if at_line_end(data, position):
                break
            begin = position
            column, position = read_integer(data, position)
            if position == begin or data[position] != COLON:
                return BAD_FEATURE, begin, stored, tagged, top_feature + 1, top_label + 1
            if column > MAX_INDEX:
                return INDEX_TOO_LARGE, begin, stored, tagged, top_feature + 1, top_label + 1
            if column >= n_features:
                return FEATURE_OUT_OF_RANGE, begin, stored, tagged, top_feature + 1, top_label + 1
            wide, position = read_number(data, position + 1)
            if position < 0 or abs(wide) >= FLOAT32_OVERFLOW or not at_token_end(data, position):
                return BAD_VALUE, begin, stored, tagged, top_feature + 1, top_label + 1
            top_feature = max(top_feature, column)
            value = np.float32(wide)
            if value != 0:
                ascending &= column > previous
                previous = column
                indices[stored] = column
                values[stored] = value
                stored += 1
        if not ascending:
            stored = sort_features(indices, values, first_feature, stored)
            if stored < 0:
                return SUM_TOO_LARGE, position, stored, tagged, top_feature + 1, top_label + 1
        feature_counts[row] = stored - first_feature
        position += 1 if data[position] == NEWLINE else 2
        row += 1
    return FINE, position, stored, tagged, top_feature + 1, top_label + 1


@inner
def _line_labels(
    data: np.ndarray, position: int, n_labels: int, labels: np.ndarray, tagged: int
) -> tuple[int, int, int, int]:
    """The labels at the start of a line: (fault, position after them or of it, labels stored, highest)."""
    first = tagged
    start = position
    top = -1
    previous = -1
    ascending = True
    if at_token_end(data, position):
        return FINE, position, tagged, top
    while True:
        begin = position
        label, position = read_integer(data, position)
        if data[position] == COLON and begin == start:
            return FINE, start, tagged, top
        if position == begin or not (data[position] == COMMA or at_token_end(data, position)):
            return BAD_LABEL, begin, tagged, top
        if label > MAX_INDEX:
            return INDEX_TOO_LARGE, begin, tagged, top
        if label >= n_labels:
            return LABEL_OUT_OF_RANGE, begin, tagged, top
        ascending &= label > previous
        previous = label
        top = max(top, label)
        labels[tagged] = label
        tagged += 1
        if data[position] != COMMA:
            break
        position += 1
    if not ascending:
        tagged = sort_labels(labels, first, tagged)
    return FINE, position, tagged, top


@inner
def format_features(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, row: int, out: np.ndarray, position: int
) -> int:
    """Write ` column:value` for each entry of a row; returns the position after them."""
    for index in range(indptr[row], indptr[row + 1]):
        out[position] = SPACE
        position = write_integer(out, position + 1, int(indices[index]))
        out[position] = COLON
        position = write_number(out, position + 1, values[index])
    return position


@jit
def format_lines(
    begin: int,
    end: int,
    feature_indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    label_indptr: np.ndarray,
    labels: np.ndarray,
    name_buffer: np.ndarray,
    name_starts: np.ndarray,
    name_ends: np.ndarray,
    bar: bool,
    out: np.ndarray,
) -> int:
    """Write the rows from `begin` to `end` as lines, with ` |` after the labels if `bar`; returns the number of bytes.

    `out` must hold for each row its label names, a comma each and three bytes, and MAX_ENTRY_BYTES per feature.
    """
    position = 0
    for row in range(begin, end):
        for index in range(label_indptr[row], label_indptr[row + 1]):
            if index > label_indptr[row]:
                out[position] = COMMA
                position += 1
            label = labels[index]
            for source in range(name_starts[label], name_ends[label]):
                out[position] = name_buffer[source]
                position += 1
        if bar:
            if label_indptr[row + 1] > label_indptr[row]:
                out[position] = SPACE
                position += 1
            out[position] = 124
            position += 1
        position = format_features(feature_indptr, indices, values, row, out, position)
        out[position] = NEWLINE
        position += 1
    return position
