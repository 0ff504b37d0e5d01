"""Learning-rate schedules as plain functions of the step, so that there is no state to save."""

from __future__ import annotations

import math
from collections.abc import Callable

from labelwise.networks.settings import ScheduleConfig

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """The factor of the learning rate by step (counted from 0), for a training of `total_steps`.

    The factor is never 0: the first step of a warm-up over W steps has 1/W, and the last one of a decreasing schedule
    is one step above its end. Steps beyond the total keep the last value.
    """
    total = max(1, total_steps)
    warmup = round(config.warmup * total) if config.warmup < 1 else int(config.warmup)
    decreasing = max(1, total - warmup)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if config.kind == "constant":
            return 1.0
        done = min(step - warmup, decreasing - 1) / decreasing
        return config.final + (1.0 - config.final) * shape(done)

    def shape(done: float) -> float:
        if config.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        return (1.0 - done) ** (config.power if config.kind == "poly" else 1.0)

    return factor
