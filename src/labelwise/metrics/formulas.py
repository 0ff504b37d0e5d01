"""Precision, recall, R-precision and nDCG at k.

Each formula returns a numerator and a denominator per document of a block; the metric is the sum of numerators
divided by the sum of denominators. An average over documents has a denominator of 1 per document. Keeping the two
separate lets documents be streamed and resampled, and makes precision a ratio of whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from labelwise.metrics.evaluate import DocumentBlock


Terms = tuple[np.ndarray, np.ndarray | int]

RESAMPLING_GROUPS = 4096
"""Groups of documents that the bootstrap draws from."""


def precision(block: DocumentBlock, k: int) -> Terms:
    """P@k: hits among the first k predictions divided by k, also for documents with fewer labels or predictions."""
    return block.hit_counts[:, k], k


def recall(block: DocumentBlock, k: int) -> Terms:
    """R@k: hits among the first k predictions divided by the number of labels."""
    return ratio(block.hit_counts[:, k], block.n_true), 1


def r_precision(block: DocumentBlock, k: int) -> Terms:
    """RP@k: hits among the first k predictions divided by the largest possible number, min(k, labels)."""
    return ratio(block.hit_counts[:, k], np.minimum(block.n_true, k)), 1


def ndcg(block: DocumentBlock, k: int) -> Terms:
    """nDCG@k: DCG divided by the ideal DCG, that of min(k, labels) hits at the top."""
    return ratio(block.discounted[:, k], block.ideal[np.minimum(block.n_true, k)]), 1


RANKING: dict[str, Callable[[DocumentBlock, int], Terms]] = {
    "P": precision,
    "R": recall,
    "RP": r_precision,
    "nDCG": ndcg,
}


def ratio(numerator: Any, denominator: Any) -> np.ndarray:
    """Numerator divided by denominator, and 0 where the denominator is 0."""
    above, below = np.broadcast_arrays(np.asarray(numerator, float), np.asarray(denominator, float))
    return np.divide(above, below, out=np.zeros(above.shape), where=below > 0)


def discounts(k: int) -> np.ndarray:
    """The weight of a hit at ranks 1 to k: 1 / log2(rank + 1)."""
    return 1.0 / np.log2(np.arange(2, k + 2))


# --- propensity ---
# Propensity-scored precision and nDCG: rare labels count more, as they are missing from the truth more often.
#
# Jain, Prabhu and Varma (KDD 2016): a label with N_l of N training documents is assumed to be annotated, where it
# applies, with probability p_l = 1 / (1 + C (N_l + B)^-A), C = (ln N - 1) (B + 1)^A. Each hit counts 1 / p_l.
# The metric is the sum over all documents divided by the sum of the ideal lists, which rank each document's labels
# by 1 / p_l: a ratio of sums.

DEFAULT = (0.55, 1.5)
_WIKIPEDIA, _AMAZON = (0.5, 0.4), (0.6, 2.6)

# A and B as the authors of the data sets use them. AmazonCat, Wiki10 and WikiSeeAlso have the default values,
# although several programs choose by "amazon" or "wiki" in the name.
CONSTANTS: dict[str, tuple[float, float]] = {
    "default": DEFAULT,
    "wikipedia": _WIKIPEDIA,
    "WikiLSHTC-325K": _WIKIPEDIA,
    "WikiTitles-500K": _WIKIPEDIA,
    "LF-WikiTitles-500K": _WIKIPEDIA,
    "Wiki-500K": _WIKIPEDIA,
    "Wikipedia-500K": _WIKIPEDIA,
    "LF-Wikipedia-500K": _WIKIPEDIA,
    "amazon": _AMAZON,
    "Amazon-670K": _AMAZON,
    "Amazon-3M": _AMAZON,
    "AmazonTitles-670K": _AMAZON,
    "AmazonTitles-3M": _AMAZON,
    "LF-Amazon-131K": _AMAZON,
    "LF-AmazonTitles-131K": _AMAZON,
    "LF-AmazonTitles-1.3M": _AMAZON,
    "EURLex-4K": DEFAULT,
    "EURLEX57K": DEFAULT,
    "AmazonCat-13K": DEFAULT,
    "AmazonCat-14K": DEFAULT,
    "Wiki10-31K": DEFAULT,
    "Delicious-200K": DEFAULT,
    "Delicious": DEFAULT,
    "Bibtex": DEFAULT,
    "Mediamill": DEFAULT,
    "RCV1-2K": DEFAULT,
    "WikiSeeAlso-350K": DEFAULT,
    "WikiSeeAlsoTitles-350K": DEFAULT,
    "LF-WikiSeeAlso-320K": DEFAULT,
    "LF-WikiSeeAlsoTitles-320K": DEFAULT,
}


@dataclass(frozen=True)
class Propensity:
    """The constants A and B and the number of training documents N, to be reported with every PSP value."""

    a: float
    b: float
    n_documents: int

    def weights(self, counts: np.ndarray) -> np.ndarray:
        """1 / p_l of labels with these numbers of training documents, which may be 0."""
        # Below three documents C would be negative and rare labels would count less than frequent ones.
        c = max(math.log(self.n_documents) - 1.0, 0.0) * (self.b + 1.0) ** self.a
        return 1.0 + c * (np.asarray(counts, float) + self.b) ** -self.a


def propensity_constants(given: str | tuple[float, float] | None) -> tuple[float, float]:
    """A and B from the name of a data set or family, a pair, or None for the default 0.55 and 1.5."""
    if given is None:
        return DEFAULT
    if isinstance(given, str):
        for name, constants in CONSTANTS.items():
            if _plain(name) == _plain(given):
                return constants
        raise ConfigError(
            f"there are no propensity constants for '{given}'; {did_you_mean(given, CONSTANTS)} "
            "Give a pair (A, B) for other data, or 'default' for (0.55, 1.5)."
        )
    try:
        a, b = (float(number) for number in given)
    except (TypeError, ValueError):
        raise ConfigError(f"propensity is a name or a pair of numbers (A, B), got {given!r}") from None
    if not (math.isfinite(a) and math.isfinite(b) and a >= 0 and b > 0):
        raise ConfigError(f"propensity constants need A >= 0 and B > 0, got A={a}, B={b}")
    return a, b


def _plain(name: str) -> str:
    """A data set's name in lower case, without hyphens, underscores and spaces."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter == ".")


