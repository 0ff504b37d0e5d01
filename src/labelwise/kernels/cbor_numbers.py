"""Arrays of numbers in CBOR (RFC 8949), in which every number has a length of its own."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit

UNSIGNED, NEGATIVE, SIMPLE = 0, 1, 7
ONE_BYTE, HALF, SINGLE, DOUBLE = 24, 25, 26, 27
MAX_INTEGER = 1 << 53
"""Integers up to this are exact in float64."""


@jit
def read_numbers(buffer, position, out):
    """Decode as many numbers as `out` (float64) has; returns the position after them, and whether all are integers.

    The position is -1 if a number is cut off, too large to be exact, or something else than a number.
    """
    end = len(buffer)
    integers = True
    words = np.empty(1, np.uint64)
    doubles = words.view(np.float64)
    for index in range(len(out)):
        if position >= end:
            return np.int64(-1), False
        major, size = buffer[position] >> 5, buffer[position] & 31
        position += 1
        if size < ONE_BYTE:
            value, width = np.uint64(size), 0
        elif size <= DOUBLE:
            width = 1 << (size - ONE_BYTE)
            if position + width > end:
                return np.int64(-1), False
            value = np.uint64(0)
            for byte in range(width):
                value = (value << np.uint64(8)) | np.uint64(buffer[position + byte])
            position += width
        else:
            return np.int64(-1), False
        if major in (UNSIGNED, NEGATIVE):
            if value > MAX_INTEGER:
                return np.int64(-1), False
            out[index] = np.float64(value) if major == UNSIGNED else -1.0 - np.float64(value)
        elif major == SIMPLE and width == 2:
            out[index], integers = _half(value), False
        elif major == SIMPLE and width == 4:
            words[0] = _double_bits(value)
            out[index], integers = doubles[0], False
        elif major == SIMPLE and width == 8:
            words[0] = value
            out[index], integers = doubles[0], False
        else:
            return np.int64(-1), False
    return np.int64(position), integers


@inner
def _half(bits):
    """The number with these 16 bits."""
    fraction, exponent = np.float64(bits & np.uint64(1023)), np.int64((bits >> np.uint64(10)) & np.uint64(31))
    sign = -1.0 if bits >> np.uint64(15) else 1.0
    if exponent == 31:
        return sign * (np.nan if fraction else np.inf)
    if exponent == 0:
        return sign * fraction * 2.0**-24
    return sign * (1024 + fraction) * 2.0 ** (exponent - 25)


@inner
def _double_bits(bits):
    """The 64 bits of the number that has these 32 bits."""
    sign, rest = bits >> np.uint64(31), bits & np.uint64(0x7FFFFFFF)
    exponent, fraction = rest >> np.uint64(23), rest & np.uint64(0x7FFFFF)
    if exponent == 255:
        exponent = np.uint64(2047)
    elif exponent == 0:  # zeros, and numbers so small that nothing depends on them
        exponent, fraction = np.uint64(0), np.uint64(0)
    else:
        exponent += np.uint64(896)
    return (sign << np.uint64(63)) | (exponent << np.uint64(52)) | (fraction << np.uint64(29))
