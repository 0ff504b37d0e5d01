"""Labels as numbers in mixed radix: H digits instead of one of C classes.

A label's code is its rank in an order of the labels; its digits, the most significant first, are the outputs that H
heads learn. The product of the radices may exceed the number of labels: the surplus codes are the highest ones, so at
every depth the valid prefixes are the first `n_nodes(depth)` numbers, and only the last node has fewer children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from labelwise.errors import ConfigError
from labelwise.kernels.buckets import best_codes
from labelwise.runtime.threads import ranges, run_all, threads

MAX_CODES = 1 << 62
"""Codes and their arithmetic fit into 64 bits."""
FINENESS = 8
"""Labels are halved down to this fraction of the last digit's values."""


@dataclass(frozen=True, eq=False)
class DigitCode:
    """A mixed-radix code of labels."""

    radices: tuple[int, ...]
    """Values of each digit, the most significant digit first."""
    n_labels: int
    label_at: np.ndarray | None = None
    """The label of each code, a permutation (int32); None: codes are the labels' indices."""

    def __post_init__(self) -> None:
        if not self.radices or any(radix < 1 for radix in self.radices):
            raise ConfigError(f"radices: need at least one digit of at least 1 value, got {list(self.radices)}")
        if max(self.radices) > max(self.n_labels, 1):
            raise ConfigError(
                f"radices: {max(self.radices):,} values of a digit are more than the {self.n_labels:,} labels; "
                "`labelwise plan --digits` proposes some"
            )
        if prod(self.radices) > MAX_CODES:
            raise ConfigError(f"radices: more than {MAX_CODES:,} codes; use fewer digits")
        if prod(self.radices) < self.n_labels:
            given = " x ".join(map(str, self.radices))
            raise ConfigError(
                f"radices: {given} = {prod(self.radices):,} codes are too few for {self.n_labels:,} labels; "
                f"`labelwise plan --digits --labels {self.n_labels}` proposes some"
            )

    @property
    def depth(self) -> int:
        """Number of digits."""
        return len(self.radices)

    @property
    def surplus(self) -> int:
        """Codes without a label."""
        return prod(self.radices) - self.n_labels

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Codes per value of each digit: the product of all radices after it."""
        return tuple(prod(self.radices[digit + 1 :]) for digit in range(self.depth))

    def n_nodes(self, digit: int) -> int:
        """Number of distinct prefixes that end with this digit (from 0) and have a label."""
        return -(-self.n_labels // self.places[digit])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Values of each digit that some label has."""
        limits = [-(-self.n_labels // place) for place in self.places]
        return tuple(min(radix, limit) for radix, limit in zip(self.radices, limits, strict=True))

    @cached_property
    def code_of(self) -> np.ndarray:
        """The code of each label."""
        codes = np.arange(self.n_labels, dtype=np.int64)
        if self.label_at is None:
            return codes
        inverse = np.empty_like(codes)
        inverse[self.label_at] = codes
        return inverse

    def labels(self, codes: np.ndarray) -> np.ndarray:
        """The labels of codes, -1 for surplus and negative codes."""
        codes = np.asarray(codes)
        valid = (codes >= 0) & (codes < self.n_labels)
        safe = np.where(valid, codes, 0)
        return np.where(valid, safe if self.label_at is None else self.label_at[safe], -1).astype(np.int64)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Digits [..., depth] of labels."""
        codes = self.code_of[np.asarray(labels)]
        return np.stack([codes // place % radix for place, radix in zip(self.places, self.radices, strict=True)], -1)

    def node_of(self, digit: int) -> np.ndarray:
        """For each label its prefix that ends with this digit, as one number."""
        return self.code_of // self.places[digit]


def balanced_radices(n_labels: int, depth: int) -> tuple[int, ...]:
    """Near-equal radices with few surplus codes: each is the ceiling root of what remains, the largest first."""
    remaining, radices = max(n_labels, 1), []
    for digits in range(depth, 0, -1):
        radix = max(1, round(remaining ** (1 / digits)))
        while radix**digits < remaining:
            radix += 1
        while radix > 1 and (radix - 1) ** digits >= remaining:
            radix -= 1
        radices.append(radix)
        remaining = -(-remaining // radix)
    return tuple(sorted(radices, reverse=True))


def group_radices(n_labels: int, n_groups: int) -> tuple[int, int]:
    """Two radices for about `n_groups` groups: fewer if the last ones would be empty."""
    if n_groups > n_labels:
        raise ConfigError(f"num_group: {n_groups:,} groups are more than the {n_labels:,} labels")
    per_group = -(-n_labels // n_groups)
    while n_groups * per_group - n_labels >= per_group:
        n_groups -= 1
        per_group = -(-n_labels // n_groups)
    return n_groups, per_group


def make_code(
    radices: Sequence[int], n_labels: int, order: str, counts: np.ndarray, seed: int, features: Any = None
) -> DigitCode:
    """A code whose labels are in the given order.

    Parameters
    ----------
    radices
        Values of each digit.
    n_labels
        Number of labels.
    order
        `index`; `random`; `frequency`: labels are dealt, the most frequent first, to the groups of the first digit in
        turn, so that groups have about the same number of documents; `clustered`: recursive halving of the labels'
        features, so that labels with a common prefix are similar.
    counts
        Documents of each label.
    seed
        Of the random order and of clustering.
    features
        Features of the labels [labels, features], for `clustered`.
    """
    code = DigitCode(tuple(radices), n_labels)
    if order == "index" or n_labels < 2:
        return code
    if order == "random":
        labels = np.random.default_rng(seed).permutation(n_labels)
    elif order == "frequency":
        labels = _dealt(np.argsort(-np.asarray(counts), kind="stable"), code.n_nodes(0), code.places[0])
    elif order == "clustered":
        if features is None:
            raise ConfigError("order: clustered needs features of the labels; use index, frequency or random")
        from labelwise.labelspace.clustering import halve

        labels = halve(features, max(1, code.radices[-1] // FINENESS), seed)[0]
    else:
        raise ConfigError(f"order: '{order}' is not index, frequency, clustered or random")
    return DigitCode(code.radices, n_labels, labels.astype(np.int32))


def _dealt(labels: np.ndarray, n_groups: int, per_group: int) -> np.ndarray:
    """Labels dealt to groups of `per_group` in turn, as the concatenation of the groups; the last may be smaller."""
    sizes = np.full(n_groups, per_group)
    sizes[-1] = len(labels) - per_group * (n_groups - 1)
    turns = np.concatenate([np.flatnonzero(sizes > turn) for turn in range(per_group)])
    return labels[np.argsort(turns, kind="stable")]


# --- digit search ---
# Decode scores of digits to labels: the exact k best of all labels, for any number of digits.
#
# The score of a label is the sum of its digits' scores. For usual k neither all sums nor all codes are computed:
# documents x k x radix additions per digit suffice (`kernels/buckets.py`). Surplus codes are never among the
# best.

INSERTIONS_PER_LABEL = 16
"""The kernel inserts into sorted lists, k x k moves; beyond so many per label it is faster to sort all labels."""
FEW = 1 << 18
"""Additions up to which one thread is used."""


def best_labels_of_digits(scores: np.ndarray, code: DigitCode, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and scores [documents, k] of the labels with the highest sums, best first.

    Parameters
    ----------
    scores
        float32 [documents, sum of `code.sizes`]: the scores of each digit's values, digit after digit.
    code
        The digits of the labels.
    k
        Labels per document. Ties are in the order of ids; ranks without a finite score have id -1 and score -inf.
    """
    if scores.ndim != 2 or scores.shape[1] != sum(code.sizes):
        raise ValueError(f"scores have shape {scores.shape}, the code has {sum(code.sizes)} values of digits")
    scores = np.ascontiguousarray(scores, np.float32)
    found = k if code.label_at is None else k + 1  # one more shows whether other labels tie with the last
    best = np.full((len(scores), found), -np.inf, np.float32)
    codes = np.full((len(scores), found), -1, np.int64)
    radices = np.array(code.radices, np.int64)
    parts = ranges(len(scores), threads() if len(scores) * k * scores.shape[1] > FEW else 1)
    if k * k > INSERTIONS_PER_LABEL * code.n_labels:
        run_all(lambda part: _sort_all(scores, code, best, codes, *part), parts)
    else:
        run_all(lambda part: best_codes(scores, radices, code.n_labels, best, codes, *part), parts)
    ids = code.labels(codes)
    return (ids, best) if code.label_at is None else _by_label(ids, best, scores, code, k)


def _by_label(
    ids: np.ndarray, best: np.ndarray, scores: np.ndarray, code: DigitCode, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first k of k + 1 labels whose ties are in the order of codes, with ties in the order of labels."""
    for document in np.flatnonzero((best[:, k] == best[:, k - 1]) & (best[:, k] > -np.inf)):
        sums = _all_sums(scores[document], code)[code.code_of]
        above = np.flatnonzero(sums > best[document, k])
        ids[document, :k] = np.concatenate([above, np.flatnonzero(sums == best[document, k])])[:k]
        best[document, :k] = sums[ids[document, :k]]
    ids, best = ids[:, :k], best[:, :k]
    order = np.lexsort((ids, -best), axis=1)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)


def _all_sums(scores: np.ndarray, code: DigitCode) -> np.ndarray:
    """The scores of all codes for one document, with the kernel's additions."""
    sums = np.zeros(1, np.float32)
    for digit, part in enumerate(np.split(scores, np.cumsum(code.sizes)[:-1])):
        sums = (sums[:, None] + part).ravel()[: code.n_nodes(digit)]
    return sums


def _sort_all(scores: np.ndarray, code: DigitCode, best: np.ndarray, codes: np.ndarray, begin: int, end: int) -> None:
    """What the kernel does, by sorting the sums of all labels of one document after the other."""
    for document in range(begin, end):
        sums = _all_sums(scores[document], code)
        order = np.argsort(-sums, kind="stable")[: best.shape[1]]
        order = order[sums[order] > -np.inf]  # NaN is not
        best[document, : len(order)], codes[document, : len(order)] = sums[order], order
