"""A budget of wall-clock seconds: when work has to end, and which fraction of the time a part of it may take.

Seconds are those of the clock: other processes and the compilation of kernels count, and so does the time before an
interruption, which a record on disk remembers.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labelwise.errors import ConfigError, LabelwiseError
from labelwise.formatting import duration
from labelwise.io.atomic import replacing

log = logging.getLogger("labelwise")

RECORD_SECONDS = 5.0
"""Seconds between two records of the time spent; a kill loses at most so much, and one step."""
RECORD_FILE = "time.json"
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 4096
"""Documents that are worked on between two looks at the clock."""


class OutOfTimeError(Exception):
    """Work that is of no use unless it is complete would not end before its budget does."""


class EarlyEnds:
    """How often a budget has ended work before it was complete; the parts of a budget share one count."""

    count = 0


@dataclass(frozen=True)
class Budget:
    """When work has to end.

    Parameters
    ----------
    seconds
        What the user has set; work that a clock cut short belongs to this number. Infinite without a limit.
    deadline
        End of this work, or of this part of it, on the monotonic clock.
    records
        Records of the time spent, which are kept up to date whenever the time is checked.
    """

    seconds: float = math.inf
    deadline: float = math.inf
    records: tuple[TimeRecord, ...] = ()
    early_ends: EarlyEnds = field(default_factory=EarlyEnds, compare=False, repr=False)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.deadline)

    def limited(self, seconds: float | None, record: Path | None = None, begin: float | None = None) -> Budget:
        """A budget that starts now, or at `begin`, inside this one; the earlier deadline counts.

        None is no further limit. With a file to record the time spent in, what an earlier attempt has spent counts.
        """
        if seconds is None:
            return self
        begin = time.monotonic() if begin is None else begin
        kept = () if record is None else (TimeRecord(record, begin),)
        deadline = begin + seconds - sum(one.before for one in kept)
        if deadline >= self.deadline:
            return replace(self, records=(*self.records, *kept))
        early_ends = self.early_ends if self.is_limited else EarlyEnds()
        return Budget(seconds, deadline, (*self.records, *kept), early_ends)

    def part(self, fraction: float, reserve: float = 0.0) -> Budget:
        """The budget of the next part of the work: a fraction of the remaining time.

        It ends `reserve` seconds earlier, by at most half of its time.
        """
        if not self.is_limited:
            return self
        seconds = fraction * self.remaining()
        return replace(self, deadline=time.monotonic() + seconds - min(reserve, seconds / 2))

    def reserving(self, seconds: float) -> Budget:
        """The budget of work that has to leave so many seconds for what follows."""
        return replace(self, deadline=self.deadline - seconds)

    def for_new_work(self) -> Budget:
        """The same time for other work, whose early ends are counted separately."""
        return replace(self, early_ends=EarlyEnds())

    def remaining(self) -> float:
        """Seconds left, 0 if the budget is spent."""
        now = time.monotonic()
        for record in self.records:
            record.update(now)
        return max(self.deadline - now, 0.0)

    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self.remaining() <= 0.0

    def exceeded(self) -> float:
        """Seconds since the budget was spent, 0 before."""
        return max(time.monotonic() - self.deadline, 0.0)

    def allows(self, begin: float, done: float, total: float) -> bool:
        """Whether work that began at `begin` is expected to end in time, when `done` of `total` is done."""
        return (time.monotonic() - begin) * (total - done) <= self.remaining() * done if self.is_limited else True

    def check_pace(self, begin: float, done: float, total: float) -> None:
        """Raise `OutOfTimeError` unless work that has to be complete is expected to be so in time."""
        if not self.allows(begin, done, total):
            raise OutOfTimeError

    def refuse_tasks(self, what: str) -> None:
        """Raise where a budget would divide work that runs at the same time elsewhere."""
        if self.is_limited:
            raise ConfigError(
                f"{what}: a time budget is for one process, which measures its own pace; leave out time_budget or "
                "--launcher"
            )

    def end_early(self) -> None:
        """Record that work ends before it is complete, because there is no time for the rest."""
        self.early_ends.count += self.is_limited

    @property
    def ended_early(self) -> bool:
        """Whether work was ended early, in this part of the time or in another."""
        return self.early_ends.count > 0

    def blocks(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Blocks of indices, taken from `order` and sorted, until all are taken or the time is used.

        The caller works on a block before it asks for the next. There is always a first block; the duration of a block
        decides the size of the next, so that the last one ends near the deadline. For a sample, the order is random.
        """
        count, done, size = len(order), 0, SMALLEST_BLOCK
        while done < count:
            block = np.sort(order[done : done + size])
            begin = time.monotonic()
            yield block
            done += len(block)
            pace = (time.monotonic() - begin) / len(block)
            allowed = count if pace == 0 else int(min(self.remaining() / pace, count))
            if allowed < SMALLEST_BLOCK and (allowed < count - done or self.expired()):
                return
            size = min(max(allowed // 4, SMALLEST_BLOCK), LARGEST_BLOCK)

    def write_records(self) -> None:
        """Write the records of the time spent now."""
        for record in self.records:
            record.write(time.monotonic())

    def __str__(self) -> str:
        return duration(self.seconds)


NO_LIMIT = Budget()


class TimeRecord:
    """Seconds spent on work by all attempts at it, in a file; an interrupted attempt counts until its last record."""

    def __init__(self, path: Path, begin: float) -> None:
        self.path, self.begin, self.written = path, begin, begin
        self.before = _recorded_seconds(path)
        self._failed = False

    def update(self, now: float) -> None:
        """Write the record if the last one is some seconds old; threads may do so at the same time."""
        if now - self.written >= RECORD_SECONDS:
            self.write(now)

    def write_if_old(self) -> None:
        """Write the record unless hardly any time was spent: nothing is lost with less."""
        if time.monotonic() - self.begin >= 1.0:
            self.write(time.monotonic())

    def remove(self) -> None:
        """Remove the record: the work is done."""
        self.path.unlink(missing_ok=True)

    def write(self, now: float) -> None:
        """Write the seconds spent so far. If that is not possible, a warning is logged once."""
        self.written = now
        if self._failed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps({"seconds": round(self.before + now - self.begin, 3)}) + "\n")
        except (LabelwiseError, OSError) as error:
            self._failed = True
            log.warning("%s; if this is interrupted, the time spent is not known to the next attempt", error)


def _recorded_seconds(path: Path) -> float:
    """Seconds in a record; 0 if it is missing or damaged."""
    try:
        seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
