"""CRC-32C (Castagnoli), the checksum of TFRecord files, sixteen bytes per step.

Sixteen tables of 256 entries hold the effect of a byte at each of sixteen positions on the checksum, so that one step
is sixteen independent lookups. Records store the checksum masked: rotated by 15 bits, plus a constant.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit

POLYNOMIAL = 0x82F63B78
MASK_DELTA = 0xA282EAD8
STEP = 16


def _tables() -> np.ndarray:
    tables = np.zeros((STEP, 256), np.uint64)
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (POLYNOMIAL if state & 1 else 0)
        tables[0, byte] = state
    for index in range(1, STEP):
        before = tables[index - 1]
        tables[index] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(0xFF)]
    return tables


_TABLES = _tables().astype(np.uint32)


@jit
def crc32c(data: np.ndarray, begin: int, end: int) -> int:
    """The checksum of ``data[begin:end]``."""
    state = np.uint32(0xFFFFFFFF)
    low, eight = np.uint32(0xFF), np.uint32(8)
    position = begin
    for _ in range((end - begin) // STEP):
        chunk = data[position : position + STEP]
        first = _TABLES[15, (state ^ chunk[0]) & low] ^ _TABLES[14, ((state >> eight) ^ chunk[1]) & low]
        second = (
            _TABLES[13, ((state >> np.uint32(16)) ^ chunk[2]) & low] ^ _TABLES[12, (state >> np.uint32(24)) ^ chunk[3]]
        )
        third = _TABLES[11, chunk[4]] ^ _TABLES[10, chunk[5]] ^ _TABLES[9, chunk[6]] ^ _TABLES[8, chunk[7]]
        fourth = _TABLES[7, chunk[8]] ^ _TABLES[6, chunk[9]] ^ _TABLES[5, chunk[10]] ^ _TABLES[4, chunk[11]]
        fifth = _TABLES[3, chunk[12]] ^ _TABLES[2, chunk[13]] ^ _TABLES[1, chunk[14]] ^ _TABLES[0, chunk[15]]
        state = np.uint32(first ^ second ^ third ^ fourth ^ fifth)
        position += STEP
    for index in range(position, end):
        state = np.uint32(_TABLES[0, (state ^ data[index]) & low] ^ (state >> eight))
    return np.int64(state ^ np.uint32(0xFFFFFFFF))


@jit
def masked_crc32c(data: np.ndarray, begin: int, end: int) -> int:
    """The checksum of ``data[begin:end]`` as a record stores it."""
    plain = crc32c(data, begin, end)
    return (((plain >> 15) | (plain << 17)) + MASK_DELTA) & 0xFFFFFFFF
