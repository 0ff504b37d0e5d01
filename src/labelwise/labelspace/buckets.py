"""Buckets: R independent tables, each of which assigns every label to one of B buckets.

Two labels are distinguished by a single table in which they are in different buckets, so R tables of B buckets encode
many more labels than R x B. Tables come from a hash (nothing to store), from a random partition into equal parts, or
from outside; stored tables take 16 bits per label where B allows.
"""

from __future__ import annotations

import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.config import Config
from labelwise.data.csr import pick_rows
from labelwise.data.dataset import row_pieces
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.io.tensors import counts_of, in_range, release_pages
from labelwise.kernels.buckets import least_loaded, murmur_buckets, universal_rows
from labelwise.runtime.progress import progress
from labelwise.runtime.threads import ranges, run_all, threads

Hash = Literal["murmur", "universal", "balanced"]
DAMAGED = (OSError, ValueError, OverflowError, SyntaxError, tokenize.TokenError)
"""What damaged headers of .npy files raise."""
PRIME = (1 << 31) - 1
"""The modulus of the 2-universal hash; also the maximum number of labels."""
MAX_BUCKETS = 1 << 24


@dataclass(frozen=True, eq=False)
class BucketTables:
    """Some repetitions of a code, by number.

    Parameters
    ----------
    n_items
        Number of labels (or features).
    n_buckets
        Number of buckets per table.
    numbers
        Numbers of the repetitions; a table depends on its own number only.
    hash
        ``murmur``: MurmurHash3 with the number as its seed, bit for bit the tables of the original MACH.
        ``universal``: ((a x + b) mod p) mod B. ``balanced``: a random partition into equal parts.
    seed
        Seed of universal and balanced tables.
    given
        Tables from elsewhere, by number; they replace those of the hash.
    """

    n_items: int
    n_buckets: int
    numbers: tuple[int, ...]
    hash: Hash = "murmur"
    seed: int = 0
    given: Mapping[int, np.ndarray] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.n_items <= PRIME:
            raise ConfigError(f"buckets are possible for 1 to {PRIME:,} labels, got {self.n_items:,}")
        if not 1 <= self.n_buckets <= MAX_BUCKETS:
            raise ConfigError(f"buckets: must be from 1 to {MAX_BUCKETS:,}, got {self.n_buckets:,}")

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that holds a bucket's index."""
        return bucket_dtype(self.n_buckets)

    def of(self, numbers: Sequence[int]) -> BucketTables:
        """Other repetitions of the same code."""
        return BucketTables(self.n_items, self.n_buckets, tuple(numbers), self.hash, self.seed, self.given)

    def table(self, number: int) -> np.ndarray:
        """The bucket of every label in one repetition."""
        if self.given is not None and number in self.given:
            return self.given[number]
        table = np.empty(self.n_items, self.dtype)
        if self.hash == "balanced":
            order = np.random.default_rng([self.seed, number]).permutation(self.n_items)
            table[order] = np.arange(self.n_items) % self.n_buckets
        else:
            parts = ranges(self.n_items, threads())
            run_all(lambda part: self._write_hashes(number, part[0], table[part[0] : part[1]]), parts)
        return table

    def rows(self, begin: int, end: int) -> np.ndarray:
        """The buckets of the labels begin to end - 1, [labels, repetitions]; for hashes only, which need no storage."""
        rows = np.empty((end - begin, len(self)), self.dtype)
        if self.hash == "universal":
            universal_rows(begin, *self._factors, PRIME, self.n_buckets, rows)
        else:
            for column, number in enumerate(self.numbers):
                self._write_hashes(number, begin, rows[:, column])
        return rows

    def rows_of(self, items: np.ndarray) -> np.ndarray:
        """The buckets of any labels [labels, repetitions]; for the universal hash only."""
        factors, shifts = self._factors
        mixed = (items.astype(np.int64)[:, None] * factors + shifts) % PRIME
        return (mixed % self.n_buckets).astype(self.dtype)

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """a and b of all repetitions."""
        pairs = [universal_factors(self.seed, number) for number in self.numbers]
        return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)

    def side_by_side(self) -> np.ndarray:
        """All tables as [labels, repetitions]: the buckets of one label are consecutive in memory."""
        tables = np.empty((self.n_items, len(self)), self.dtype)
        for column, number in enumerate(self.numbers):
            tables[:, column] = self.table(number)
        return tables

    def _write_hashes(self, number: int, first: int, out: np.ndarray) -> None:
        if self.hash == "murmur":
            murmur_buckets(first, len(out), number, self.n_buckets, out)
            return
        a, b = universal_factors(self.seed, number)
        universal_rows(first, np.array([a]), np.array([b]), PRIME, self.n_buckets, out[:, None])

    # --- files of the original MACH ---

    def write_lookups(self, folder: str | Path) -> None:
        """Write the tables in the format of the original MACH: bucket_order, class_order and counts as int64 .npy."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for number in self.numbers:
            table = self.table(number)
            order, offsets = members(table, self.n_buckets)
            for name, array in (("bucket_order", table), ("class_order", order), ("counts", offsets)):
                np.save(target / f"{name}_{number}.npy", array.astype(np.int64))


def read_lookups(folder: str | Path, n_items: int, n_buckets: int, numbers: Sequence[int]) -> dict[int, np.ndarray]:
    """Read and check tables written by the original MACH."""
    return {number: _read_lookup(Path(folder), number, n_items, n_buckets) for number in numbers}


def _read_lookup(folder: Path, number: int, n_items: int, n_buckets: int) -> np.ndarray:
    path = folder / f"bucket_order_{number}.npy"
    try:
        table = np.lib.format.open_memmap(path, mode="r")  # only plain arrays: neither archives nor objects
    except DAMAGED as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"cannot read a table of buckets: {why}", path) from None
    try:
        return checked_table(table, n_items, n_buckets, str(path))
    except ModelFormatError as error:
        raise DataError(str(error)) from None


def checked_table(table: np.ndarray, n_items: int, n_buckets: int, where: str) -> np.ndarray:
    """A table from outside as `bucket_dtype`, checked: every entry must be a bucket's index."""
    if table.ndim != 1 or table.dtype.kind not in "iu" or len(table) != n_items:
        raise ModelFormatError(
            f"{where}: expected a table of {n_items:,} integers, got {table.dtype} of shape {table.shape}"
        )
    if not in_range(table, n_buckets):
        raise ModelFormatError(f"{where}: buckets must be from 0 to {n_buckets - 1:,}, got others")
    return np.ascontiguousarray(table, bucket_dtype(n_buckets))


