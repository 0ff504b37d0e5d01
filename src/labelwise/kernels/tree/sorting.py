"""Sorting by digits: a third of the time of a sort by comparing, and a tenth of the time to compile NumPy's."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner

_BITS = np.int64(6)
_DIGITS = 1 << 6


@inner
def sort_from_bit(bit, keys, count, limit, spare):
    """Sort keys[:count] by their bits from `bit` on, which are below `limit`, equal ones as they were.

    Returns the array that holds them then: `keys` or `spare`, which is as long.
    """
    ends = np.empty(_DIGITS, np.int64)
    shift = np.int64(bit)
    while limit >> (shift - bit) > 0:
        for digit in range(_DIGITS):
            ends[digit] = 0
        for k in range(count):
            ends[(keys[k] >> shift) & (_DIGITS - 1)] += 1
        total = 0
        for digit in range(_DIGITS):
            size = ends[digit]
            ends[digit] = total
            total += size
        for k in range(count):
            digit = (keys[k] >> shift) & (_DIGITS - 1)
            spare[ends[digit]] = keys[k]
            ends[digit] += 1
        keys, spare = spare, keys
        shift += _BITS
    return keys
