"""Trains single repetitions of a model that consists of independent parts, each in a separate process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from labelwise.data.out_of_core import scratch_at
from labelwise.errors import ConfigError
from labelwise.file_lock import LOCK, lock_folder
from labelwise.fit_context import FitContext
from labelwise.parallel import using_threads
from labelwise.run_schema import SCRATCH, TIME
from labelwise.runs.config import RunConfig
from labelwise.runs.load_data import load_run_data
from labelwise.runs.train import split_for_calibration
from labelwise.time_budget import NO_LIMIT


def train_repetitions(config: RunConfig, numbers: Sequence[int], begin: float | None = None) -> Path:
    """Train the given repetitions on the data of a run; returns the folder of finished repetitions.

    `begin` is when the time budget of the run began, on the monotonic clock; None: now.
    """
    begin = time.monotonic() if begin is None else begin
    model = config.make_method()
    numbers = sorted(set(numbers))
    try:
        parts = model.check_parts(numbers)
    except ConfigError as error:
        raise ConfigError(f"--repetition: {error}") from None
    model.check_needs()
    with using_threads(config.run.threads):
        work = parts / ("work-" + "-".join(f"{number:03d}" for number in numbers))
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--repetition: {work} cannot be created: {error.strerror}") from None
        with lock_folder(work, ConfigError(f"{work}: another process is working on the same repetition")):
            try:
                with scratch_at(work / SCRATCH, config.data.mapped) as scratch:
                    data, _ = split_for_calibration(config, load_run_data(config.data, scratch), scratch)
                    budget = NO_LIMIT.limited(config.run.time_budget, work / f"run-{TIME}", begin)
                    folder = model.fit_parts(data.train, numbers, data.valid, FitContext(work, budget=budget))
            except BaseException:
                _remove_empty(work)
                raise
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _remove_empty(work: Path) -> None:
    """Remove the work folder if nothing has been trained yet."""
    with suppress(OSError):
        if [path.name for path in work.iterdir()] == [LOCK]:
            shutil.rmtree(work)
