"""Kernels of neural networks that torch lacks."""
