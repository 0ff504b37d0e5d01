"""Propensity-scored precision and nDCG: rare labels count more, as they are missing from the truth more often.

Jain, Prabhu and Varma (KDD 2016): a label with N_l of N training documents is assumed to be annotated, where it
applies, with probability p_l = 1 / (1 + C (N_l + B)^-A), C = (ln N - 1) (B + 1)^A. Each hit counts 1 / p_l.
The metric is the sum over all documents divided by the sum of the ideal lists, which rank each document's labels
by 1 / p_l: a ratio of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labelwise.errors import ConfigError, did_you_mean
from labelwise.metrics.ranking import Terms, ratio

if TYPE_CHECKING:
    from labelwise.metrics.formulas import DocumentBlock

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


FORMULAS: dict[str, Callable[[DocumentBlock, int], Terms]] = {"PSP": ps_precision, "PSnDCG": ps_ndcg}
