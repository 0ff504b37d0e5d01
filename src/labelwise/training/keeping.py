"""Saves and resumes the state of one training stage."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labelwise.finished import fingerprint
from labelwise.networks.settings import CheckpointConfig
from labelwise.training.averaging import Averaging
from labelwise.training.checkpoint import (
    Checkpoints,
    Snapshot,
    changing_tensors,
    module_fingerprint,
    put_tensors,
)
from labelwise.training.optimisers import Optimisers
from labelwise.training.randomness import random_state, set_random_state
from labelwise.training.ranks import Machine
from labelwise.training.watching import Watcher

log = logging.getLogger("labelwise")


@dataclass
class Place:
    """How far a training is: all of it that is not a tensor."""

    total_steps: int
    epoch: int = 0
    step_of_epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0  # since the last log line
    logged_step: int = 0
    round_loss: float = 0.0  # since the last round (validation or epoch)
    round_step: int = 0
    best: dict[str, Any] | None = None
    without_gain: int = 0
    averaged: int = 0
    lengths: list[float] = field(default_factory=list)  # of the last gradients, for adaptive clipping
    records: list[dict[str, Any]] = field(default_factory=list)
    watchers: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None


class Keeper:
    """Keeps the state of one stage of training.

    Parameters
    ----------
    folder
        Where checkpoints go; None keeps the best weights in memory and nothing else.
    settings
        JSON that, with the module's parameters, makes up the fingerprint of this training.
    every
        When to write.
    restore_best
        Whether the best weights are wanted at the end.
    machine, module, optimisers, averaging, watchers
        What is kept.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: Any,
        every: CheckpointConfig,
        restore_best: bool,
        machine: Machine,
        module: nn.Module,
        optimisers: Optimisers,
        averaging: Averaging,
        watchers: Sequence[Watcher],
    ) -> None:
        own = fingerprint(settings, module_fingerprint(module)) if folder is not None else ""
        self.folder, self.checkpoints = folder, Checkpoints(folder, own)
        self.every, self.restore_best, self.machine = every, restore_best, machine
        self.module, self.optimisers, self.averaging, self.watchers = module, optimisers, averaging, watchers
        self.saved_at, self.saved_step = time.monotonic(), 0

    def resume(self, stage: str) -> Place | None:
        """Restore the newest checkpoint, if any, and return its progress."""
        name = self.machine.on_rank_zero(self.checkpoints.newest)
        if name is None:
            return None
        found = self.checkpoints.load(name)
        place = Place(**found.state)
        put_tensors(self.module, found.tensors["weights"])
        if place.stopped is not None:
            log.info("%s: trained already (%s after %d steps)", stage, place.stopped, place.step)
            return place
        log.info("%s: going on after step %d of %d", stage, place.step, place.total_steps)
        self.optimisers.restore(found.tensors.get("optimiser", {}))  # plain SGD has no state
        self.averaging.restore(found.tensors.get("average", {}), place.averaged)
        set_random_state({name: t.numpy() for name, t in found.tensors[f"random {self.machine.rank}"].items()})
        for watcher, state in zip(self.watchers, place.watchers, strict=False):
            watcher.restore(state)
        step = self._best_step(place)
        if step is not None and not self.machine.on_rank_zero(lambda: self.checkpoints.has_best(step)):
            place.best = None
        if self.machine.is_rank_zero:
            self.checkpoints.tidy(self._best_step(place))
        self.saved_step = place.step
        return place

    def is_due(self, step: int) -> bool:
        """Whether the state after this step is to be written."""
        if self.folder is None:
            return False
        if self.every.steps is not None and step - self.saved_step >= self.every.steps:
            return True
        return self.every.seconds is not None and time.monotonic() - self.saved_at >= self.every.seconds

    def save(self, place: Place) -> None:
        """Write all that is needed to resume from here."""
        place.averaged = self.averaging.count
        place.watchers = [watcher.state() for watcher in self.watchers]
        random = self.machine.every_rank({name: torch.from_numpy(a) for name, a in random_state().items()})
        if self.machine.is_rank_zero:
            tensors = {
                "weights": changing_tensors(self.module),
                "optimiser": self.optimisers.state(),
                "average": self.averaging.state(),
                **{f"random {rank}": state for rank, state in enumerate(random)},
            }
            self.checkpoints.save_last(Snapshot(asdict(place), tensors), self._best_step(place))
        self.saved_at, self.saved_step = time.monotonic(), place.step

    def save_best(self, step: int) -> None:
        """Keep the weights of the module as the best."""
        if self.restore_best and (self.machine.is_rank_zero or self.folder is None):
            self.checkpoints.save_best(step, changing_tensors(self.module))

    def finish(self, place: Place) -> None:
        """Leave the weights to keep in the module, and on disk in case the run is interrupted later."""
        step = self._best_step(place)
        if self.averaging.config.kind != "none" and self.averaging.count == 0:
            log.warning("averaging: training ended before its start, so the plain weights are kept")
        if step is None:
            self.averaging.swap()
        else:
            self.machine.wait()
            put_tensors(self.module, self.checkpoints.load_best(step))
        if self.machine.is_rank_zero:
            self.checkpoints.save_final(Snapshot(asdict(place), {"weights": changing_tensors(self.module)}))
        self.machine.wait()

    def _best_step(self, place: Place) -> int | None:
        return place.best["step"] if place.best is not None and self.restore_best else None
