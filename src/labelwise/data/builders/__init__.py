"""Corpora made on the spot from what a machine has, and converters of downloaded ones."""
