"""Row-sparse optimisers, which update only the rows in a batch: for output layers and embeddings of millions of rows.

Moments are dense tables, but a step reads and writes only the rows with gradients, so that its cost does not grow with
the table. The formulas are those of torch's dense optimisers; moments and weights of other rows do not change (as in
torch's SparseAdam). Decay is the exception. Where it is decoupled, a factor of the weights (adamw, and sgd without
momentum), the factors are kept as one running sum and are applied when a row next has a gradient, or by `catch_up`.
Where decay is part of the gradient (the other optimisers), only rows with gradients decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from labelwise.parallel import ranges, run_all, threads
from labelwise.training.torch_defaults import torch_defaults

FEW = 1 << 16
"""Gradients up to this size use one thread."""


class RowOptimiser(Optimizer):
    """Any of our optimisers, row by row.

    Parameters
    ----------
    params
        Parameters or groups with ``lr`` and ``weight_decay``.
    name
        ``adam``, ``amsgrad``, ``adamw``, ``adagrad``, ``adadelta`` or ``sgd``.
    settings
        By torch's names (``betas``, ``eps``, ``momentum`` ...); missing ones have torch's defaults.
    """

    def __init__(self, params: Any, name: str, settings: dict[str, Any] | None = None) -> None:
        super().__init__(params, {**torch_defaults(name), **(settings or {})})
        self.name = name
        self.rule: Callable[..., Tensor] = _RULES[name]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the rows with gradients; a dense gradient updates all. Closures are not supported."""
        if closure is not None:
            raise TypeError("closures are not supported")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient: Any = parameter.grad
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        state["step"] += 1
        rows = None
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, gradient = gradient._indices()[0], gradient._values()
        if self._decay_is_decoupled(group):
            self._decay(parameter, group, rows)
        tables = _TouchedRows(state, parameter, rows)
        if rows is not None and self._plain_adam(parameter, gradient, group):
            self._adam_rows(tables, rows, gradient, group, int(state["step"]))
            return
        weights = _take(parameter, rows)
        if group["weight_decay"] and not self._decay_is_decoupled(group):
            gradient = gradient + group["weight_decay"] * weights
        weights -= self.rule(gradient, tables, group, int(state["step"]))
        _put(parameter, rows, weights)

    # --- the usual case on a CPU, in one pass ---

    def _plain_adam(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> bool:
        """Whether the kernel supports this update."""
        return (
            self.rule is _adam
            and not group["amsgrad"]
            and parameter.ndim == 2
            and all(part.device.type == "cpu" and part.dtype == torch.float32 for part in (parameter, gradient))
            and parameter.is_contiguous()
        )

    def _adam_rows(
        self, tables: _TouchedRows, rows: Tensor, gradient: Tensor, group: dict[str, Any], step: int
    ) -> None:
        from labelwise.kernels.networks.row_adam import update_rows

        beta1, beta2 = group["betas"]
        decay = 0.0 if self._decay_is_decoupled(group) else group["weight_decay"]
        settings = (
            decay, beta1, beta2, group["lr"] / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step), group["eps"],
        )  # fmt: skip
        moments = (tables.whole("exp_avg"), tables.whole("exp_avg_sq"))
        kernel: Any = update_rows
        arrays = [part.detach().numpy() for part in (tables.parameter, *moments, rows, gradient.contiguous())]
        numbers = [np.float32(number) for number in settings]
        parts = ranges(len(rows), threads() if gradient.numel() > FEW else 1)
        run_all(lambda part: kernel(*arrays, *part, *numbers), parts)

    # --- postponed decay ---

    def _decay_is_decoupled(self, group: dict[str, Any]) -> bool:
        """Whether decay is a factor of the weights instead of a term of the gradient."""
        if not group["weight_decay"]:
            return False
        return self.name == "adamw" or (self.name == "sgd" and not group["momentum"])

    def _decay(self, parameter: Tensor, group: dict[str, Any], rows: Tensor | None) -> None:
        """Record this step's decay for all rows, and apply to `rows` all that they have missed."""
        state = self.state[parameter]
        if "faded" not in state:
            state["fading"] = torch.zeros((), dtype=torch.float64)  # sum of the logarithms of all factors so far
            state["faded"] = torch.zeros(len(parameter), dtype=torch.float64, device=parameter.device)
        decay = min(group["lr"] * group["weight_decay"], 1 - 1e-9)  # a factor of 0 or less would change the sign
        state["fading"] += math.log1p(-decay)
        self._apply_missed_decay(parameter, rows)

    def _apply_missed_decay(self, parameter: Tensor, rows: Tensor | None) -> None:
        state = self.state[parameter]
        missed = torch.exp(float(state["fading"]) - _take(state["faded"], rows)).to(parameter.dtype)
        weights = _take(parameter, rows)
        weights *= missed.reshape(-1, *[1] * (parameter.ndim - 1))
        _put(parameter, rows, weights)
        if rows is None:
            state["faded"].fill_(float(state["fading"]))
        else:
            state["faded"].index_fill_(0, rows, float(state["fading"]))

    @torch.no_grad()
    def catch_up(self, parameter: Tensor | None = None, rows: Tensor | None = None) -> None:
        """Apply postponed decay: to all tables, or to some rows of one table before they are read."""
        chosen = list(self.state) if parameter is None else [parameter]
        for one in chosen:
            if "faded" in self.state[one]:
                self._apply_missed_decay(one, rows)


