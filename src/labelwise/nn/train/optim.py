"""Optimisers from their config: torch's own with torch's own defaults, parameter groups, clipping, flat state.

Parameters are identified by name, also in checkpoints.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labelwise.errors import ConfigError
from labelwise.nn.config import AveragingConfig, OptimiserConfig, ScheduleConfig
from labelwise.runtime.threads import ranges, run_all, threads

# --- torch defaults ---
# Torch's optimisers by our names, and torch's default settings.

CLASSES: dict[str, type[Optimizer]] = {
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "amsgrad": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def torch_defaults(name: str) -> dict[str, Any]:
    """All settings of an optimiser with torch's default values, read from its signature."""
    parameters = inspect.signature(CLASSES[name].__init__).parameters.values()
    settings = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return {**settings, "amsgrad": True} if name == "amsgrad" else settings


# --- row optimiser ---
# Row-sparse optimisers, which update only the rows in a batch: for output layers and embeddings of millions of rows.
#
# Moments are dense tables, but a step reads and writes only the rows with gradients, so that its cost does not grow
# with the table. The formulas are those of torch's dense optimisers; moments and weights of other rows do not change
# (as in torch's SparseAdam). Decay is the exception. Where it is decoupled, a factor of the weights (adamw, and sgd
# without momentum), the factors are kept as one running sum and are applied when a row next has a gradient, or by
# `catch_up`. Where decay is part of the gradient (the other optimisers), only rows with gradients decay.

FEW = 1 << 16
"""Gradients up to this size use one thread."""


