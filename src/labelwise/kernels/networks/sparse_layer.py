"""The first layer of a network over sparse rows: weighted sums of table rows, and the gradient of the rows used."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit


@jit
def weighted_rows(indptr, columns, values, table, begin, end, out):
    """out[row] = sum of values[k] * table[columns[k]] over the row's entries k, for rows begin..end.

    With entries by column, and gradients in the place of the table, this is also the way back.
    """
    for row in range(begin, end):
        target = out[row]
        target[:] = 0
        for place in range(indptr[row], indptr[row + 1]):
            source, value = table[columns[place]], values[place]
            for column in range(len(target)):
                target[column] += value * source[column]


@jit
def by_column(indptr, columns, values, slots):
    """Entries by column: columns used (sorted), where each one's entries begin, and the rows and values of entries.

    `slots` has one number for each column that there can be, all -1 before and after.
    """
    used = np.empty(len(columns), np.int32)
    count = 0
    for place in range(len(columns)):
        if slots[columns[place]] < 0:
            slots[columns[place]] = 0
            used[count] = columns[place]
            count += 1
    used = np.sort(used[:count])
    for slot in range(count):
        slots[used[slot]] = slot
    begins = np.zeros(count + 1, np.int64)
    for place in range(len(columns)):
        begins[slots[columns[place]] + 1] += 1
    for slot in range(count):
        begins[slot + 1] += begins[slot]
    nexts = begins[:-1].copy()
    rows, sorted_values = np.empty(len(columns), np.int32), np.empty(len(columns), np.float32)
    for row in range(len(indptr) - 1):
        for place in range(indptr[row], indptr[row + 1]):
            slot = slots[columns[place]]
            rows[nexts[slot]], sorted_values[nexts[slot]] = row, values[place]
            nexts[slot] += 1
    for slot in range(count):
        slots[used[slot]] = -1
    return used, begins, rows, sorted_values
