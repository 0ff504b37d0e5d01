"""A run under torchrun: rank 0 is the run, the other ranks only train with it and write nothing.

Rank 0 announces each training to the others (a resumed run may have none left, a refit is a second one) and then that
there is no other. They free their memory and wait until the run is finished: torchrun ends on a node five minutes after
the processes there have, and with it the store of all nodes, if it is on that one.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise import run_schema as files
from labelwise.data.dataset import Dataset
from labelwise.data.out_of_core import scratch_at
from labelwise.errors import ConfigError
from labelwise.fit_context import FitContext
from labelwise.parallel import using_threads
from labelwise.process_group import leave_ranks, n_ranks, on_rank_zero, rejoin_ranks
from labelwise.runs.load_data import load_run_data
from labelwise.runs.refit import documents_to_refit
from labelwise.time_budget import TimeBudget

if TYPE_CHECKING:
    from labelwise.methods.base import Method
    from labelwise.runs.config import RunConfig
    from labelwise.runs.folder import RunFolder
    from labelwise.runs.load_data import RunData

Announcement = tuple[str, float, float]
"""What is trained (`fit` or `refit`), the seconds of its time budget, and those that are left of it."""


def check_ranks(method: Method) -> None:
    """Refuse several ranks for a method that they cannot train together."""
    if n_ranks() > 1 and not method.trains_on_ranks:
        raise ConfigError(
            f"{method.name} trains in one process, with threads: start it without torchrun"
            + ("; its members can be trained under torchrun, each alone" if method.name == "ensemble" else "")
        )


def announce(what: str, budget: TimeBudget) -> None:
    """Let the other ranks train with rank 0."""
    if n_ranks() > 1:
        on_rank_zero(lambda: (what, budget.seconds, budget.remaining()))


def end_training() -> None:
    """Let the other ranks free their memory: there is no other training, and rank 0 works alone."""
    if n_ranks() > 1:
        on_rank_zero(_nothing)
        leave_ranks()


def release_ranks() -> None:
    """Let the other ranks end: rank 0 has finished the run."""
    if n_ranks() > 1:
        rejoin_ranks()
        on_rank_zero(_nothing)
        leave_ranks()


def train_with_rank_zero(config: RunConfig, run: RunFolder, force: bool) -> None:
    """Train what rank 0 trains, then wait for its end; evaluation, reports and all files are rank 0's."""
    logging.getLogger("labelwise").setLevel(logging.ERROR)  # rank 0 says it all
    _train_all(config, run, force)
    _free_memory()
    on_rank_zero(_nothing)


def _train_all(config: RunConfig, run: RunFolder, force: bool) -> None:
    """Read the data and train until rank 0 announces that there is no other training."""
    from labelwise.runs.train import split_for_calibration

    with (
        using_threads(config.run.threads),
        tempfile.TemporaryDirectory() as temporary,
        scratch_at(Path(temporary) / files.SCRATCH, config.data.mapped) as scratch,
    ):

        @cache
        def data() -> tuple[RunData, Dataset | None]:
            return split_for_calibration(config, load_run_data(config.data, scratch), scratch)

        if force or not (run.current_path() / files.MODEL).exists():
            data()  # at the same time as rank 0
        while (announced := on_rank_zero(_nothing)) is not None:
            what, seconds, left = announced
            parts, held_out = data()
            model = config.make_method()
            train, valid = parts.train, parts.valid
            if what == files.REFIT:
                train = documents_to_refit(parts, held_out, model.validates, scratch)
                valid = parts.valid if model.validates else None
            model.fit(train, valid=valid, context=FitContext(budget=TimeBudget(seconds, time.monotonic() + left)))


def _free_memory() -> None:
    """Free data and models, also those that are in cycles, and what torch keeps of the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _nothing() -> Announcement | None:
    return None
