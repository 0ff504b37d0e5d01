"""Weight averaging: an exponential moving average (EMA) or the mean from some epoch on (SWA).

Buffers (batch-norm statistics) are not averaged; they stay those of the last step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from labelwise.networks.settings import AveragingConfig


class Averaging:
    """Averaged copies of parameters; none exist before the first update.

    Parameters
    ----------
    config
        The type of average.
    parameters
        Parameters by name; averages are on the same devices.
    """

    def __init__(self, config: AveragingConfig, parameters: Mapping[str, Tensor]) -> None:
        self.config = config
        self.parameters = dict(parameters)
        self.averages: list[Tensor] = []
        self.count = 0

    def is_due(
        self, step: int, total_steps: int, epochs_done: int, epoch_ended: bool, time_fraction: float = 0.0
    ) -> bool:
        """Whether to average the weights after this step (counted from 1).

        `time_fraction` is the fraction of the time budget that is used: it may end training long before the last step.
        """
        if self.config.kind == "none":
            return False
        if self.config.kind == "ema":
            return True
        start = 0.5 if self.config.start is None else self.config.start
        begun = max(step / total_steps, time_fraction) >= start if start < 1 else epochs_done >= start
        return begun and (epoch_ended if self.config.every is None else step % self.config.every == 0)

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
        now = list(self.parameters.values())
        self.count += 1
        if not self.averages:
            self.averages = [parameter.detach().clone() for parameter in now]
            return
        if self.config.kind == "swa":
            weight = 1 / min(self.count, self.config.window or self.count)
        else:
            decay = 0.999 if self.config.decay is None else self.config.decay
            weight = 1 - min(decay, self.count / (9 + self.count))
        torch._foreach_lerp_(self.averages, now, weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the module has the averages as weights, if there are any."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and weights."""
        for average, parameter in zip(self.averages, self._averaged_parameters(), strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    def _averaged_parameters(self) -> Sequence[Tensor]:
        return list(self.parameters.values()) if self.averages else []

    def state(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self.parameters, self.averages, strict=True)) if self.averages else {}

    def restore(self, state: Mapping[str, Tensor], count: int) -> None:
        """Restore what `state` returned, and the number of averaged states."""
        self.count = count
        self.averages = [state[name].to(p.device, copy=True) for name, p in self.parameters.items()] if state else []
