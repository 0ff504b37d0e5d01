"""Learned buckets: labels move to buckets that their documents' networks like already (IRLI, Gupta et al. 2021).

Random hashing puts labels together that have nothing in common. After some epochs each label looks at the scores that
its own training documents give to buckets, and goes to the least loaded of the best few; training continues from there.
Scores are added up for a block of labels at a time, so that labels x buckets never exist.

Labels of the same documents like the same buckets, in every table: free to choose, they end up together everywhere, and
nothing can tell them apart. So each label is offered only some buckets, drawn by a hash of its own in every table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.codes.buckets import BucketTables, narrow
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
"""Documents that tell how high a bucket's scores are as a rule."""
FIRST_OFFER = 1 << 20
"""Hashes of offers are numbered from here on, above those of repetitions."""

Scores = Callable[[np.ndarray], np.ndarray]
"""Scores [buckets, documents] of some training documents."""


class RepartitionConfig(Config):
    """Labels move to buckets that suit them."""

    every: Count = 2
    """Epochs of training before labels move; after the last move all of `training.epochs` follow."""
    times: Count = 1
    """How often labels move."""
    offers: Count = 4
    """Buckets that a label may go to, others in each table; as many as all buckets or more: any bucket."""
    choices: Count = 2
    """Best of these buckets, of which the label takes the least loaded; fewer than offers."""

    def check_choices(self, n_buckets: int) -> None:
        """Raise ValueError where labels would go to the least loaded bucket whatever their documents like."""
        among = min(self.offers, n_buckets)
        if self.choices >= among:
            raise ValueError(
                f"repartition.choices: the best {self.choices} of {among} buckets are all that a label is offered, so "
                "that nothing learned would count; give fewer choices or more offers"
            )

    def offered(self, n_labels: int, n_buckets: int, seed: int, number: int) -> BucketTables | None:
        """A table for each offer of one repetition; None where labels may go to any bucket."""
        if self.offers >= n_buckets:
            return None
        numbers = tuple(range(FIRST_OFFER + number * self.offers, FIRST_OFFER + (number + 1) * self.offers))
        return BucketTables(n_labels, n_buckets, numbers, "universal", seed)


def moved(
    labels: Any, table: np.ndarray, scores: Scores, n_buckets: int, choices: int, offers: BucketTables | None = None
) -> np.ndarray:
    """The new bucket of each label; labels that no document has stay where they are, and are counted last.

    A table of `offers` for each bucket that a label may go to; None: to any.
    """
    counts = counts_of(labels.indices, labels.shape[1])
    liked = np.repeat(table[:, None], min(choices, n_buckets if offers is None else len(offers)), 1)
    usual = _usual(scores, labels.shape[0])

    def lifts(documents: np.ndarray) -> np.ndarray:
        return scores(documents) - usual

    block = max(1, SUMS_AT_ONCE // n_buckets)
    with progress("moving labels", labels.shape[1]) as step:
        for begin in range(0, labels.shape[1], block):
            end = min(begin + block, labels.shape[1])
            used = begin + np.flatnonzero(counts[begin:end])
            if len(used):
                offered = None if offers is None else offers.rows_of(used)
                liked[used] = _liked(_sums(labels, used, lifts, n_buckets), liked.shape[1], offered)
            step(end - begin)
    order = np.argsort(-counts, kind="stable")
    kernel: Any = least_loaded
    return kernel(liked, order, n_buckets).astype(narrow(n_buckets))


def _usual(scores: Scores, n_documents: int) -> np.ndarray:
    """The mean score of each bucket [buckets, 1]: labels are drawn to what their documents like more than others do."""
    sample = np.unique(np.linspace(0, n_documents - 1, SAMPLE).astype(np.int64))
    pieces = (sample[begin : begin + DOCUMENTS_AT_ONCE] for begin in range(0, len(sample), DOCUMENTS_AT_ONCE))
    totals = np.stack([scores(piece).sum(1, dtype=np.float64) for piece in pieces])
    return (totals.sum(0) / len(sample)).astype(np.float32)[:, None]


def _sums(labels: Any, used: np.ndarray, scores: Scores, n_buckets: int) -> np.ndarray:
    """The scores of all buckets, added up over the documents of each of the `used` labels, all of a range."""
    documents = _documents(labels, used[0], used[-1])
    sums = np.zeros((len(used), n_buckets), np.float32)
    for begin in range(0, len(documents), DOCUMENTS_AT_ONCE):
        some = documents[begin : begin + DOCUMENTS_AT_ONCE]
        rows = pick_rows(labels, some)
        wanted = (rows.indices >= used[0]) & (rows.indices <= used[-1]) & (rows.data > 0)
        columns = np.repeat(np.arange(len(some)), np.diff(rows.indptr))[wanted]
        found, places = np.unique(rows.indices[wanted], return_inverse=True)
        ones = np.ones(len(places), np.float32)
        true = sparse.csr_array((ones, (places, columns)), shape=(len(found), len(some)))
        sums[np.searchsorted(used, found)] += true @ scores(some).T
    return sums


def _documents(labels: Any, first: int, last: int) -> np.ndarray:
    """Documents that have a label from `first` to `last`; a mapped matrix is not held."""
    found = [np.empty(0, np.int64)]
    for begin, end in row_pieces(labels.indptr, LABELS_AT_ONCE):
        ends = labels.indptr[begin : end + 1] - labels.indptr[begin]
        piece = labels.indices[labels.indptr[begin] : labels.indptr[end]]
        so_far = np.concatenate([[0], np.cumsum((piece >= first) & (piece <= last))])
        found.append(begin + np.flatnonzero(np.diff(so_far[ends])))
        release_pages(piece)
    return np.concatenate(found)


def _liked(sums: np.ndarray, choices: int, offered: np.ndarray | None) -> np.ndarray:
    """The buckets with the highest sums among those offered, best first; equal ones by number."""
    if offered is None:
        offered = np.argpartition(-sums, choices - 1, axis=1)[:, :choices]
    offered = np.sort(offered, axis=1)
    order = np.argsort(-np.take_along_axis(sums, offered.astype(np.int64), 1), axis=1, kind="stable")
    return np.take_along_axis(offered, order[:, :choices], 1)
