"""The hot loops (Numba)."""
