"""Fixtures of the tests of commands."""

import pytest

from report.drawn import leave_out_drawing


@pytest.fixture(scope="module", autouse=True)
def _no_drawing():
    """Reports are written here all the time; their charts have tests of their own, and a command's process draws them."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_drawing(patch)
        yield
