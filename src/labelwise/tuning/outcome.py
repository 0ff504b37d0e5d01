"""The outcome of a trial so far, read from its files; and the rule that decides which trials are hopeless."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from labelwise.io import folder as files
from labelwise.io.atomic import replacing
from labelwise.report.schema import read_metrics
from labelwise.tuning.study import StopSection, Trial
from labelwise.tuning.trial import VALID

FINISHED, HOPELESS, FAILED, UNFINISHED = "finished", "stopped as hopeless", "failed", "unfinished"
COUNTED_IN = {"epochs": "epoch", "steps": "step", "seconds": "time"}
NOTE, CONFIG, OUTPUT = ".json", ".yml", ".log"
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Outcome:
    """State and result of a trial."""

    status: str
    value: float | None = None
    """The metric on the valid part; for a stopped trial, the best value it reached."""
    test: float | None = None
    """The metric on the test part, only shown, never used to choose."""
    seconds: float | None = None
    """Time of fitting; for an unfinished trial, up to its last record."""
    verdict: str | None = None
    """The last verdict of the collapse monitor."""
    message: str = ""
    """Why it was stopped or failed."""

    @property
    def settled(self) -> bool:
        """Whether a later sweep does not run the trial again. Failed trials are run again: the cause may be fixed."""
        return self.status in (FINISHED, HOPELESS)


def write_note(trial: Trial, status: str, message: str) -> None:
    """Record that a trial was stopped or failed."""
    with replacing(trial.beside(NOTE)) as file:
        json.dump({"status": status, "message": message}, file)


def read_outcome(trial: Trial, metric: str) -> Outcome:
    """Read the outcome of a trial from its files."""
    records = read_metrics(trial.folder / files.METRICS, damaged="skip")
    fits = [entry for entry in records if entry.get("stage") == "fit"]
    verdicts = [entry["verdict"] for entry in fits if isinstance(entry.get("verdict"), str)]
    verdict = verdicts[-1] if verdicts else None
    spent = [entry["seconds"] for entry in fits if "done" in entry]
    seconds = sum(spent) if spent else fits[-1].get("time") if fits else None
    valid = _read_json(trial.folder / VALID).get("values", {}).get(metric)
    if valid is not None and files.is_finished(trial.folder):
        test = _read_json(trial.folder / files.RESULTS).get("evaluation", {}).get("values", {}).get(metric)
        return Outcome(FINISHED, valid, test, seconds, verdict)
    noted = _read_json(trial.beside(NOTE))
    status, message = noted.get("status", UNFINISHED), noted.get("message", "")
    reached = [value for _, value in curve(records, metric, "step")]
    best = max(reached, default=None) if status == HOPELESS else None
    return Outcome(status, best, None, seconds, verdict, message)


def curve(records: Sequence[dict[str, Any]], metric: str, counted_in: str) -> Curve:
    """The running maximum of a metric at each validation of a training, over epochs, steps or seconds."""
    points: Curve = []
    for entry in records:
        at, value = entry.get(counted_in), entry.get(metric)
        if entry.get("stage") == "fit" and isinstance(at, int | float) and isinstance(value, int | float):
            points.append((at, max(value, points[-1][1] if points else value)))
    return points


def hopeless_reason(own: Curve, others: Sequence[Curve], rule: StopSection) -> str | None:
    """Why a trial is hopeless, or None: its metric is below a fraction of what others had at the same point."""
    if not own or own[-1][0] < rule.after:
        return None
    at, value = own[-1]
    at_same_point = [
        max(v for t, v in points if t <= at) for points in others if points and points[-1][0] >= at >= points[0][0]
    ]
    if len(at_same_point) < rule.others:
        return None
    reference = median(at_same_point) if rule.than == "median" else max(at_same_point)
    if value >= rule.factor * reference:
        return None
    return f"{value:.4f} after {at:g} {rule.unit}, the {rule.than} of {len(at_same_point)} others had {reference:.4f}"


def failure_message(output: Path, code: int) -> str:
    """The last output line of a trial, or the signal that killed it."""
    if code < 0:
        return f"killed by signal {-code}" + (" (was there enough memory?)" if code == -9 else "")
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    return last.removeprefix("labelwise: ")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
