"""MurmurHash3 (32 bits, x86) of four-byte integers: the hash of feature hashing and of MACH's tables."""

from __future__ import annotations

import numpy as np
from numba import uint32

from labelwise.kernels.jit import jit


@jit
def murmur_buckets(first, count, seed, buckets, out):
    """out[i] = the signed hash of first + i, modulo buckets (never negative), for i in 0..count."""
    for index in range(count):
        out[index] = _signed(_hashed(uint32(first + index), uint32(seed))) % buckets


@jit(inline="always")
def _signed(number):
    return np.int64(number) - (np.int64(1) << 32) if number >= uint32(0x80000000) else np.int64(number)


@jit(inline="always")
def _rotated(number, bits):
    return uint32(uint32(number << uint32(bits)) | uint32(number >> uint32(32 - bits)))


@jit(inline="always")
def _hashed(key, seed):
    mixed = uint32(_rotated(uint32(key * uint32(0xCC9E2D51)), 15) * uint32(0x1B873593))
    state = uint32(uint32(_rotated(uint32(seed ^ mixed), 13) * uint32(5)) + uint32(0xE6546B64))
    state = uint32(state ^ uint32(4))
    state = uint32(uint32(state ^ uint32(state >> uint32(16))) * uint32(0x85EBCA6B))
    state = uint32(uint32(state ^ uint32(state >> uint32(13))) * uint32(0xC2B2AE35))
    return uint32(state ^ uint32(state >> uint32(16)))