def ps_precision(block: DocumentBlock, k: int) -> Terms:
    """PSP@k: sum of the weights of the hits, divided by the largest possible sum."""
    return block.gain_sums[:, k], block.best_gain_sums[:, k]


def ps_ndcg(block: DocumentBlock, k: int) -> Terms:
    """PSnDCG@k: PSP with discounts; a document's numerator and denominator are divided by its ideal unweighted DCG."""
    norm = block.ideal[np.minimum(block.n_true, k)]
    return ratio(block.discounted_gains[:, k], norm), ratio(block.best_discounted_gains[:, k], norm)


PROPENSITY_SCORED: dict[str, Callable[[DocumentBlock, int], Terms]] = {"PSP": ps_precision, "PSnDCG": ps_ndcg}


# --- thresholded ---
# F1 and coverage, for which predictions are a set: the first k of a list, or those that reach a threshold.
#
# Micro-F1 weights all (document, label) pairs equally, example-based F1 averages over documents, macro-F1 over labels.
# Macro-F1 and coverage need counts per label, so they are not sums over documents.


def micro_f1(block: DocumentBlock, k: int | None) -> Terms:
    """Twice the hits, divided by predictions plus labels, over all documents."""
    n_predicted = block.n_predicted(k)
    return 2 * block.hits_within(n_predicted), n_predicted + block.n_true


def example_f1(block: DocumentBlock, k: int | None) -> Terms:
    """F1 per document, 0 if it has neither labels nor predictions."""
    numerator, denominator = micro_f1(block, k)
    return ratio(numerator, denominator), 1


