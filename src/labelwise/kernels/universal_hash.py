"""A 2-universal hash of consecutive numbers: ((a x + b) mod p) mod buckets, with p below 2 ** 31."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def universal_buckets(first, count, a, b, prime, buckets, out):
    """out[i] = the bucket of first + i, for i in 0..count. The sum before the last modulo is kept below 2 p."""
    mixed = (a * first + b) % prime
    for place in range(count):
        out[place] = mixed % buckets
        mixed += a
        if mixed >= prime:
            mixed -= prime
