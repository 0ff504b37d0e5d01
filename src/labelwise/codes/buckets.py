"""Buckets: R independent tables, each of which assigns every label to one of B buckets.

Two labels are distinguished by a single table in which they are in different buckets, so R tables of B buckets encode
many more labels than R x B. Tables come from a hash (nothing to store), from a random partition into equal parts, or
from outside; stored tables take 16 bits per label where B allows.
"""

from __future__ import annotations

import math
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.checks import in_range
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.kernels.buckets.murmur import murmur_buckets
from labelwise.kernels.buckets.universal_hash import universal_rows
from labelwise.parallel import ranges, run_all, threads

Hash = Literal["murmur", "universal", "balanced"]
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
        if self.hash == "balanced":
            order = np.random.default_rng([self.seed, number]).permutation(self.n_items)
            table = np.empty(self.n_items, self.dtype)
            table[order] = np.arange(self.n_items) % self.n_buckets
            return table
        table = np.empty(self.n_items, self.dtype)
        run_all(
            lambda part: self._write_hashes(number, part[0], table[part[0] : part[1]]), ranges(self.n_items, threads())
        )
        return table

    def rows(self, begin: int, end: int) -> np.ndarray:
        """The buckets of the labels begin to end - 1, [labels, repetitions]; for hashes only, which need no storage."""
        if self.hash == "balanced" or self.given:
            raise ValueError("only hashes can be computed for single labels")
        rows = np.empty((end - begin, len(self)), self.dtype)
        if self.hash == "universal":
            kernel: Any = universal_rows
            kernel(begin, *self._factors, PRIME, self.n_buckets, rows)
        else:
            for column, number in enumerate(self.numbers):
                self._write_hashes(number, begin, rows[:, column])
        return rows

    def rows_of(self, items: np.ndarray) -> np.ndarray:
        """The buckets of any labels [labels, repetitions]; for the universal hash only."""
        if self.hash != "universal" or self.given:
            raise ValueError("only the universal hash can be computed for labels in any order")
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
            kernel: Any = murmur_buckets
            kernel(first, len(out), number, self.n_buckets, out)
            return
        a, b = universal_factors(self.seed, number)
        universal: Any = universal_rows
        universal(first, np.array([a]), np.array([b]), PRIME, self.n_buckets, out[:, None])

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
    except (
        OSError,
        ValueError,
        OverflowError,
        SyntaxError,
        tokenize.TokenError,
    ) as error:  # damaged headers raise any of these
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