THRESHOLDED: dict[str, Callable[[DocumentBlock, int | None], Terms]] = {"micro-F1": micro_f1, "example-F1": example_f1}


# --- groups ---
# Metrics per group of labels (head, torso, tail), grouped by number of training documents.


@dataclass(frozen=True)
class GroupRow:
    """Metrics of the labels with `low` to `high` training documents (None: no limit).

    Parameters
    ----------
    n_labels
        Labels of this group in the label space; `n_test_labels` counts those that occur in the truth.
    occurrences, share
        Occurrences of labels of this group in the truth, and their fraction of all occurrences.
    contribution
        For each k, the part of P@k that is due to this group; the parts of all groups sum to P@k.
    recall
        For each k, the fraction of the occurrences that are among the first k predictions.
    """

    name: str
    low: int
    high: int | None
    n_labels: int
    n_test_labels: int
    occurrences: int
    share: float
    contribution: dict[int, float]
    recall: dict[int, float]


class LabelGroups:
    """The group of each label, and hits per group and rank.

    Parameters
    ----------
    counts
        Training documents per label.
    boundaries
        Lower bounds: (10, 100) gives tail 1-9, torso 10-99 and head 100 and more. Labels without a training
        document are always a separate group.
    depth
        Largest k.
    """

    def __init__(self, counts: np.ndarray, boundaries: Sequence[int], depth: int) -> None:
        self.lows = [0, 1, *boundaries]
        self.group_of = np.searchsorted(self.lows, counts, side="right") - 1
        self.hits = np.zeros((len(self.lows), depth), np.int64)

    def count(self, ids: np.ndarray, hits: np.ndarray) -> np.ndarray:
        """Hits per group and rank, for some documents."""
        n_groups, depth = self.hits.shape
        rows, columns = np.nonzero(hits[:, :depth])
        cells = self.group_of[ids[rows, columns]] * depth + columns
        return np.bincount(cells, minlength=n_groups * depth).reshape(n_groups, depth)

    def rows(self, occurrences: np.ndarray, cuts: Sequence[int], n_documents: int) -> list[GroupRow]:
        """The groups, most frequent labels first."""
        total = int(occurrences.sum())
        hits_within = np.cumsum(self.hits, axis=1)
        rows = []
        for group in reversed(range(len(self.lows))):
            members = self.group_of == group
            group_occurrences = int(occurrences[members].sum())
            high = None if group == len(self.lows) - 1 else self.lows[group + 1] - 1
            row = GroupRow(
                name=self._name(group, high),
                low=self.lows[group],
                high=high,
                n_labels=int(members.sum()),
                n_test_labels=int(np.count_nonzero(occurrences[members])),
                occurrences=group_occurrences,
                share=group_occurrences / total if total else 0.0,
                contribution={k: int(hits_within[group, k - 1]) / (k * n_documents) for k in cuts},
                recall={
                    k: int(hits_within[group, k - 1]) / group_occurrences if group_occurrences else 0.0 for k in cuts
                },
            )
            rows.append(row)
        return rows

    def _name(self, group: int, high: int | None) -> str:
        if group == 0:
            return "unseen"
        if len(self.lows) == 4:
            return ("tail", "torso", "head")[group - 1]
        return f"{self.lows[group]}+" if high is None else f"{self.lows[group]}-{high}"


def check_boundaries(boundaries: Sequence[int] | None) -> list[int]:
    """Validate group boundaries; None gives an empty list."""
    if boundaries is None:
        return []
    try:
        numbers = [int(number) for number in boundaries]
        whole = all(number == given for number, given in zip(numbers, boundaries, strict=True))
    except (TypeError, ValueError):
        raise ConfigError(f"groups are numbers of training documents such as (10, 100), got {boundaries!r}") from None
    increasing = all(low < high for low, high in zip([1, *numbers], numbers, strict=False))
    if not whole or not increasing:
        raise ConfigError(f"groups must be increasing whole numbers above 1, such as (10, 100); got {boundaries!r}")
    return numbers
