"""What a run provides to a method while it trains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labelwise.formatting import duration
from labelwise.runtime.process_group import rank
from labelwise.runtime.time_budget import NO_LIMIT, RECORD_FILE, TimeBudget

log = logging.getLogger("labelwise")

NOTED = 0.05
"""A time budget that is exceeded by more than this fraction is reported."""


def _no_log(**_numbers: Any) -> None:
    pass


@dataclass(frozen=True)
class FitContext:
    """Where unfinished work is kept, where numbers are logged, and how much time there is."""

    checkpoints: Path | None = None
    """Folder for unfinished work, so that a killed run resumes; None to keep nothing."""
    log: Callable[..., None] = field(default=_no_log)
    """Takes numbers by name (`log(step=10, loss=0.3)`) for metrics.jsonl."""
    budget: TimeBudget = NO_LIMIT
    """When this work has to end: of a run, then of all of `fit`, then of a stage of it."""

    scratch: Path | None = None
    """Folder for temporary files: set for data larger than memory, whose features are then kept there and mapped."""

    def within(self, budget: TimeBudget) -> FitContext:
        """The context of a stage that has its own part of the time."""
        return replace(self, budget=budget)


@contextmanager
def limited_time(context: FitContext, seconds: float | None, begin: float | None = None) -> Iterator[FitContext]:
    """The context of a `fit` that has so many seconds, including those of interrupted attempts.

    It began at `begin` on the monotonic clock; None: now. The time spent is recorded in the folder of checkpoints until
    the fit is done.
    """
    path = None if context.checkpoints is None or rank() > 0 else context.checkpoints / RECORD_FILE
    budget = context.budget.limited(seconds, path, begin)
    own = budget.records[len(context.budget.records) :]
    if any(record.before for record in own):
        log.info("time budget: %s of %s were spent before", duration(sum(r.before for r in own)), duration(seconds))
    try:
        yield context.within(budget)
    except BaseException:
        for record in own:
            record.write_if_old()
        raise
    for record in own:
        record.remove()
    if budget.exceeded() > NOTED * budget.seconds:
        log.warning(
            "time budget of %s: training ended %s late; what a model cannot do without, such as reading its texts and "
            "one step of each stage, is done in any case", budget, duration(budget.exceeded()),
        )  # fmt: skip
