"""A clock that stands still, and trials of a known duration: what `auto` tries does not depend on the machine."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from common import Clock
from labelwise.tuning import auto as search
from labelwise.tuning.ladder import read_trial, run_trial

SECONDS = 0.05


@contextmanager
def steady(seconds=None):
    """Inside the block a trial takes `seconds[name]` on a clock that nothing else moves; yields the clock."""
    clock = Clock()

    def timed(trial):
        spent = (seconds or {}).get(trial.name, SECONDS)
        return replace(trial, seconds=spent, predict_seconds=0.0)

    def run(workspace, name, *others):
        trial = timed(run_trial(workspace, name, *others))
        clock.now += trial.seconds
        return trial

    def read(*arguments):
        found = read_trial(*arguments)
        return None if found is None else timed(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", clock)
        patch.setattr(search, "run_trial", run)
        patch.setattr(search, "read_trial", read)
        yield clock
