"""Fixtures of the tests of sweeps."""

import pytest

from sweep.planted import fork_trials


@pytest.fixture(autouse=True)
def _forked_trials(monkeypatch):
    fork_trials(monkeypatch)
