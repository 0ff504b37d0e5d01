"""How a training went, from the lines of metrics.jsonl: loss and metric by epoch, and what the monitor saw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Points = list[tuple[float, float | None]]
"""Epochs and values; None is a number that was none, such as the loss of a training that blew up."""

READ = ("probe_loss", "floor", "cosine", "effective_rank", "distinct", "commonest", "attention_entropy")


@dataclass(frozen=True)
class Course:
    """The course of one training; all empty for a method that has no steps."""

    loss: Points = field(default_factory=list)
    """The mean training loss of each round, from one validation to the next."""
    metric: Points = field(default_factory=list)
    """The metric on held-out documents."""
    readings: dict[str, Points] = field(default_factory=dict)
    """What the collapse monitor measured, by its name in the file; attention entropy as the mean over layers."""
    rate: float | None = None
    """The highest rate used."""
    verdict: str = ""
    reason: str = ""
    remedy: str = ""
    """The monitor's last word."""

    @property
    def final_loss(self) -> float | None:
        """The loss of the last round; None when it was no number, or there was none."""
        return self.loss[-1][1] if self.loss else None

    @property
    def floor(self) -> float | None:
        """The loss of the best scores that are the same for every document."""
        known = [value for _, value in self.readings.get("floor", []) if value is not None]
        return known[-1] if known else None

    @property
    def above_floor(self) -> Points:
        """The probe's loss as a multiple of the floor."""
        floor = self.floor
        return [] if not floor else [(at, v and v / floor) for at, v in self.readings.get("probe_loss", [])]


def read_course(entries: Sequence[dict[str, Any]], metric: str) -> Course:
    """The course of the last training in a run's metrics.

    Steps that were taken twice count as the second time; those that were only taken before an interruption do not.
    """
    fits = [entry for entry in entries if entry.get("stage") == "fit" and _finite(entry.get("step"))]
    if not fits:
        return Course()
    part, last = fits[-1].get("part"), fits[-1]["step"]
    fits = [entry for entry in fits if entry.get("part") == part and entry["step"] <= last]
    by_step = {
        valid: {entry["step"]: entry for entry in fits if (entry.get("split") == "valid") is valid}
        for valid in (False, True)
    }
    logged, seen = (dict(sorted(by_step[valid].items())) for valid in (False, True))
    words = next((e for e in reversed(list(seen.values())) if "verdict" in e), {})
    readings = {name: _points(seen.values(), name) for name in READ}
    return Course(
        loss=_rounds(list(logged.values()), sorted(seen)),
        metric=_points(seen.values(), metric),
        readings={name: points for name, points in readings.items() if any(v is not None for _, v in points)},
        rate=max((e["rate"] for e in logged.values() if _finite(e.get("rate"))), default=None),
        verdict=str(words.get("verdict") or ""),
        reason=str(words.get("reason") or ""),
        remedy=str(words.get("remedy") or ""),
    )


def _rounds(logged: Sequence[dict[str, Any]], ends: Sequence[float]) -> Points:
    """Mean losses between validations (or whole epochs, where there are none), each line weighed by its steps."""
    points: Points = []
    total, steps, before = 0.0, 0.0, 0.0
    for place, entry in enumerate(logged):
        step, loss, epoch = entry["step"], entry.get("loss"), entry.get("epoch", 0)
        total += (step - before) * (loss if _finite(loss) else math.nan)
        steps, before = steps + step - before, step
        closes = step in ends if ends else epoch == int(epoch)
        if steps and (closes or place == len(logged) - 1):
            points.append((epoch, total / steps if math.isfinite(total) else None))
            total = steps = 0.0
    return points


def _points(entries: Iterable[dict[str, Any]], name: str) -> Points:
    """Values of one name by epoch; a name that is there with null is a number that was none."""
    points: Points = []
    for entry in entries:
        if name in entry and _finite(entry.get("epoch")):
            value = entry[name]
            if isinstance(value, list):
                known = [one for one in value if _finite(one)]
                value = sum(known) / len(known) if known else None
            points.append((entry["epoch"], value if _finite(value) else None))
    return points


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
