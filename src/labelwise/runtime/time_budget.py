"""What is left of the old time budgets, until everything takes a `Budget` as an argument."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from labelwise.errors import ConfigError
from labelwise.runtime.budget import NO_LIMIT as NO_LIMIT
from labelwise.runtime.budget import RECORD_FILE as RECORD_FILE
from labelwise.runtime.budget import Budget
from labelwise.runtime.budget import OutOfTimeError as OutOfTimeError

TimeBudget = Budget
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a time span as it is typed: 90, 90s, 10m, 1.5h."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h)?", text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if seconds <= 0:
        raise ConfigError(f"'{text}' is not a time span; accepted: 90, 90s, 10m, 2h")
    return seconds


def timed_blocks(order: np.ndarray, budget: TimeBudget) -> Iterator[np.ndarray]:
    """`Budget.blocks`."""
    return budget.blocks(order)
