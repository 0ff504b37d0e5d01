"""Whether the training loss was still falling when training ended, by the lines that networks log to metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import stdev
from typing import Any

WINDOW = 0.2
"""Fraction of the steps at the end that is compared with as many before."""
OF_WHOLE_FALL, OF_LOSS = 0.05, 0.01
"""The loss is falling if it fell by this fraction of all that it fell since the beginning, and of itself, and by more
than the noise of its means."""
STANDARD_ERRORS = 2
MIN_LINES = 5
VALIDATED = ("nDCG@5", "P@1")

Points = list[tuple[float, float]]
"""Steps and values, ascending."""


def still_falling(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A remark if the loss of a training was still falling at its end; empty for methods without training steps.

    A training whose metric on held-out documents was best before the end is not remarked on: it would gain nothing.
    """
    falls = {part: fall for part, lines in _trainings(records).items() if (fall := _fall(lines)) is not None}
    if not falls:
        return []
    part = max(falls, key=lambda one: falls[one])
    where = f" of {part}" if len(_trainings(records)) > 1 else ""
    return [
        f"the training loss{where} was still falling when training ended ({100 * falls[part]:.0f} % lower over the "
        f"last {100 * WINDOW:.0f} % of steps): more epochs or time would help"
    ]


def _trainings(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of each training. Steps beyond the last one were logged before an interruption."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("stage") == "fit" and _is_number(record.get("step")):
            lines.setdefault(str(record.get("part")), []).append(record)
    return {part: [line for line in of if line["step"] <= of[-1]["step"]] for part, of in lines.items()}


def _fall(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """By which fraction the loss fell in the last steps; None if it had settled, or cannot be known."""
    losses = _points([line for line in lines if line.get("split") != "valid"], "loss")
    if len(losses) < MIN_LINES or not _gains_at_the_end([line for line in lines if line.get("split") == "valid"]):
        return None
    steps = losses[-1][0]
    first = _mean(losses, 0, WINDOW / 2 * steps)
    before = _mean(losses, (1 - 2 * WINDOW) * steps, (1 - WINDOW) * steps)
    last = _mean(losses, (1 - WINDOW) * steps, steps)
    fell = before - last
    enough = max(OF_WHOLE_FALL * (first - last), OF_LOSS * before, STANDARD_ERRORS * _error(losses))
    return fell / before if fell > enough else None


def _error(losses: Points) -> float:
    """Standard error of the difference of the two means, by the differences of neighbouring lines."""
    late = [loss for step, loss in losses if step > (1 - 2 * WINDOW) * losses[-1][0]]
    changes = [after - before for before, after in pairwise(late)]
    noise = stdev(changes) / math.sqrt(2) if len(changes) > 1 else math.inf
    return noise * math.sqrt(4 / len(late))


def _gains_at_the_end(validations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the metric on held-out documents was best in the last steps; also without any."""
    for metric in VALIDATED:
        points = _points(validations, metric)
        if points:
            best = max(points, key=lambda point: (point[1], point[0]))
            return best[0] > (1 - WINDOW) * points[-1][0]
    return True


def _points(lines: Iterable[Mapping[str, Any]], name: str) -> Points:
    """The values of one name by step; of steps repeated after an interruption the later line counts."""
    found = {line["step"]: line[name] for line in lines if _is_number(line.get(name))}
    return sorted(found.items())


def _mean(losses: Points, begin: float, end: float) -> float:
    """The mean loss of the steps in (begin, end]; each line is the mean since the one before."""
    total = steps = 0.0
    previous = 0.0
    for step, loss in losses:
        covered = min(step, end) - max(previous, begin)
        if covered > 0:
            total, steps = total + covered * loss, steps + covered
        previous = step
    return total / steps


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
