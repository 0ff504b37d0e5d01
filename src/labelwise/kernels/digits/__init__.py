"""Kernels of mixed-radix codes."""
