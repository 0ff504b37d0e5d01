"""Learned buckets: labels move to buckets that their documents' networks like already (IRLI, Gupta et al. 2021).

Random hashing puts labels together that have nothing in common. After some epochs each label looks at the scores that
its own training documents give to all buckets, and goes to the least loaded of the best few; training goes on from
there. Scores are added up for a block of labels at a time, so that labels x buckets never exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labelwise.codes.buckets import narrow
from labelwise.config import Config
from labelwise.kernels.least_loaded import least_loaded
from labelwise.progress import progress
from labelwise.training.settings import Count

SUMS_AT_ONCE = 1 << 25
"""Sums of scores that exist at a time: 128 MB."""
DOCUMENTS_AT_ONCE = 1024

Scores = Callable[[np.ndarray], np.ndarray]
"""Scores [buckets, documents] of some training documents."""


class RepartitionConfig(Config):
    """Labels move to buckets that suit them."""

    every: Count = 5
    """Epochs after which labels move, again and again; after the last epochs they stay."""
    choices: Count = 10
    """Best buckets of a label, of which it takes the least loaded."""


def moved(labels: Any, table: np.ndarray, scores: Scores, n_buckets: int, choices: int) -> np.ndarray:
    """The new bucket of each label; labels that no document has stay where they are, and are counted last."""
    by_label = labels.tocsc()
    counts = np.diff(by_label.indptr)
    liked = np.repeat(table[:, None], min(choices, n_buckets), 1)
    block = max(1, SUMS_AT_ONCE // n_buckets)
    with progress("moving labels", labels.shape[1]) as step:
        for begin in range(0, labels.shape[1], block):
            end = min(begin + block, labels.shape[1])
            used = begin + np.flatnonzero(counts[begin:end])
            if len(used):
                liked[used] = _liked(by_label[:, used], scores, n_buckets, liked.shape[1])
            step(end - begin)
    order = np.argsort(-counts, kind="stable")
    kernel: Any = least_loaded
    return kernel(liked, order, n_buckets).astype(narrow(n_buckets))


def _liked(by_label: Any, scores: Scores, n_buckets: int, choices: int) -> np.ndarray:
    """The buckets with the highest sums over each label's documents, best first; equal ones by number."""
    rows = by_label.tocsr()
    documents = np.flatnonzero(np.diff(rows.indptr))
    sums = np.zeros((by_label.shape[1], n_buckets), np.float32)
    for begin in range(0, len(documents), DOCUMENTS_AT_ONCE):
        some = documents[begin : begin + DOCUMENTS_AT_ONCE]
        sums += (rows[some] > 0).astype(np.float32).T @ scores(some).T
    sums /= np.diff(by_label.indptr)[:, None]
    best = np.argpartition(-sums, choices - 1, axis=1)[:, :choices]
    best.sort(axis=1)
    order = np.argsort(-np.take_along_axis(sums, best, 1), axis=1, kind="stable")
    return np.take_along_axis(best, order, 1)
