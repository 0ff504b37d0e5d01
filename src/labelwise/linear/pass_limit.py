"""Limits the passes of the solver so that the classifiers of a level are trained before a time budget ends.

The time per pass is measured while chunks are trained. As long as all of them can be trained to the end, nothing is
limited; with less time the remaining chunks get fewer passes, and when it is over only constants: a label is then
scored by its frequency among the documents of its node.
"""

from __future__ import annotations

import threading

from labelwise.features.rows import FeatureRows
from labelwise.parallel import threads
from labelwise.time_budget import TimeBudget

SECONDS_PER_ENTRY = 2e-8
"""Seconds per pass and non-zero feature for 16 labels, expected before anything is measured."""


class SolverPace:
    """How long a pass of the solver takes per unit of work, over all levels and trees.

    Before anything is measured, it is estimated from the number of features per document.
    """

    def __init__(self, features: FeatureRows) -> None:
        entries = len(features.indices) / max(features.shape[0], 1) + features.n_dense
        self.work, self.seconds = 1.0, SECONDS_PER_ENTRY * max(entries, 1.0)
        self.trained = 0
        self._lock = threading.Lock()

    def add(self, work: float, seconds: float) -> None:
        """Work times passes that have taken so many seconds on one thread."""
        with self._lock:
            self.work, self.seconds = self.work + work, self.seconds + seconds
            self.trained += 1

    def per_pass(self) -> float:
        """Seconds of one thread per unit of work and pass."""
        return self.seconds / self.work


class PassLimit:
    """Passes for the chunks of a level.

    Parameters
    ----------
    budget, whole
        Time budget of this level, and of the whole tree: a chunk gets one pass at least until that one ends.
    pace
        What was measured so far.
    """

    def __init__(self, budget: TimeBudget, whole: TimeBudget, pace: SolverPace) -> None:
        self.budget, self.whole, self.pace = budget, whole, pace
        self.left = 0.0
        """Work of the chunks that have not begun."""
        self.cut: dict[int, int] = {}
        """Passes of the chunks that were not trained to the end, by first child."""
        self._lock = threading.Lock()

    def passes(self, work: float, max_passes: int) -> int:
        """Maximum number of passes for the next chunk; 0 if there is no time, except for the first chunk of all."""
        if not self.budget.is_limited or work == 0:  # a node whose labels have no documents takes no time
            return max_passes
        with self._lock:
            left, self.left = max(self.left, work), self.left - work
        available = self.budget.remaining() * min(threads(), left / work)
        allowed = int(min(available / (self.pace.per_pass() * left), max_passes))
        return max(allowed, 0 if self.whole.expired() and self.pace.trained else 1)

    def add(self, first: int, work: float, passes: float, seconds: float, limit: int | None) -> None:
        """Record a chunk that has taken `passes` passes over `work`; with a `limit` it was not trained to the end."""
        if passes > 0:
            self.pace.add(work * passes, seconds)
        if limit is not None:
            self.whole.end_early()
            with self._lock:
                self.cut[first] = limit

    def __str__(self) -> str:
        few = [passes for passes in self.cut.values() if passes]
        parts = []
        if few:
            span = f"{min(few)}" if min(few) == max(few) else f"{min(few)} to {max(few)}"
            parts.append(f"{len(few):,} groups of classifiers to {span} passes")
        if len(few) < len(self.cut):
            parts.append(f"{len(self.cut) - len(few):,} groups to the frequencies of their labels")
        return f"the time budget limited {' and '.join(parts)}"
