"""Precision, recall, R-precision and nDCG at k.

Each formula gives, for every document of a block, a numerator and a denominator; the metric is the sum of the
first over the sum of the second. An average over documents has a denominator of 1 a document. Keeping the two
apart lets documents be streamed and resampled, and makes precision a ratio of whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from labelwise.metrics.block import Block

Terms = tuple[np.ndarray, np.ndarray | int]


def precision(block: Block, k: int) -> Terms:
    """P@k: hits in the first k places by k, whether or not the document has k labels or k predictions."""
    return block.hit_counts[:, k], k


def recall(block: Block, k: int) -> Terms:
    """R@k: hits in the first k places by the document's labels."""
    return ratio(block.hit_counts[:, k], block.n_true), 1


def r_precision(block: Block, k: int) -> Terms:
    """RP@k: hits in the first k places by the most there could be, min(k, labels)."""
    return ratio(block.hit_counts[:, k], np.minimum(block.n_true, k)), 1


def ndcg(block: Block, k: int) -> Terms:
    """nDCG@k: the discounted sum of hits by that of min(k, labels) hits at the top."""
    return ratio(block.discounted[:, k], block.ideal[np.minimum(block.n_true, k)]), 1


FORMULAS: dict[str, Callable[[Block, int], Terms]] = {
    "P": precision,
    "R": recall,
    "RP": r_precision,
    "nDCG": ndcg,
}


def ratio(above: Any, below: Any) -> np.ndarray:
    """One by the other, and 0 where there is nothing to divide by."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    return np.divide(above, below, out=np.zeros(above.shape), where=below > 0)


def discounts(k: int) -> np.ndarray:
    """What a hit is worth at places 1 to k: 1 / log2(place + 1)."""
    return 1.0 / np.log2(np.arange(2, k + 2))
