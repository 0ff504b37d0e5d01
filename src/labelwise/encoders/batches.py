"""Batches of documents of similar length, so that little is padded. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def cut_batches(
    documents: np.ndarray, lengths: np.ndarray, most: int | None, length_at_once: int | None
) -> Iterator[np.ndarray]:
    """Neighbours in batches of at most `most` documents and, padded to the longest, `length_at_once`.

    `lengths` of the documents rise, so that the last document of a batch is its longest. A document that is longer is a
    batch of its own.
    """
    begin, most = 0, most or len(documents)
    while begin < len(documents):
        end = min(begin + most, len(documents))
        if length_at_once is not None:
            padded = lengths[begin:end] * np.arange(1, end - begin + 1)
            end = begin + max(1, int(np.searchsorted(padded, length_at_once, side="right")))
        yield documents[begin:end]
        begin = end


def batches_by_length(lengths: np.ndarray, length_at_once: int, most: int | None = None) -> Iterator[np.ndarray]:
    """All documents, shortest first, in batches; every document is in exactly one."""
    order = np.argsort(lengths, kind="stable")
    return cut_batches(order, lengths[order], most or length_at_once, length_at_once)