class RowOptimiser(Optimizer):
    """Adam, AdamW, Adagrad and SGD, row by row; without amsgrad.

    Parameters
    ----------
    params
        Parameters or groups with ``lr`` and ``weight_decay``.
    name
        ``adam``, ``adamw``, ``adagrad`` or ``sgd``.
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
        moments = {name: self._table(state, parameter, name) for name in self._moments(group)}
        if rows is not None and self._plain_adam(parameter, gradient):
            self._adam_rows([parameter, *moments.values(), rows, gradient.contiguous()], group, int(state["step"]))
            return
        weights, *touched = (_take(table, rows) for table in (parameter, *moments.values()))
        if group["weight_decay"] and not self._decay_is_decoupled(group):
            gradient = gradient + group["weight_decay"] * weights
        weights -= self.rule(gradient, touched, group, int(state["step"]))
        for table, values in zip((parameter, *moments.values()), (weights, *touched), strict=True):
            _put(table, rows, values)

    def _moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the tables beside the weights, as torch calls them."""
        if self.name == "sgd":
            return ("momentum_buffer",) if group["momentum"] else ()
        return ("sum",) if self.name == "adagrad" else ("exp_avg", "exp_avg_sq")

    def _table(self, state: dict[str, Any], parameter: Tensor, name: str) -> Tensor:
        """A table of moments, created when first needed."""
        if name not in state:
            start = self.defaults["initial_accumulator_value"] if name == "sum" else 0.0
            state[name] = torch.full_like(parameter, start, memory_format=torch.preserve_format)
        return state[name]

    # --- the usual case on a CPU, in one pass ---

    def _plain_adam(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Whether the kernel supports this update."""
        return (
            self.rule is _adam
            and parameter.ndim == 2
            and all(part.device.type == "cpu" and part.dtype == torch.float32 for part in (parameter, gradient))
            and parameter.is_contiguous()
        )

    def _adam_rows(self, tensors: Sequence[Tensor], group: dict[str, Any], step: int) -> None:
        """Update weights and moments; `tensors` are these, the rows and their gradients."""
        from labelwise.kernels.networks import update_rows

        beta1, beta2 = group["betas"]
        decay = 0.0 if self._decay_is_decoupled(group) else group["weight_decay"]
        settings = (
            decay, beta1, beta2, group["lr"] / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step), group["eps"],
        )  # fmt: skip
        kernel: Any = update_rows
        arrays = [part.detach().numpy() for part in tensors]
        numbers = [np.float32(number) for number in settings]
        *_, rows, gradient = arrays
        parts = ranges(len(rows), threads() if gradient.size > FEW else 1)
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
    def catch_up(self) -> None:
        """Apply postponed decay to all tables, so that they may be read."""
        for parameter, state in self.state.items():
            if "faded" in state:
                self._apply_missed_decay(parameter, None)


def _take(table: Tensor, rows: Tensor | None) -> Tensor:
    """A copy of some rows, or the table itself."""
    return table.detach() if rows is None else table.detach().index_select(0, rows)


def _put(table: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is not None:
        table.detach().index_copy_(0, rows, values)


# --- update rules: moments change in place; what is subtracted from the weights, with torch's formulas ---


def _adam(gradient: Tensor, moments: Sequence[Tensor], group: dict[str, Any], step: int) -> Tensor:
    (first, second), (beta1, beta2) = moments, group["betas"]
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (second.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
    return first / denominator * (group["lr"] / (1 - beta1**step))


def _adagrad(gradient: Tensor, moments: Sequence[Tensor], group: dict[str, Any], step: int) -> Tensor:
    total = moments[0].addcmul_(gradient, gradient)
    rate = group["lr"] / (1 + (step - 1) * group["lr_decay"])
    return rate * gradient / total.sqrt().add_(group["eps"])


def _sgd(gradient: Tensor, moments: Sequence[Tensor], group: dict[str, Any], step: int) -> Tensor:
    if not moments:
        return group["lr"] * gradient
    velocity = moments[0].mul_(group["momentum"]).add_(gradient)
    return group["lr"] * (gradient + group["momentum"] * velocity if group["nesterov"] else velocity)


_RULES: dict[str, Callable[..., Tensor]] = {"adam": _adam, "adamw": _adam, "adagrad": _adagrad, "sgd": _sgd}


REMEMBERED = 5
"""Gradient norms that adaptive clipping remembers."""
TORCH_NAMES = {"rate_decay": "lr_decay", "initial_sum": "initial_accumulator_value"}
"""Names of settings that torch calls otherwise."""
FUSED_ON = {"adagrad": {"cpu"}}
"""Devices with fused kernels, if not all: not every torch has Adagrad's for GPUs."""


def rates(config: OptimiserConfig) -> tuple[float, float]:
    """Learning rates of the body and of the head, before the schedule."""
    body = float(torch_defaults(config.name)["lr"]) if config.rate is None else config.rate
    head = body * config.head_factor if config.head_rate is None else config.head_rate
    return body * config.rate_factor, head * config.rate_factor


@dataclass(frozen=True)
class Optimisers:
    """The optimisers of one training and the names of their parameters. Usually one; two with row-sparse tables."""

    parts: tuple[Optimizer, ...]
    names: dict[Tensor, str]

    def set_rates(self, factor: float) -> None:
        """Set the learning rates of the next step, by those before the schedule."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def step(self) -> None:
        """Update the weights."""
        for part in self.parts:
            part.step()

    def clear_gradients(self) -> None:
        """Free the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def catch_up(self) -> None:
        """Apply the decay that row-sparse optimisers have postponed, so that all weights may be read."""
        for part in self.parts:
            if isinstance(part, RowOptimiser):
                part.catch_up()

    def state(self) -> dict[str, Tensor]:
        """All moments and counters by `parameter/key`."""
        return {
            f"{self.names[parameter]}/{key}": value
            for part in self.parts
            for parameter, held in part.state.items()
            for key, value in held.items()
            if isinstance(value, Tensor)  # a momentum buffer that is not there yet is None
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Dtypes are kept: torch's own loading would round float64 tables."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {p: (part, group) for part in self.parts for group in part.param_groups for p in group["params"]}
        for part in self.parts:
            part.state.clear()
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            parameter = parameters[name]
            part, group = owners[parameter]
            # torch keeps step counters on the CPU unless a fused kernel counts
            stays = key == "step" and not group.get("fused")
            part.state[parameter][key] = value.clone() if stays else value.to(parameter.device, copy=True)


def make_optimisers(
    module: nn.Module, config: OptimiserConfig, head: Sequence[str] = (), rows: Sequence[str] = ()
) -> Optimisers:
    """Build the optimisers of all trainable parameters of a module.

    Parameters
    ----------
    module
        Embeddings with ``sparse=True`` are always updated row by row.
    config
        Which optimiser, rates, decay.
    head
        Name prefixes of the parameters with the head's learning rate, such as ``"head."``.
    rows
        Name prefixes of the tables with row-sparse gradients (see `runtime.ranks.add_row_gradient`).
    """
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not named:
        raise ConfigError("there is nothing to train: all parameters are frozen")
    for prefix in (*head, *rows):
        if not any(name.startswith(prefix) for name in named):
            raise ConfigError(f"no trainable parameter has a name that begins with '{prefix}'")
    by_row = {name for name in named if name.startswith(tuple(rows))} | _sparse_tables(module)
    parts: list[Optimizer] = []
    dense = _groups(module, {n: p for n, p in named.items() if n not in by_row}, config, head)
    if dense:
        parts.append(_torch_optimiser(config, dense))
    sparse = _groups(module, {n: p for n, p in named.items() if n in by_row}, config, head)
    if sparse:
        check_by_row(config)
        parts.append(RowOptimiser(sparse, config.name, _torch_settings(config)))
    return Optimisers(tuple(parts), {p: name for name, p in named.items()})


def check_by_row(config: OptimiserConfig) -> None:
    """Raise if an optimiser cannot update single rows, for models whose tables need that."""
    if config.name not in _RULES:
        raise ConfigError(
            f"training.optimiser.name: {config.name} updates whole tables only, but a step of this model has gradients "
            f"of a few rows of its word table or of its outputs; choose {', '.join(_RULES)}"
        )


def _sparse_tables(module: nn.Module) -> set[str]:
    return {
        f"{prefix}.weight".lstrip(".")
        for prefix, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    }


def _groups(
    module: nn.Module, named: Mapping[str, Tensor], config: OptimiserConfig, head: Sequence[str]
) -> list[dict[str, Any]]:
    """Parameter groups by learning rate and decay. Biases and norms are those with fewer than two dimensions."""
    decay = float(torch_defaults(config.name)["weight_decay"]) if config.weight_decay is None else config.weight_decay
    embeddings = {p for part in module.modules() for p in _embeddings(part)}
    body_rate, head_rate = rates(config)
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in named.items():
        no_decay = config.decay_on != "all" and parameter.ndim < 2
        no_decay |= config.decay_on == "matrices_but_embeddings" and parameter in embeddings
        rate = head_rate if name.startswith(tuple(head)) else body_rate
        groups.setdefault((rate, 0.0 if no_decay else decay), []).append(parameter)
    return [
        {"params": params, "lr": rate, "initial_lr": rate, "weight_decay": decay}
        for (rate, decay), params in groups.items()
    ]


def _embeddings(part: nn.Module) -> Iterable[Tensor]:
    """Embedding tables among a module's own parameters: torch's, or those listed in its `embedding_tables`."""
    if isinstance(part, nn.Embedding):
        return part.parameters()
    return (getattr(part, name) for name in getattr(part, "embedding_tables", ()))


def _torch_settings(config: OptimiserConfig) -> dict[str, Any]:
    """The settings of the config under torch's names; the others have torch's defaults."""
    given = {TORCH_NAMES.get(name, name): getattr(config, name) for name in config.owners()}
    settings = {key: value for key, value in given.items() if value is not None}
    return {**settings, "amsgrad": True} if config.name == "amsgrad" else settings


def _torch_optimiser(config: OptimiserConfig, groups: list[dict[str, Any]]) -> Optimizer:
    """Build torch's optimiser, with fused kernels where available: one pass over memory (7 times as fast on a CPU)."""
    optimiser: Any = CLASSES[config.name]
    settings = _torch_settings(config)
    # Torch reports a missing kernel only in the first step, which is too late.
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    if "fused" in torch_defaults(config.name) and devices <= FUSED_ON.get(config.name, {"cpu", "cuda"}):
        settings["fused"] = True
    return optimiser(groups, **settings)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, divided: Sequence[Tensor] = ()) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`; returns the norm before.

    Like `torch.nn.utils.clip_grad_norm_`, but for row-sparse gradients too. Of `divided` parameters every rank has some
    rows; the norm is that of all of them.
    """
    elsewhere = {id(parameter) for parameter in divided}
    values = list(_gradient_values(parameter for parameter in parameters if id(parameter) not in elsewhere))
    if divided:
        own = list(_gradient_values(divided))
        squares = torch.nn.utils.get_total_norm(own).square().reshape(1)
        torch.distributed.all_reduce(squares)
        common = torch.nn.utils.get_total_norm(values) if values else squares.new_zeros(())
        norm, values = (common.square() + squares[0]).sqrt(), values + own
    elif not values:
        return torch.zeros(())
    else:
        norm = torch.nn.utils.get_total_norm(values)
    # without an `if`, which would wait for the number on a GPU
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(values, factor)
    return norm


def clip_adaptively(parameters: Iterable[Tensor], norms: list[float], divided: Sequence[Tensor] = ()) -> Tensor:
    """Clip the gradient norm to five times the largest of the last `norms`, and append it to `norms`.

    As in AttentionXML (You et al. 2019): norms are recorded up to 1 and up to twice the largest recorded before; until
    there are five, nothing is clipped. Returns the norm before clipping.
    """
    largest = max(norms) if len(norms) == REMEMBERED else math.inf
    before = clip_gradients(parameters, 5 * largest, divided)
    norm = float(before)
    if math.isfinite(norm):
        norms.append(min(norm, 2 * largest, 1.0))
        del norms[:-REMEMBERED]
    return before


def _gradient_values(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:  # duplicate rows must be summed before the norm is computed
            parameter.grad = gradient = gradient.coalesce()
            yield gradient._values()
        else:
            yield gradient


# --- schedules ---
# Learning-rate schedules as plain functions of the step, so that there is no state to save.

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """The factor of the learning rate by step (counted from 0), for a training of `total_steps`.

    The factor is never 0: the first step of a warm-up over W steps has 1/W, and the last one of a decreasing schedule
    is one step above its end. Steps beyond the total keep the last value.
    """
    total = max(1, total_steps)
    warmup = round(config.warmup * total) if config.warmup < 1 else int(config.warmup)
    decreasing = max(1, total - warmup)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if config.kind == "constant":
            return 1.0
        done = min(step - warmup, decreasing - 1) / decreasing
        return config.final + (1.0 - config.final) * shape(done)

    def shape(done: float) -> float:
        if config.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        return (1.0 - done) ** (config.power if config.kind == "poly" else 1.0)

    return factor


# --- averaging ---
# Weight averaging: an exponential moving average (EMA) or the mean from some epoch on (SWA).
#
# Buffers (batch-norm statistics) are not averaged; they stay those of the last step.


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
        self.averages: dict[str, Tensor] = {}
        self.count = 0

    def is_due(self, step: int, total: int, epochs_done: int, epoch_ended: bool, time_fraction: float) -> bool:
        """Whether to average the weights after this step (counted from 1, of `total`).

        `time_fraction` is the fraction of the time budget that is used: it may end training long before the last step.
        """
        if self.config.kind == "none":
            return False
        if self.config.kind == "ema":
            return True
        start = 0.5 if self.config.start is None else self.config.start
        begun = max(step / total, time_fraction) >= start if start < 1 else epochs_done >= start
        return begun and (epoch_ended if self.config.every is None else step % self.config.every == 0)

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
        self.count += 1
        if not self.averages:
            self.averages = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
            return
        if self.config.kind == "swa":
            weight = 1 / min(self.count, self.config.window or self.count)
        else:
            decay = 0.999 if self.config.decay is None else self.config.decay
            weight = 1 - min(decay, self.count / (9 + self.count))
        torch._foreach_lerp_(list(self.averages.values()), list(self.parameters.values()), weight)

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
        for name, average in self.averages.items():
            kept = self.parameters[name].detach().clone()
            self.parameters[name].copy_(average)
            average.copy_(kept)

    def restore(self, averages: Mapping[str, Tensor], count: int) -> None:
        """Restore the averages, if there were any, and the number of averaged states."""
        self.count = count
        named = self.parameters.items() if averages else ()
        self.averages = {name: averages[name].to(parameter.device, copy=True) for name, parameter in named}