def bucket_dtype(n_buckets: int) -> np.dtype:
    """The smallest type that holds indices of so many buckets."""
    return np.dtype(np.uint16 if n_buckets <= 1 << 16 else np.uint32)


def universal_factors(seed: int, number: int) -> tuple[int, int]:
    """The random a and b of a 2-universal hash."""
    random = np.random.default_rng([seed, number])
    return int(random.integers(1, PRIME)), int(random.integers(0, PRIME))


def members(table: np.ndarray, n_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The labels of each bucket: labels sorted by bucket and then by id, and the offsets of the buckets."""
    order = np.argsort(table, kind="stable")
    offsets = np.zeros(n_buckets + 1, np.int64)
    np.cumsum(np.bincount(table, minlength=n_buckets), out=offsets[1:])
    return order, offsets


def expected_collisions(n_labels: int, n_buckets: int, repetitions: int) -> float:
    """Expected number of pairs of labels that share their bucket in every table, so always get equal scores."""
    return math.exp(math.log(n_labels) + math.log(max(n_labels - 1, 1e-300) / 2) - repetitions * math.log(n_buckets))


def repetitions_needed(n_labels: int, n_buckets: int, probability: float) -> int:
    """Repetitions so that the probability that some pair of labels collides in all of them is at most `probability`."""
    if n_buckets < 2:
        raise ConfigError("one bucket cannot distinguish labels; at least 2 are needed")
    return max(1, math.ceil(2 * math.log(n_labels / math.sqrt(probability)) / math.log(n_buckets)))


# --- repartition ---
# Learned buckets: labels move to buckets that score high for their documents (IRLI, Gupta et al. 2021).
#
# Random hashing assigns unrelated labels to the same bucket. After some epochs the bucket scores of each label's
# training documents are summed, and the label moves to the least loaded of the best few buckets; training continues
# from there. Scores are summed for a block of labels at a time, so that no labels x buckets matrix is needed.
#
# Labels of the same documents prefer the same buckets in every table: with a free choice they would share all buckets
# and could not be distinguished. So each label may choose only among some buckets, drawn by a hash that differs per
# table.

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
    return least_loaded(preferred, order, n_buckets).astype(bucket_dtype(n_buckets))


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
