"""The history of a training, its metrics in metrics.jsonl and TensorBoard, and what may follow it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from labelwise.errors import MissingDependencyError


class Monitor(Protocol):
    """What follows a training: `CollapseMonitor`. With several ranks, only on rank zero unless the head is divided."""

    def after_step(self, step: int, loss: Tensor) -> str | None:
        """After a step (counted from 1), with its gradients; may return a reason to stop. Reading `loss` waits."""

    def clipped(self, norm: Tensor) -> None:
        """In a step with clipping, before `after_step`: the gradient norm before clipping."""

    def after_validation(self, numbers: dict[str, Any]) -> str | None:
        """After every validation, or every epoch without one; in eval mode, with averaged weights if there are any.

        `numbers` has step, epoch, loss, rate and validation metrics. What is added to it is logged too. May return a
        reason to stop.
        """

    def state(self) -> dict[str, Any]:
        """The state to save in checkpoints, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


@dataclass
class Best:
    """The best validation so far."""

    metric: str
    value: float
    step: int


@dataclass
class History:
    """The record of a training."""

    records: list[dict[str, Any]] = field(default_factory=list)
    """The numbers of every validation (or epoch), in order."""
    steps: int = 0
    """Steps taken."""
    epochs: int = 0
    """Number of complete epochs."""
    seconds: float = 0.0
    """Time in the loop, including time before an interruption."""
    best: Best | None = None
    """The best validation."""
    stopped: str = ""
    """Why it ended: `finished`, `early stopping`, `time budget`, `diverged`, or the monitor's reason."""


class MetricLogger:
    """Writes metrics to metrics.jsonl and, if configured, to TensorBoard."""

    def __init__(self, log: Callable[..., None] | None, part: str, folder: str | None, resumed_at: int) -> None:
        self.log, self.part = log, part
        self.writer = _tensorboard(folder, resumed_at) if folder is not None else None

    def write(self, step: int, **numbers: Any) -> None:
        """Log the metrics of a step. Non-finite numbers, which JSON lacks, become null."""
        if self.log is not None:
            self.log(part=self.part, step=step, **{key: finite(value) for key, value in numbers.items()})
        if self.writer is not None:
            for key, value in numbers.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(f"{self.part}/{key}", value, step)

    def close(self) -> None:
        """Finish TensorBoard's file."""
        if self.writer is not None:
            self.writer.close()


def check_tensorboard() -> None:
    """Raise an error that says what to install, before any work is done."""
    _summary_writer()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependencyError("tensorboard", "tensorboard", "training.tensorboard") from None
    return SummaryWriter


def _tensorboard(folder: str, resumed_at: int) -> Any:
    # events that an interrupted run wrote after its checkpoint are written again
    return _summary_writer()(folder, purge_step=resumed_at + 1 if resumed_at else None)


def finite(value: Any) -> Any:
    """The value, or None for a number that is not finite, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
