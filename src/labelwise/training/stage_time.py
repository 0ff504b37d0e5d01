"""The time budget of one training: when to take the last step, and which validations there is time for.

A validation in the middle may take half of the remaining time, since what is learned after it is of use only if it is
validated as well; time for a last one is reserved. If the first would already take longer, there is none, and the last
weights are kept.
"""

from __future__ import annotations

import math
import time
from collections import deque

from labelwise.time_budget import TimeBudget

STEPS = 8
"""Steps whose mean duration is expected of the next one."""
LATE = 0.02
"""Fraction of the time budget that the last step may end late."""
RESERVE = 1.1
"""Time reserved for the last validation, as a multiple of the duration of the one before."""


class StageTime:
    """When a training has to end.

    Parameters
    ----------
    budget
        Of this training.
    round_seconds
        Duration of the last validation with its callbacks, if there was one before an interruption.
    """

    def __init__(self, budget: TimeBudget, round_seconds: float | None) -> None:
        self.budget, self.round_seconds = budget, round_seconds
        self.durations: deque[float] = deque(maxlen=STEPS)
        self._began = time.monotonic()

    def begin(self) -> None:
        """A step, or a round of validation, begins."""
        self._began = time.monotonic()

    def end_step(self) -> None:
        """The step has ended."""
        self.durations.append(time.monotonic() - self._began)

    def end_round(self) -> None:
        """The round has ended."""
        self.round_seconds = time.monotonic() - self._began

    def give_up_rounds(self) -> None:
        """A round was longer than it may be; the remaining time only becomes less."""
        if self.round_seconds is None:
            self.round_seconds = math.inf

    def is_over(self, has_best: bool) -> bool:
        """Whether the next step is expected to end late: by half of it, or by some hundredths of the budget.

        With `has_best` time for the last round is reserved, which decides between those weights and the last ones; the
        next step must then end before it.
        """
        if not self.budget.is_limited:
            return False
        step, left = sum(self.durations) / max(len(self.durations), 1), self.budget.remaining()
        if has_best and self.round_seconds and math.isfinite(self.round_seconds):
            return left - RESERVE * self.round_seconds < step
        return left <= 0 or left < step - min(LATE * self.budget.seconds, step / 2)

    def has_time_for_round(self) -> bool:
        """Whether there is time for a round now and another at the end. The duration of the first is not known."""
        return self.budget.remaining() >= 2 * (self.round_seconds or 0.0)

    def has_time_for_last_round(self) -> bool:
        """Whether there is time for a round at the end."""
        return self.round_seconds is not None and self.budget.remaining() >= self.round_seconds

    def fraction(self, spent: float) -> float:
        """Fraction of the time of this training that is used, after `spent` seconds; 0 without a limit."""
        left = self.budget.remaining()
        return spent / (spent + left) if math.isfinite(left) and spent > 0 else 0.0
