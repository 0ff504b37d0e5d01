"""Learning-rate schedules as plain functions of the step, so that there is no state to keep or to restore."""

from __future__ import annotations

import math
from collections.abc import Callable

from labelwise.networks.settings import ScheduleConfig

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """The factor of the rate at a step (counted from 0), for a training of `total_steps`.

    Every step moves: the first step of a warm-up over W steps has 1/W of the rate, and the last step of a falling
    schedule is one stair above zero. Steps beyond the total stay at that last value.
    """
    total = max(1, total_steps)
    warmup = round(config.warmup * total) if config.warmup < 1 else int(config.warmup)
    falling = max(1, total - warmup)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if config.kind == "constant":
            return 1.0
        share = min(step - warmup, falling - 1) / falling
        return 1.0 - share if config.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))

    return factor
