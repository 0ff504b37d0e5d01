"""A 2-universal hash of consecutive integers: ((a x + b) mod p) mod buckets, with p below 2 ** 31."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit


@jit
def universal_rows(first, factors, shifts, prime, buckets, out):
    """out[i, t] = the bucket of first + i by a = factors[t] and b = shifts[t].

    From one integer to the next only a is added, modulo p. The last modulo uses a product with 1 / buckets: the
    quotient is exact or off by one, which the remainder shows.
    """
    tables = len(factors)
    mixed = np.empty(tables, np.int64)
    for table in range(tables):
        mixed[table] = (factors[table] * first + shifts[table]) % prime
    inverse = 1.0 / buckets
    for index in range(len(out)):
        row = out[index]
        for table in range(tables):
            number = mixed[table]
            rest = number - np.int64(number * inverse) * buckets
            rest += buckets if rest < 0 else 0
            rest -= buckets if rest >= buckets else 0
            row[table] = rest
            number += factors[table]
            mixed[table] = number - prime if number >= prime else number
