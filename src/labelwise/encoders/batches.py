"""Batches of documents of similar length, so that little is padded. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def cut_batches(
    documents: np.ndarray, lengths: np.ndarray, batch_size: int | None, max_padded_length: int | None
) -> Iterator[np.ndarray]:
    """Cut documents into batches of at most `batch_size`, and at most `max_padded_length` when padded to the longest.

    `lengths` must be ascending, so that the last document of a batch is its longest. A document longer than
    `max_padded_length` forms a batch alone.
    """
    begin, batch_size = 0, batch_size or len(documents)
    while begin < len(documents):
        end = min(begin + batch_size, len(documents))
        if max_padded_length is not None:
            padded = lengths[begin:end] * np.arange(1, end - begin + 1)
            end = begin + max(1, int(np.searchsorted(padded, max_padded_length, side="right")))
        yield documents[begin:end]
        begin = end


def batches_by_length(
    lengths: np.ndarray, max_padded_length: int, batch_size: int | None = None
) -> Iterator[np.ndarray]:
    """Batches of all documents, shortest first; every document is in exactly one."""
    order = np.argsort(lengths, kind="stable")
    return cut_batches(order, lengths[order], batch_size or max_padded_length, max_padded_length)
