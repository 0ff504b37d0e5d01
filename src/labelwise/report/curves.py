"""Training curves from the lines of metrics.jsonl: loss, metric and collapse-monitor readings by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Points = list[tuple[float, float | None]]
"""Epochs and values; None is a value that was not finite, such as the loss of a diverged training."""

READINGS = ("probe_loss", "floor", "cosine", "effective_rank", "distinct", "commonest", "attention_entropy")


@dataclass(frozen=True)
class TrainingCurves:
    """The curves of one training; empty for a method without training steps."""

    loss: Points = field(default_factory=list)
    """The mean training loss between one validation and the next."""
    metric: Points = field(default_factory=list)
    """The metric on held-out documents."""
    readings: dict[str, Points] = field(default_factory=dict)
    """Measurements of the collapse monitor, by their names in the file; attention entropy as the mean over layers."""
    rate: float | None = None
    """The highest learning rate used."""
    verdict: str = ""
    reason: str = ""
    remedy: str = ""
    """Verdict, reason and remedy of the last monitor entry."""

    @property
    def final_loss(self) -> float | None:
        """The last mean training loss; None if it was not finite, or there is none."""
        return self.loss[-1][1] if self.loss else None

    @property
    def floor(self) -> float | None:
        """The loss of the best constant scores, equal for every document."""
        known = [value for _, value in self.readings.get("floor", []) if value is not None]
        return known[-1] if known else None

    @property
    def above_floor(self) -> Points:
        """The probe loss as a multiple of the floor."""
        floor = self.floor
        return [] if not floor else [(at, v and v / floor) for at, v in self.readings.get("probe_loss", [])]


def read_training_curves(entries: Sequence[dict[str, Any]], metric: str) -> TrainingCurves:
    """The curves of the last training in a run's metrics.

    Of steps repeated after a resume the later entry counts; steps beyond the last one, logged before the interruption,
    are ignored.
    """
    fits = [entry for entry in entries if entry.get("stage") == "fit" and _finite(entry.get("step"))]
    if not fits:
        return TrainingCurves()
    part, last = fits[-1].get("part"), fits[-1]["step"]
    fits = [entry for entry in fits if entry.get("part") == part and entry["step"] <= last]
    by_step = {
        valid: {entry["step"]: entry for entry in fits if (entry.get("split") == "valid") is valid}
        for valid in (False, True)
    }
    logged, validated = (dict(sorted(by_step[valid].items())) for valid in (False, True))
    judged = next((e for e in reversed(list(validated.values())) if "verdict" in e), {})
    readings = {name: _points(validated.values(), name) for name in READINGS}
    return TrainingCurves(
        loss=_mean_losses(list(logged.values()), sorted(validated)),
        metric=_points(validated.values(), metric),
        readings={name: points for name, points in readings.items() if any(v is not None for _, v in points)},
        rate=max((e["rate"] for e in logged.values() if _finite(e.get("rate"))), default=None),
        verdict=str(judged.get("verdict") or ""),
        reason=str(judged.get("reason") or ""),
        remedy=str(judged.get("remedy") or ""),
    )


def _mean_losses(logged: Sequence[dict[str, Any]], ends: Sequence[float]) -> Points:
    """Mean losses between validations (or whole epochs, without validation), each entry weighted by its steps."""
    points: Points = []
    total, steps, before = 0.0, 0.0, 0.0
    for index, entry in enumerate(logged):
        step, loss, epoch = entry["step"], entry.get("loss"), entry.get("epoch", 0)
        total += (step - before) * (loss if _finite(loss) else math.nan)
        steps, before = steps + step - before, step
        closes = step in ends if ends else epoch == int(epoch)
        if steps and (closes or index == len(logged) - 1):
            points.append((epoch, total / steps if math.isfinite(total) else None))
            total = steps = 0.0
    return points


def _points(entries: Iterable[dict[str, Any]], name: str) -> Points:
    """Values of one name by epoch; null in the file means a value that was not finite."""
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
