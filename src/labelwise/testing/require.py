"""Assertions with a sentence, which also hold under ``python -O`` and need no test runner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from labelwise.topk import TopK


def require(condition: bool, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def refused(error: type[Exception], contains: str = "") -> Iterator[None]:
    """What runs inside must raise this error, with a message that matches the pattern `contains`."""
    try:
        yield
    except error as raised:
        message = f"the message of the {error.__name__} must match {contains!r}, it is: {raised}"
        require(re.search(contains, str(raised)) is not None, message)
    else:
        raise AssertionError(f"a {error.__name__} must be raised, and none was")


def same_predictions(one: TopK, other: TopK) -> None:
    """Require that two `TopK` have the same labels and scores, to the last bit."""
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.scores, other.scores)
