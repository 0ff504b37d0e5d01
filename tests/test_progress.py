"""Lines of progress where standard error is not a terminal, on a clock that the tests move."""

import pytest

from common import Clock
from labelwise.runtime.progress import progress, stage


@pytest.fixture
def clock(monkeypatch, caplog):
    moved = Clock()
    monkeypatch.setattr("time.monotonic", moved)
    monkeypatch.setattr("sys.stderr", None)
    caplog.set_level("INFO")
    return moved


def test_a_line_at_least_every_half_minute(clock, caplog):
    with progress("predicting", 6875) as step:
        for _ in range(275):
            clock.now += 1
            step(25)
    assert caplog.messages[0] == "predicting: 750 of 6,875, 4 min left"
    assert caplog.messages[-1] == "predicting: 6,750 of 6,875, 5 s left"
    assert len(caplog.messages) == 9


def test_none_for_short_work(clock, caplog):
    with progress("reading", 100) as step:
        for _ in range(29):
            clock.now += 1
            step(1)
    assert caplog.messages == []


def test_amounts_details_and_budgets(clock, caplog):
    cases = [
        (dict(total=4e9, unit="bytes"), 1e9, "work: 1.0 GB of 4.0 GB, 2 min left"),
        (dict(total=8.0, unit="work"), 2.0, "work: 25 %, 2 min left"),
        (dict(total=None), 2000, "work: 2,000"),
        (dict(total=400, detail=lambda: "loss 0.25"), 100, "work: 100 of 400, loss 0.25, 2 min left"),
        (dict(total=400, seconds_left=lambda: 20.0), 100, "work: 100 of 400, 20 s left"),
        (dict(total=10**6), 1, "work: 1 of 1,000,000, 347 d 5 h left"),
    ]
    for settings, amount, expected in cases:
        caplog.clear()
        with progress("work", **settings) as step:
            clock.now += 30
            step(amount)
        assert caplog.messages == [expected]


def test_resumed_work_is_not_faster_than_it_is(clock, caplog):
    with progress("training", 100) as step:
        step.start_at(50)
        clock.now += 60
        step(10)
    assert caplog.messages == ["training: 60 of 100, 4 min left"]


def test_stages_stand_in_front(clock, caplog):
    with stage("tree 2 of 3"), stage("level 1 of 3"), progress("training", 100) as step:
        clock.now += 31
        step(50)
    with progress("training", 100) as step:
        clock.now += 31
        step(50)
    assert caplog.messages == [
        "tree 2 of 3, level 1 of 3, training: 50 of 100, 31 s left",
        "training: 50 of 100, 31 s left",
    ]


def test_work_inside_counts_for_the_work_outside(clock, caplog):
    with progress("predicting", 1000) as outer:
        for _ in range(2):
            with outer.part(500), progress("levels", 2) as levels:
                for _ in range(2):
                    with levels.part(1), progress("documents", 500) as step:
                        for _ in range(5):
                            clock.now += 10
                            step(100)
    assert caplog.messages == [
        f"predicting: {done} of 1,000, {left} left"
        for done, left in ((150, "3 min"), (300, "2 min"), (450, "2 min"), (600, "1 min"), (750, "50 s"), (900, "20 s"))
    ]
