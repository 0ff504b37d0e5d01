"""Dropout whose mask is a hash of a key and the index: the mask is not stored, the backward pass computes it again.

An index is mixed with the key by two multiplications (the constants are those of the "lowbias32" hash), which takes
about a nanosecond per number as vector code; torch's generator takes twenty.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit

MIX_1, MIX_2, STRIDE = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0x9E3779B9)
_15, _16 = np.uint32(15), np.uint32(16)


@jit
def drop_out(values, first, key, other_key, threshold, factor):
    """Set values to 0 whose hashed index is below `threshold`, and multiply the others by `factor`.

    Parameters
    ----------
    values
        Float32, one dimension; changed in place.
    first
        Index of the first value, so that several threads can process ranges of one array.
    key, other_key, threshold
        uint32.
    """
    for j in range(len(values)):
        mixed = np.uint32(np.uint32(np.uint32(j) + np.uint32(first)) * STRIDE + key)
        mixed = np.uint32(np.uint32(mixed ^ np.uint32(mixed >> _16) ^ other_key) * MIX_1)
        mixed = np.uint32(np.uint32(mixed ^ np.uint32(mixed >> _15)) * MIX_2)
        mixed = np.uint32(mixed ^ np.uint32(mixed >> _16))
        values[j] = values[j] * factor if mixed >= threshold else np.float32(0)


# --- row adam ---
# Adam for some rows of a table: one pass over weights, moments and gradient, where torch needs a dozen with copies.

ONE = np.float32(1)


@jit(error_model="numpy", fastmath={"contract", "nsz"})
def update_rows(weights, first, second, rows, gradient, begin, end, decay, beta1, beta2, rate, root, eps):
    """Update the rows ``rows[begin:end]`` with the gradient's rows of the same indices; rows must be unique.

    Parameters
    ----------
    weights, first, second
        Table [rows, width] and its moments, float32; changed in index.
    rows, gradient
        The rows (int64), and their gradient [len(rows), width].
    begin, end
        The range of indices to update.
    decay
        L2 weight decay, added to the gradient.
    beta1, beta2
        Decay rates of the moments.
    rate, root, eps
        The step is ``rate * first / (sqrt(second) * root + eps)``, with the bias corrections in rate and root.
    """
    width = weights.shape[1]
    new, new_squares = ONE - beta1, ONE - beta2
    for index in range(begin, end):
        row = rows[index]
        weight, mean, squares, row_gradient = weights[row], first[row], second[row], gradient[index]
        for j in range(width):
            total = row_gradient[j] + decay * weight[j]
            mean[j] += new * (total - mean[j])
            squares[j] = squares[j] * beta2 + new_squares * total * total
            weight[j] -= rate * mean[j] / (np.sqrt(squares[j]) * root + eps)


# --- sparse layer ---
# The first layer of a network over sparse rows: weighted sums of table rows, and the gradient of the rows used.


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
