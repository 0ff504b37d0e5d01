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
