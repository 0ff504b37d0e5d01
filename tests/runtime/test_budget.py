"""Budgets of the runtime, on a clock that the tests move."""

import json

import numpy as np
import pytest

from common import Clock
from labelwise.runtime.budget import (
    NO_LIMIT,
    RECORD_FILE,
    SMALLEST_BLOCK,
    OutOfTimeError,
)
from labelwise.runtime.job import Job, limited_time


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr("time.monotonic", moved)
    return moved


def test_parts_and_limits_are_inside_the_whole(clock):
    assert (NO_LIMIT.remaining(), NO_LIMIT.expired(), NO_LIMIT.exceeded()) == (np.inf, False, 0.0)
    assert NO_LIMIT.part(0.5) == NO_LIMIT.limited(None) == NO_LIMIT
    whole = NO_LIMIT.limited(100.0)
    clock.now += 20
    part = whole.part(0.25)
    assert (part.remaining(), part.seconds, whole.part(1.0, reserve=30.0).remaining()) == (20.0, 100.0, 50.0)
    assert whole.part(0.25, reserve=500.0).remaining() == 10.0, "at most half is reserved"
    assert whole.limited(500.0).remaining() == 80.0, "the earlier deadline counts"
    assert (whole.limited(500.0).seconds, whole.limited(10.0).seconds) == (100.0, 10.0)
    clock.now += 85
    assert (whole.remaining(), whole.expired(), whole.exceeded()) == (0.0, True, 5.0)


def test_early_ends_are_counted_by_all_parts_and_only_with_a_limit(clock):
    NO_LIMIT.end_early()
    assert not NO_LIMIT.ended_early
    whole = NO_LIMIT.limited(100.0)
    other = whole.for_new_work()
    whole.part(0.5).limited(3.0).end_early()
    assert (whole.ended_early, other.ended_early) == (True, False)


def test_work_that_has_to_be_complete_ends_as_soon_as_it_cannot_be(clock):
    begin, budget = clock.now, NO_LIMIT.limited(10.0)
    clock.now += 1
    budget.check_pace(begin, 10, 100)
    clock.now += 1
    with pytest.raises(OutOfTimeError):
        budget.check_pace(begin, 15, 100)
    NO_LIMIT.check_pace(begin, 15, 100)


def test_blocks_fill_the_time_and_no_more(clock):
    order = np.random.default_rng(0).permutation(100_000)
    begin, seen = clock.now, []
    for block in NO_LIMIT.limited(60.0).blocks(order):
        assert (np.diff(block) > 0).all()
        seen.append(block)
        clock.now += 0.01 * len(block)
    took = clock.now - begin
    assert 59 < took <= 60.0
    assert set(np.concatenate(seen)) == set(order[: round(took / 0.01)]), "the first of the order"
    assert [len(block) for block in NO_LIMIT.limited(0.0).blocks(order)][:1] == [SMALLEST_BLOCK]


def test_time_before_an_interruption_counts(clock, tmp_path, caplog):
    path = tmp_path / RECORD_FILE
    with pytest.raises(KeyboardInterrupt), limited_time(Job(tmp_path), 60.0) as first:
        clock.now += 12
        assert not first.budget.expired()  # this is where it is recorded: a kill does not ask
        assert json.loads(path.read_text()) == {"seconds": 12.0}
        clock.now += 3
        raise KeyboardInterrupt
    clock.now += 1000  # nobody works
    with limited_time(Job(tmp_path), 60.0) as second:
        assert second.budget.remaining() == 45.0
    assert list(tmp_path.iterdir()) == []
    path.write_text("damaged")
    with limited_time(Job(tmp_path), 60.0) as third:
        assert third.budget.remaining() == 60.0
        clock.now += 70.5
    assert "training ended 10.5 s late" in caplog.text


def test_a_budget_that_is_exceeded_is_reported(clock, caplog):
    for took, lines in ((60.0, 0), (62.0, 0), (70.5, 1)):
        caplog.clear()
        with limited_time(Job(), 60.0):
            clock.now += took
        assert len(caplog.records) == lines
    assert "time budget of 1 min 00 s: training ended 10.5 s late" in caplog.text
