"""CRC-32C (Castagnoli), the checksum of TFRecord files, sixteen bytes at a step.

Sixteen tables of 256 entries tell what a byte at each of sixteen places does to the checksum, so that one step is
sixteen lookups that do not wait for each other. Records store the checksum masked: turned by 15 bits, plus a constant.
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
    for place in range(1, STEP):
        before = tables[place - 1]
        tables[place] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(0xFF)]
    return tables


_TABLES = _tables().astype(np.uint32)


@jit
def crc32c(data: np.ndarray, begin: int, end: int) -> int:
    """The checksum of ``data[begin:end]``."""
    state = np.uint32(0xFFFFFFFF)
    low, eight = np.uint32(0xFF), np.uint32(8)
    position = begin
    for _ in range((end - begin) // STEP):
        piece = data[position : position + STEP]
        first = _TABLES[15, (state ^ piece[0]) & low] ^ _TABLES[14, ((state >> eight) ^ piece[1]) & low]
        second = (
            _TABLES[13, ((state >> np.uint32(16)) ^ piece[2]) & low] ^ _TABLES[12, (state >> np.uint32(24)) ^ piece[3]]
        )
        third = _TABLES[11, piece[4]] ^ _TABLES[10, piece[5]] ^ _TABLES[9, piece[6]] ^ _TABLES[8, piece[7]]
        fourth = _TABLES[7, piece[8]] ^ _TABLES[6, piece[9]] ^ _TABLES[5, piece[10]] ^ _TABLES[4, piece[11]]
        fifth = _TABLES[3, piece[12]] ^ _TABLES[2, piece[13]] ^ _TABLES[1, piece[14]] ^ _TABLES[0, piece[15]]
        state = np.uint32(first ^ second ^ third ^ fourth ^ fifth)
        position += STEP
    for place in range(position, end):
        state = np.uint32(_TABLES[0, (state ^ data[place]) & low] ^ (state >> eight))
    return np.int64(state ^ np.uint32(0xFFFFFFFF))


@jit
def masked_crc32c(data: np.ndarray, begin: int, end: int) -> int:
    """The checksum of ``data[begin:end]`` as a record stores it."""
    plain = crc32c(data, begin, end)
    return (((plain >> 15) | (plain << 17)) + MASK_DELTA) & 0xFFFFFFFF
