"""Numbers of elements that kernels read at once, for code that allocates arrays without importing Numba."""

LANES = 16
"""Children whose weights are one vector."""
BYTES = 16
"""Low bytes of features that are compared at once: an array of them has so many more at its end."""
BLOCK = 32
"""Counts of rows that are summed at once."""
