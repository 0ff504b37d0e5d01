"""Time without compilation, which happens once."""

import logging
import time

import pytest
from numba import njit
from numba.core import event

from labelwise.runs.stopwatch import COMPILATION, _announce, stopwatch


def test_compilation_is_counted_apart_and_once(caplog):
    @njit
    def inner(number):
        return number + 1

    @njit
    def outer(number):
        return inner(number) * 2

    _announce.cache_clear()
    with caplog.at_level(logging.INFO), stopwatch() as first:
        begin = time.perf_counter()
        assert outer(3) == 8
        called = time.perf_counter() - begin
        time.sleep(0.05)
    assert 0 < first.compiling <= called
    assert first.seconds >= 0.05
    assert first.seconds + first.compiling >= called + 0.05
    assert [record.getMessage()[:17] for record in caplog.records].count("compiling kernels") == 1
    with stopwatch() as second:
        assert outer(4) == 10
    assert second.compiling == 0
    assert "compile" not in str(second)


def test_a_compilation_that_began_before_counts_from_the_start():
    with stopwatch() as watch:
        time.sleep(0.02)
        event.broadcast(event.Event(COMPILATION, event.EventStatus.END))
    assert watch.compiling >= 0.02


def test_what_fails_is_timed_too():
    with pytest.raises(ZeroDivisionError), stopwatch() as watch:
        time.sleep(0.01)
        raise ZeroDivisionError
    assert watch.seconds >= 0.01
