"""The first layer of a network over sparse rows: weighted sums of table rows, and the gradient of the rows used."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit


@jit
def weighted_rows(indptr, columns, values, table, begin, end, out):
    """out[row] = sum of values[k] * table[columns[k]] over the row's entries k, for rows begin..end.

    With entries by column, and gradients instead of the table, this is also the backward pass.
    """
    for row in range(begin, end):
        target = out[row]
        target[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            source, value = table[columns[entry]], values[entry]
            for column in range(len(target)):
                target[column] += value * source[column]


@jit
def by_column(indptr, columns, values, slots):
    """Sort entries by column: the columns used (sorted), their offsets, and the rows and values of entries.

    `slots` has one number per possible column, all -1 before and after.
    """
    used = np.empty(len(columns), np.int32)
    count = 0
    for entry in range(len(columns)):
        if slots[columns[entry]] < 0:
            slots[columns[entry]] = 0
            used[count] = columns[entry]
            count += 1
    used = np.sort(used[:count])
    for slot in range(count):
        slots[used[slot]] = slot
    begins = np.zeros(count + 1, np.int64)
    for entry in range(len(columns)):
        begins[slots[columns[entry]] + 1] += 1
    for slot in range(count):
        begins[slot + 1] += begins[slot]
    nexts = begins[:-1].copy()
    rows, sorted_values = np.empty(len(columns), np.int32), np.empty(len(columns), np.float32)
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            slot = slots[columns[entry]]
            rows[nexts[slot]], sorted_values[nexts[slot]] = row, values[entry]
            nexts[slot] += 1
    for slot in range(count):
        slots[used[slot]] = -1
    return used, begins, rows, sorted_values
