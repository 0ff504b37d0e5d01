"""How the time budget of a run is divided among its stages.

Training gets the time that remains after reading, except a reserve for what follows. Calibration and evaluation predict
for as many documents as there is time for; inspection and report are left out if there is none.
"""

from __future__ import annotations

import logging
from pathlib import Path

from labelwise.runtime.budget import NO_LIMIT, Budget

log = logging.getLogger("labelwise")

RESERVE, RESERVE_SECONDS = 0.2, 10.0
"""Fraction of the budget, and seconds in addition, that training leaves for what follows; at most half of the rest."""
TAIL, TAIL_SECONDS = 0.04, 6.0
"""The same of predicting for metrics, tables and files."""
CALIBRATION = 1 / 3
"""Fraction of the time for predicting that calibration may take, if there are test documents."""
REPORT_SECONDS = 8.0
"""Seconds that a report is expected to take."""


class RunTime:
    """The time of a run.

    Parameters
    ----------
    seconds
        Its time budget; None is no limit.
    record
        File in which the time spent is recorded until the run is finished.
    begin
        When it began, on the monotonic clock; None: now.
    """

    def __init__(self, seconds: float | None, record: Path, begin: float | None = None) -> None:
        self.budget = NO_LIMIT.limited(seconds, record, begin)
        self._total = seconds or 0.0
        self._refit_seconds = 0.0

    def for_fit(self, refit: bool) -> Budget:
        """Of training; half of the time if the model is trained once more on all documents."""
        if not self.budget.is_limited:
            return NO_LIMIT
        reserve = min(RESERVE * self._total + RESERVE_SECONDS, self.budget.remaining() / 2)
        budget = self.budget.reserving(reserve).part(0.5 if refit else 1.0)
        self._refit_seconds = budget.remaining() if refit else 0.0
        return budget

    def for_refit(self) -> Budget:
        """Of training on all documents, after the evaluation."""
        return self._before_tail()

    def for_calibration(self, has_test: bool) -> Budget:
        """Of predicting for the calibration."""
        return self.for_evaluation().part(CALIBRATION if has_test else 1.0)

    def for_evaluation(self) -> Budget:
        """Of predicting for the evaluation."""
        return self._before_tail().reserving(self._refit_seconds)

    def _before_tail(self) -> Budget:
        return self.budget.reserving(TAIL * self._total + TAIL_SECONDS)

    def allows(self, what: str, seconds: float) -> bool:
        """Whether there is time for a stage that can be left out; if not, that is logged."""
        if self.budget.remaining() >= seconds:
            return True
        log.info("%s: left out, the time budget of %s is used", what, self.budget)
        return False

    def interrupted(self) -> None:
        """Record the time spent; the next attempt counts it."""
        for record in self.budget.records:
            record.write_if_old()

    def finished(self) -> None:
        """Remove the record."""
        for record in self.budget.records:
            record.remove()
