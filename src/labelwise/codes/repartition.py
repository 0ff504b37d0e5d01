"""Learned buckets: labels move to buckets that score high for their documents (IRLI, Gupta et al. 2021).

Random hashing assigns unrelated labels to the same bucket. After some epochs the bucket scores of each label's training
documents are summed, and the label moves to the least loaded of the best few buckets; training continues from there.
Scores are summed for a block of labels at a time, so that no labels x buckets matrix is needed.

Labels of the same documents prefer the same buckets in every table: with a free choice they would share all buckets and
could not be distinguished. So each label may choose only among some buckets, drawn by a hash that differs per table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.codes.buckets import BucketTables, bucket_dtype
from labelwise.config import Config
from labelwise.data.csr import pick_rows
from labelwise.data.dataset import row_pieces
from labelwise.kernels.buckets.least_loaded import least_loaded
from labelwise.mapped import counts_of, release_pages
from labelwise.progress import progress

Count = Annotated[int, Field(ge=1)]

SUMS_AT_ONCE = 1 << 25
"""Sums of scores that exist at a time: 128 MB."""
DOCUMENTS_AT_ONCE = 1024
LABELS_AT_ONCE = 1 << 20
SAMPLE = 4096
"""Documents from which the mean score of each bucket is estimated."""
FIRST_OFFER = 1 << 20
"""Number of the first hash of offers, above those of repetitions."""

Scores = Callable[[np.ndarray], np.ndarray]
"""Scores [buckets, documents] of some training documents."""


class RepartitionConfig(Config):
    """Labels move to buckets that score high for their documents."""

    every: Count = 2
    """Epochs of training before each move of labels; after the last move all of `training.epochs` follow."""
    times: Count = 1
    """How often labels move."""
    offers: Count = 4
    """Buckets that a label may move to, different in each table; as many as all buckets or more: any bucket."""
    choices: Count = 2
    """A label moves to the least loaded of this many best buckets among its offers; fewer than offers."""

    def check_choices(self, n_buckets: int) -> None:
        """Raise ValueError where labels would move to the least loaded bucket regardless of scores."""
        among = min(self.offers, n_buckets)
        if self.choices >= among:
            raise ValueError(
                f"repartition.choices: {self.choices} choices among {among} offered buckets are all of them, so "
                "that learned scores would have no effect; set fewer choices or more offers"
            )

    def offered(self, n_labels: int, n_buckets: int, seed: int, number: int) -> BucketTables | None:
        """One table per offer of one repetition; None where labels may move to any bucket."""
        if self.offers >= n_buckets:
            return None
        numbers = tuple(range(FIRST_OFFER + number * self.offers, FIRST_OFFER + (number + 1) * self.offers))
        return BucketTables(n_labels, n_buckets, numbers, "universal", seed)


def repartitioned(
    labels: Any, table: np.ndarray, scores: Scores, n_buckets: int, choices: int, offers: BucketTables | None = None
) -> np.ndarray:
    """The new bucket of each label; labels without documents stay in their bucket and are assigned last.

    `offers` has one table per bucket that a label may move to; None: any bucket.
    """
    counts = counts_of(labels.indices, labels.shape[1])
    preferred = np.repeat(table[:, None], min(choices, n_buckets if offers is None else len(offers)), 1)
    means = _mean_scores(scores, labels.shape[0])

    def centred(documents: np.ndarray) -> np.ndarray:
        return scores(documents) - means

    block = max(1, SUMS_AT_ONCE // n_buckets)
    with progress("moving labels", labels.shape[1]) as step:
        for begin in range(0, labels.shape[1], block):
            end = min(begin + block, labels.shape[1])
            used = begin + np.flatnonzero(counts[begin:end])
            if len(used):
                offered = None if offers is None else offers.rows_of(used)
                preferred[used] = _best_buckets(_sums(labels, used, centred, n_buckets), preferred.shape[1], offered)
            step(end - begin)
    order = np.argsort(-counts, kind="stable")
    kernel: Any = least_loaded
    return kernel(preferred, order, n_buckets).astype(bucket_dtype(n_buckets))


def _mean_scores(scores: Scores, n_documents: int) -> np.ndarray:
    """The mean score of each bucket [buckets, 1]; subtracted, so that buckets with high scores for all do not win."""
    sample = np.unique(np.linspace(0, n_documents - 1, SAMPLE).astype(np.int64))
    pieces = (sample[begin : begin + DOCUMENTS_AT_ONCE] for begin in range(0, len(sample), DOCUMENTS_AT_ONCE))
    totals = np.stack([scores(piece).sum(1, dtype=np.float64) for piece in pieces])
    return (totals.sum(0) / len(sample)).astype(np.float32)[:, None]


def _sums(labels: Any, used: np.ndarray, scores: Scores, n_buckets: int) -> np.ndarray:
    """The sum of all buckets' scores over the documents of each of the `used` labels, which span a short range."""
    documents = _documents(labels, used[0], used[-1])
    sums = np.zeros((len(used), n_buckets), np.float32)
    for begin in range(0, len(documents), DOCUMENTS_AT_ONCE):
        batch = documents[begin : begin + DOCUMENTS_AT_ONCE]
        rows = pick_rows(labels, batch)
        in_range = (rows.indices >= used[0]) & (rows.indices <= used[-1]) & (rows.data > 0)
        columns = np.repeat(np.arange(len(batch)), np.diff(rows.indptr))[in_range]
        present, indices = np.unique(rows.indices[in_range], return_inverse=True)
        ones = np.ones(len(indices), np.float32)
        true = sparse.csr_array((ones, (indices, columns)), shape=(len(present), len(batch)))
        sums[np.searchsorted(used, present)] += true @ scores(batch).T
    return sums


def _documents(labels: Any, first: int, last: int) -> np.ndarray:
    """Documents that have a label from `first` to `last`; a memory-mapped matrix is released as it is read."""
    documents = [np.empty(0, np.int64)]
    for begin, end in row_pieces(labels.indptr, LABELS_AT_ONCE):
        ends = labels.indptr[begin : end + 1] - labels.indptr[begin]
        piece = labels.indices[labels.indptr[begin] : labels.indptr[end]]
        cumulative = np.concatenate([[0], np.cumsum((piece >= first) & (piece <= last))])
        documents.append(begin + np.flatnonzero(np.diff(cumulative[ends])))
        release_pages(piece)
    return np.concatenate(documents)


def _best_buckets(sums: np.ndarray, choices: int, offered: np.ndarray | None) -> np.ndarray:
    """The buckets with the highest sums among those offered, best first; ties by index."""
    if offered is None:
        offered = np.argpartition(-sums, choices - 1, axis=1)[:, :choices]
    offered = np.sort(offered, axis=1)
    order = np.argsort(-np.take_along_axis(sums, offered.astype(np.int64), 1), axis=1, kind="stable")
    return np.take_along_axis(offered, order[:, :choices], 1)
