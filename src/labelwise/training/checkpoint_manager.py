"""Saves and resumes the state of one training stage.

Only rank 0 reads and writes files; it sends to the other ranks what they resume from. A checkpoint does not depend on
the number of ranks, so any number of them resumes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.finished import fingerprint
from labelwise.networks.settings import CheckpointConfig
from labelwise.training.averaging import Averaging
from labelwise.training.callbacks import Callback
from labelwise.training.checkpoint import (
    Checkpoints,
    Snapshot,
    changing_tensors,
    module_fingerprint,
    put_tensors,
)
from labelwise.training.head_shards import HeadShards
from labelwise.training.optimisers import Optimisers
from labelwise.training.randomness import random_state, set_random_state
from labelwise.training.ranks import Ranks

log = logging.getLogger("labelwise")


@dataclass
class LoopState:
    """Progress of a training: all of its state that is not a tensor. Field names are keys in checkpoints."""

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
    lengths: list[float] = field(default_factory=list)  # last gradient norms, for adaptive clipping
    records: list[dict[str, Any]] = field(default_factory=list)
    watchers: list[dict[str, Any]] = field(default_factory=list)  # states of the callbacks
    stopped: str | None = None
    round_seconds: float | None = None  # duration of the last round


class CheckpointManager:
    """Saves and resumes the state of one training stage.

    Parameters
    ----------
    folder
        Folder of checkpoints, on rank 0; None keeps only the best weights, in memory.
    settings
        JSON that with the module's parameters forms the fingerprint of this training.
    time_budget
        Of this training: a result that another one ended is not used.
    every
        When to write checkpoints.
    restore_best
        Whether to restore the best weights at the end.
    ranks, shards, module, optimisers, averaging, callbacks
        What is saved.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: Any,
        time_budget: float | None,
        every: CheckpointConfig,
        restore_best: bool,
        ranks: Ranks,
        shards: HeadShards,
        module: nn.Module,
        optimisers: Optimisers,
        averaging: Averaging,
        callbacks: Sequence[Callback],
    ) -> None:
        own = fingerprint(settings, module_fingerprint(module, shards.whole_shape)) if folder is not None else ""
        self.folder, self.checkpoints = folder, Checkpoints(folder, own, time_budget)
        self.every, self.restore_best, self.ranks, self.shards = every, restore_best, ranks, shards
        self.module, self.optimisers, self.averaging, self.callbacks = module, optimisers, averaging, callbacks
        self.saved_at, self.saved_step = time.monotonic(), 0

    def resume(self, stage: str) -> LoopState | None:
        """Restore the newest checkpoint, if any, and return its state."""
        name = self.checkpoints.newest()
        snapshot = None if name is None else self.checkpoints.load(name)
        values = self.ranks.on_rank_zero(lambda: None if snapshot is None else snapshot.state)
        if values is None:
            return None
        state, tensors = LoopState(**values), {} if snapshot is None else snapshot.tensors
        self._put_weights(tensors.get("weights", {}))
        if state.stopped is not None:
            log.info("%s: already trained (%s after %d steps)", stage, state.stopped, state.step)
            return state
        log.info("%s: resuming after step %d of %d", stage, state.step, state.total_steps)
        self.optimisers.restore(self.shards.send(tensors.get("optimiser", {})))  # plain SGD has no state
        self.averaging.restore(self.shards.send(tensors.get("average", {})), state.averaged)
        self._restore_random_state(tensors)
        for callback, kept in zip(self.callbacks, state.watchers, strict=False):
            callback.restore(kept)
        step = self._best_step(state)
        if step is not None and not self.ranks.on_rank_zero(lambda: self.checkpoints.has_best(step)):
            state.best = None
        if self.ranks.is_rank_zero:
            self.checkpoints.remove_leftovers(self._best_step(state))
        self.saved_step = state.step
        return state

    def is_due(self, step: int) -> bool:
        """Whether to write a checkpoint after this step."""
        if self.folder is None:
            return False
        if self.every.steps is not None and step - self.saved_step >= self.every.steps:
            return True
        return self.every.seconds is not None and time.monotonic() - self.saved_at >= self.every.seconds

    def save(self, state: LoopState) -> None:
        """Write everything that is needed to resume from here."""
        state.averaged = self.averaging.count
        state.watchers = [callback.state() for callback in self.callbacks]
        random = self.ranks.gather({name: torch.from_numpy(a) for name, a in random_state().items()})
        held = changing_tensors(self.module), self.optimisers.state(), self.averaging.state()
        weights, optimiser, average = (self.shards.gather(tensors) for tensors in held)
        if self.ranks.is_rank_zero:
            tensors = {
                "weights": weights,
                "optimiser": optimiser,
                "average": average,
                **{f"random {rank}": generators for rank, generators in enumerate(random)},
            }
            self.checkpoints.save_last(Snapshot(asdict(state), tensors), self._best_step(state))
        self.saved_at, self.saved_step = time.monotonic(), state.step

    def save_best(self, step: int) -> None:
        """Save the weights of the module as the best."""
        if not self.restore_best:
            return
        weights = self.shards.gather(changing_tensors(self.module))
        if self.ranks.is_rank_zero:
            self.checkpoints.save_best(step, weights)

    def finish(self, state: LoopState) -> None:
        """Put the final weights into the module, and on disk in case the run is interrupted later."""
        step = self._best_step(state)
        if self.averaging.config.kind != "none" and self.averaging.count == 0:
            log.warning("averaging: training ended before averaging started, so the plain weights are kept")
        if step is None:
            self.averaging.swap()
        else:
            self._put_weights(self.checkpoints.load_best(step) if self.ranks.is_rank_zero else {})
        weights = self.shards.gather(changing_tensors(self.module))
        if self.ranks.is_rank_zero:
            self.checkpoints.save_final(Snapshot(asdict(state), {"weights": weights}))
        self.ranks.wait()

    def _put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put the weights of rank zero into the modules of all ranks."""
        put_tensors(self.module, self.shards.send(weights))

    def _restore_random_state(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Each rank gets its own generators; ranks that the checkpoint does not know keep those they began with."""
        kept = {
            name: {part: tensor.numpy().copy() for part, tensor in generators.items()}
            for name, generators in tensors.items()
            if name.startswith("random ")
        }
        own = self.ranks.on_rank_zero(lambda: kept).get(f"random {self.ranks.rank}")
        if own is not None:
            set_random_state(own)

    def _best_step(self, state: LoopState) -> int | None:
        return state.best["step"] if state.best is not None and self.restore_best else None
