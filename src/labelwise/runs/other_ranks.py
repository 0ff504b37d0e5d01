"""A run under torchrun: rank 0 is the run, the other ranks only train with it and write nothing."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise import run_schema as files
from labelwise.data.out_of_core import scratch_at
from labelwise.errors import ConfigError
from labelwise.fit_context import FitContext
from labelwise.parallel import using_threads
from labelwise.runs.load_data import load_run_data

if TYPE_CHECKING:
    from labelwise.methods.base import Method
    from labelwise.runs.config import RunConfig
    from labelwise.runs.folder import RunFolder


def rank() -> int:
    """The rank of this process under torchrun; 0 without."""
    return int(os.environ.get("RANK", "0")) if n_ranks() > 1 else 0


def n_ranks() -> int:
    """Number of processes under torchrun; 1 without."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_ranks(config: RunConfig, method: Method) -> None:
    """Refuse many ranks for a method, or with settings, that need one process."""
    if n_ranks() == 1:
        return
    if not method.trains_on_ranks:
        raise ConfigError(f"{method.name} trains in one process: start it without torchrun")
    training = getattr(method.config, "training", None)
    settings = {
        "run.refit": config.run.refit,
        "run.time_budget": config.run.time_budget,
        "model.training.time_budget": getattr(training, "time_budget", None),
    }
    for name, given in settings.items():
        if given:  # ranks would decide by their own clocks, or wait for a fit that only rank 0 knows of
            raise ConfigError(f"{name}: not under torchrun; leave it out, or train in one process")


def fit_with_rank_zero(config: RunConfig, run: RunFolder) -> None:
    """Read the data and train as rank 0 does; evaluation, reports and all files are rank 0's."""
    from labelwise.runs.train import split_for_calibration

    logging.getLogger("labelwise").setLevel(logging.ERROR)  # rank 0 says it all
    with (
        using_threads(config.run.threads),
        tempfile.TemporaryDirectory() as temporary,
        scratch_at(Path(temporary) / files.SCRATCH, config.data.mapped) as scratch,
    ):
        data, _ = split_for_calibration(config, load_run_data(config.data, scratch), scratch)
        config.make_method().fit(data.train, valid=data.valid, context=FitContext(run / files.CHECKPOINTS))
