"""A budget of wall-clock seconds: when work has to end, and which fraction of the time a part of it may take.

Seconds are those of the clock: other processes and the compilation of kernels count, and so does the time before an
interruption, which a record on disk remembers.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labelwise.errors import ConfigError, LabelwiseError
from labelwise.formatting import duration
from labelwise.io.atomic import replacing

log = logging.getLogger("labelwise")

RECORD_SECONDS = 5.0
"""Seconds between two records of the time spent; a kill loses at most so much, and one step."""
RECORD_FILE, SAMPLE_FILE = "time.json", "documents.json"
"""Files with unfinished work: the seconds spent, and how many documents there was time to prepare."""
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 4096
"""Documents that are worked on between two looks at the clock."""


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a time span as it is typed: 90, 90s, 10m, 1.5h."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h)?", text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if seconds <= 0:
        raise ConfigError(f"'{text}' is not a time span; accepted: 90, 90s, 10m, 2h")
    return seconds


class OutOfTimeError(Exception):
    """Work that is of no use unless it is complete would not end before its budget does."""


class EarlyEnd:
    """Whether a budget has ended work before it was complete; the parts of a budget share one."""

    happened = False


@dataclass(frozen=True)
class TimeBudget:
    """When work has to end.

    Parameters
    ----------
    seconds
        What the user has set, for messages and fingerprints; infinite without a limit.
    deadline
        End of this work, or of this part of it, on the monotonic clock.
    records
        Records of the time spent, which are kept up to date whenever the time is checked.
    early_end
        Whether work was ended early.
    """

    seconds: float = math.inf
    deadline: float = math.inf
    records: tuple[TimeRecord, ...] = ()
    early_end: EarlyEnd = field(default_factory=EarlyEnd, compare=False, repr=False)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.deadline)

    def limited(self, seconds: float | None, record: Path | None = None, begin: float | None = None) -> TimeBudget:
        """A budget that starts now, or at `begin`, inside this one; the earlier deadline counts.

        None is no further limit. With a file to record the time spent in, what an earlier attempt has spent counts.
        """
        if seconds is None:
            return self
        begin = time.monotonic() if begin is None else begin
        kept = None if record is None else TimeRecord(record, begin)
        records = self.records if kept is None else (*self.records, kept)
        deadline = begin + seconds - (0.0 if kept is None else kept.before)
        if deadline >= self.deadline:
            return replace(self, records=records)
        return TimeBudget(seconds, deadline, records, self.early_end if self.is_limited else EarlyEnd())

    def remaining(self) -> float:
        """Seconds left, 0 if the budget is spent."""
        now = time.monotonic()
        for record in self.records:
            record.update(now)
        return max(self.deadline - now, 0.0)

    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self.remaining() <= 0.0

    def write_records(self) -> None:
        """Write the records of the time spent now."""
        for record in self.records:
            record.write(time.monotonic())

    def exceeded(self) -> float:
        """Seconds since the budget was spent, 0 before."""
        return max(time.monotonic() - self.deadline, 0.0) if self.is_limited else 0.0

    def end_early(self) -> None:
        """Record that work ends before it is complete, because there is no time for the rest."""
        if self.is_limited:
            self.early_end.happened = True

    @property
    def ended_early(self) -> bool:
        """Whether work was ended early, in this part of the time or in another."""
        return self.early_end.happened

    def for_new_work(self) -> TimeBudget:
        """The same time for other work: whether that is ended early is recorded separately."""
        return replace(self, early_end=EarlyEnd())

    def part(self, fraction: float) -> TimeBudget:
        """The budget of the next part of the work, which may take this fraction of the remaining time."""
        return replace(self, deadline=time.monotonic() + fraction * self.remaining()) if self.is_limited else self

    def reserving(self, seconds: float) -> TimeBudget:
        """The budget of work that has to leave so many seconds for what follows."""
        return replace(self, deadline=self.deadline - seconds)

    def allows(self, begin: float, done: float, total: float) -> bool:
        """Whether work that began at `begin` is expected to end in time, when `done` of `total` is done."""
        if not self.is_limited:
            return True
        return (time.monotonic() - begin) * (total - done) <= self.remaining() * done

    def __str__(self) -> str:
        return duration(self.seconds)


_local = threading.local()


@contextmanager
def complete_within(budget: TimeBudget) -> Iterator[None]:
    """Inside the block, work that calls `check_pace` raises `OutOfTimeError` once it cannot end in time."""
    before = getattr(_local, "budget", None)
    _local.budget = budget
    try:
        yield
    finally:
        _local.budget = before


def check_pace(begin: float, done: float, total: float) -> None:
    """Raise `OutOfTimeError` if work that has to be complete is not expected to end before the budget of its block.

    It began at `begin`, and `done` of `total` is done. Without such a block nothing happens.
    """
    budget = getattr(_local, "budget", None)
    if budget is not None and not budget.allows(begin, done, total):
        raise OutOfTimeError


NO_LIMIT = TimeBudget()


def timed_blocks(order: np.ndarray, budget: TimeBudget) -> Iterator[np.ndarray]:
    """Blocks of indices, taken from `order` and sorted, until all are taken or the time is used.

    The caller works on a block before it asks for the next. There is always a first block; the duration of a block
    decides the size of the next, so that the last one ends near the deadline. For a sample, the order is a random one.
    """
    count, done, size = len(order), 0, SMALLEST_BLOCK
    while done < count:
        block = np.sort(order[done : done + size])
        begin = time.monotonic()
        yield block
        done += len(block)
        pace = (time.monotonic() - begin) / len(block)
        allowed = count if pace == 0 else int(min(budget.remaining() / pace, count))
        if allowed < SMALLEST_BLOCK and (allowed < count - done or budget.expired()):
            return
        size = min(max(allowed // 4, SMALLEST_BLOCK), LARGEST_BLOCK)


class TimeRecord:
    """Seconds spent on work by all attempts at it, in a file; an interrupted attempt counts until its last record."""

    def __init__(self, path: Path, begin: float) -> None:
        self.path, self.begin, self.written = path, begin, begin
        self.before = _recorded_seconds(path)
        self._lock = threading.Lock()
        self._failed = False

    def update(self, now: float) -> None:
        """Write the record if the last one is some seconds old. Thread-safe; one thread writes."""
        if now - self.written < RECORD_SECONDS or not self._lock.acquire(blocking=False):
            return
        try:
            self.write(now)
        finally:
            self._lock.release()

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

    def write_if_old(self) -> None:
        """Write the record of an attempt that has ended, unless it took less than a second: nothing is lost then."""
        now = time.monotonic()
        if now - self.begin >= 1.0:
            self.write(now)

    def remove(self) -> None:
        """Remove the record: the work is done."""
        self.path.unlink(missing_ok=True)


def _recorded_seconds(path: Path) -> float:
    """Seconds in a record; 0 if it is missing or damaged."""
    try:
        seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
