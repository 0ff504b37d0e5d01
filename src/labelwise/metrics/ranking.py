"""Precision, recall, R-precision and nDCG at k.

Each formula returns a numerator and a denominator per document of a block; the metric is the sum of numerators
divided by the sum of denominators. An average over documents has a denominator of 1 per document. Keeping the two
separate lets documents be streamed and resampled, and makes precision a ratio of whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from labelwise.metrics.formulas import DocumentBlock

Terms = tuple[np.ndarray, np.ndarray | int]


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


FORMULAS: dict[str, Callable[[DocumentBlock, int], Terms]] = {
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
