"""What equal scores can move: the lowest and the highest P@k over all orders of predictions that tie.

Tools break ties differently (lower id first, higher id first, or by chance), and on coarse scores that alone
can be worth more than a point. Ours go to the lower label id; the range says how much that choice matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from labelwise.metrics.block import Block


class TieCounter:
    """Fewest and most hits within each cut, and in how many documents a tie runs to the end of the list."""

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts = np.array(cuts, np.int64)
        self.totals = np.zeros((3, len(cuts)), np.int64)

    def count(self, block: Block) -> np.ndarray:
        """The three numbers at each cut, for one block."""
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
        """Documents where labels beyond the list may share the score at place k: the range may be wider."""
        return {f"P@{k}": int(count) for k, count in zip(self.cuts.tolist(), self.totals[2], strict=True)}
