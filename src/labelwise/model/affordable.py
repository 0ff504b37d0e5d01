"""How many documents a time budget allows to prepare for training, such as to split into words or tokens.

The number is kept with the unfinished work, so that a resumed training has the same documents.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.formatting import duration
from labelwise.io.atomic import replacing
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import on_rank_zero
from labelwise.runtime.time_budget import SAMPLE_FILE, TimeBudget

log = logging.getLogger("labelwise")

PREPARING, VALID = 0.25, 0.1
"""Fraction of the remaining time that preparing may take, and of that for held-out documents."""
PROBE = 128
"""Documents whose preparation is timed."""


def affordable(
    train: Dataset, valid: Dataset | None, prepare: Callable[[Dataset], Any], job: Job, seed: int
) -> tuple[Dataset, Dataset | None]:
    """Training and held-out documents that there is time to prepare: all of them, or random samples.

    Their number follows from the pace of a few, which are prepared for that. Without a limit, all are returned.
    """
    if not job.budget.is_limited:
        return train, valid
    counts = on_rank_zero(lambda: _counts(train, valid, prepare, job, seed))
    if counts["train"] < len(train):
        job.budget.end_early()
    return _sample(train, counts["train"], seed), None if valid is None else _sample(valid, counts["valid"], seed)


def _counts(
    train: Dataset, valid: Dataset | None, prepare: Callable[[Dataset], Any], job: Job, seed: int
) -> dict[str, int]:
    """Numbers of documents of both parts; those of an earlier attempt, if there was one."""
    path = None if job.folder is None else job.folder / SAMPLE_FILE
    before = {} if path is None else _kept_counts(path)
    counts = {}
    for name, data, fraction in (("valid", valid, PREPARING * VALID), ("train", train, PREPARING)):
        if data is not None:
            counts[name] = before.get(name) or _count(data, prepare, job.budget.part(fraction), seed)
    if path is not None and counts != before:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(counts) + "\n")
    return counts


def _count(data: Dataset, prepare: Callable[[Dataset], Any], budget: TimeBudget, seed: int) -> int:
    """Documents that can be prepared within the budget, at least a few."""
    if len(data) <= 2 * PROBE:
        return len(data)
    begin = time.monotonic()
    prepare(_sample(data, PROBE, seed))
    pace = (time.monotonic() - begin) / PROBE
    count = len(data) if pace == 0 else max(int(min(budget.remaining() / pace, len(data))), PROBE)
    if count < len(data):
        log.info(
            "time budget: %s of %s documents of %s are used; preparing all would take %s", f"{count:,}",
            f"{len(data):,}", data.name, duration(pace * len(data)),
        )  # fmt: skip
    return count


def _sample(data: Dataset, count: int, seed: int) -> Dataset:
    if count >= len(data):
        return data
    return data.take(np.sort(np.random.default_rng(seed).permutation(len(data))[:count]))


def _kept_counts(path: Path) -> dict[str, int]:
    """The counts of an earlier attempt; none if the file is missing or damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {name: int(kept[name]) for name in ("valid", "train") if int(kept.get(name, 0)) > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
