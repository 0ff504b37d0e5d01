"""Effect of ties: the lowest and highest P@k over all orders of predictions with equal scores.

Tools break ties differently (lower id first, higher id first, or at random), and with coarse scores that alone
can change P@k by more than a point. Here the lower label id comes first; the range shows how much that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from labelwise.metrics.block import DocumentBlock


class TieCounter:
    """Fewest and most hits per cut, and the number of documents in which a tie extends to the end of the list."""

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts = np.array(cuts, np.int64)
        self.totals = np.zeros((3, len(cuts)), np.int64)

    def count(self, block: DocumentBlock) -> np.ndarray:
        """The three counts per cut, for one block."""
        from labelwise.kernels.metrics.hits import tie_range

        lowest, highest, cut_off = totals = np.zeros_like(self.totals)
        tie_range(block.scores, block.hits, block.filled, self.cuts, lowest, highest, cut_off)
        return totals

    def ranges(self, n_documents: int) -> dict[str, tuple[float, float]]:
        """Lowest and highest P@k."""
        return {
            f"P@{k}": (int(low) / (k * n_documents), int(high) / (k * n_documents))
            for k, low, high in zip(self.cuts.tolist(), *self.totals[:2], strict=True)
        }

    def cut_off(self) -> dict[str, int]:
        """Documents in which labels beyond the list may have the score at rank k: the range may be wider."""
        return {f"P@{k}": int(count) for k, count in zip(self.cuts.tolist(), self.totals[2], strict=True)}