def _take(table: Tensor, rows: Tensor | None) -> Tensor:
    """A copy of some rows, or the table itself."""
    return table.detach() if rows is None else table.detach().index_select(0, rows)


def _put(table: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is not None:
        table.detach().index_copy_(0, rows, values)


class _TouchedRows:
    """The moments of the rows with gradients."""

    def __init__(self, state: dict[str, Any], parameter: Tensor, rows: Tensor | None) -> None:
        self.state, self.parameter, self.rows = state, parameter, rows

    def whole(self, name: str, start: float = 0.0) -> Tensor:
        """The whole table, created when first needed."""
        if name not in self.state:
            self.state[name] = torch.full_like(self.parameter, start, memory_format=torch.preserve_format)
        return self.state[name]

    def change(self, name: str, change: Callable[[Tensor], Tensor], start: float = 0.0) -> Tensor:
        """Read the rows of a table, change them in place, write and return them."""
        table = self.whole(name, start)
        values = change(_take(table, self.rows))
        _put(table, self.rows, values)
        return values


# --- update rules: what is subtracted from the weights, with torch's formulas ---


def _adam(gradient: Tensor, tables: _TouchedRows, group: dict[str, Any], step: int) -> Tensor:
    beta1, beta2 = group["betas"]
    first = tables.change("exp_avg", lambda m: m.lerp_(gradient, 1 - beta1))
    second = tables.change("exp_avg_sq", lambda v: v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2))
    if group["amsgrad"]:
        now = second
        second = tables.change("max_exp_avg_sq", lambda most: torch.maximum(most, now, out=most))
    denominator = (second.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
    return first / denominator * (group["lr"] / (1 - beta1**step))


def _adagrad(gradient: Tensor, tables: _TouchedRows, group: dict[str, Any], step: int) -> Tensor:
    start = group["initial_accumulator_value"]
    total = tables.change("sum", lambda s: s.addcmul_(gradient, gradient), start)
    rate = group["lr"] / (1 + (step - 1) * group["lr_decay"])
    return rate * gradient / total.sqrt().add_(group["eps"])


def _adadelta(gradient: Tensor, tables: _TouchedRows, group: dict[str, Any], step: int) -> Tensor:
    rho, eps = group["rho"], group["eps"]
    squares = tables.change("square_avg", lambda s: s.mul_(rho).addcmul_(gradient, gradient, value=1 - rho))
    deltas: list[Tensor] = []

    def accumulate(average: Tensor) -> Tensor:
        deltas.append(average.add(eps).sqrt_().div_(squares.add(eps).sqrt_()).mul_(gradient))
        return average.mul_(rho).addcmul_(deltas[0], deltas[0], value=1 - rho)

    tables.change("acc_delta", accumulate)
    return group["lr"] * deltas[0]


def _sgd(gradient: Tensor, tables: _TouchedRows, group: dict[str, Any], step: int) -> Tensor:
    momentum = group["momentum"]
    if not momentum:
        return group["lr"] * gradient
    velocity = tables.change("momentum_buffer", lambda v: v.mul_(momentum).add_(gradient))
    return group["lr"] * (gradient + momentum * velocity if group["nesterov"] else velocity)


_RULES: dict[str, Callable[..., Tensor]] = {
    "adam": _adam,
    "amsgrad": _adam,
    "adamw": _adam,
    "adagrad": _adagrad,
    "adadelta": _adadelta,
    "sgd": _sgd,
}
