"""Optimisers from their config: torch's own with torch's own defaults, parameter groups, clipping, flat state.

Parameters are known by name throughout, so that a checkpoint says what belongs to what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labelwise.errors import ConfigError
from labelwise.networks.settings import OptimiserConfig
from labelwise.training.row_optimiser import RowOptimiser
from labelwise.training.torch_defaults import CLASSES, torch_defaults

REMEMBERED = 5
"""Gradient norms that adaptive clipping looks back at."""
# Our names of the settings, and torch's.
TORCH_NAMES = {
    "betas": "betas",
    "eps": "eps",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "rho",
    "rate_decay": "lr_decay",
    "initial_sum": "initial_accumulator_value",
}


FUSED_ON = {"adagrad": {"cpu"}}
"""Devices with fused kernels, where that is not all: not every torch has Adagrad's for GPUs."""


def rates(config: OptimiserConfig) -> tuple[float, float]:
    """The rate of the body and the rate of the head, before any schedule."""
    body = float(torch_defaults(config.name)["lr"]) if config.rate is None else config.rate
    head = body * config.head_factor if config.head_rate is None else config.head_rate
    return body * config.rate_factor, head * config.rate_factor


@dataclass(frozen=True)
class Optimisers:
    """The optimisers of one training and the names of their parameters. Usually one, two with row-sparse tables."""

    parts: tuple[Optimizer, ...]
    names: dict[Tensor, str]
    base_rates: tuple[tuple[dict[str, Any], float], ...]
    """Every group and its rate before the schedule."""

    def set_rates(self, factor: float) -> None:
        """Set the rates of the step to come."""
        for group, rate in self.base_rates:
            group["lr"] = rate * factor

    def step(self) -> None:
        """Move the weights by their gradients."""
        for part in self.parts:
            part.step()

    def forget_gradients(self) -> None:
        """Free the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def settle(self) -> None:
        """Carry out what row-sparse optimisers have put off, so that all weights may be read."""
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
        """Take back what `state` gave. Types are kept as they are: torch's own loading would round float64 tables."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {p: (part, group) for part in self.parts for group in part.param_groups for p in group["params"]}
        for part in self.parts:
            part.state.clear()
        for place, value in state.items():
            name, _, key = place.rpartition("/")
            parameter = parameters[name]
            part, group = owners[parameter]
            # torch keeps step counters on the CPU unless a fused kernel counts
            stays = key == "step" and not group.get("fused")
            part.state[parameter][key] = value.clone() if stays else value.to(parameter.device, copy=True)


def make_optimisers(
    module: nn.Module, config: OptimiserConfig, head: Sequence[str] = (), rows: Sequence[str] = ()
) -> Optimisers:
    """The optimisers of all parameters of a module that learn.

    Parameters
    ----------
    module
        Embeddings made with ``sparse=True`` are updated row by row without being asked for.
    config
        Which optimiser, rates, decay.
    head
        Beginnings of names of the parameters that have the head's rate, such as ``"head."``.
    rows
        Beginnings of names of the tables whose gradients come as rows (see `encoders/row_gradients.py`).
    """
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not named:
        raise ConfigError("there is nothing to train: all parameters are frozen")
    for prefix in (*head, *rows):
        if not any(name.startswith(prefix) for name in named):
            raise ConfigError(f"no trainable parameter has a name that begins with '{prefix}'")
    by_row = {name for name in named if name.startswith(tuple(rows))} | (_sparse_tables(module) & set(named))
    parts: list[Optimizer] = []
    dense = _groups(module, {n: p for n, p in named.items() if n not in by_row}, config, head)
    if dense:
        parts.append(_torch_optimiser(config, dense))
    sparse = _groups(module, {n: p for n, p in named.items() if n in by_row}, config, head)
    if sparse:
        parts.append(RowOptimiser(sparse, config.name, _torch_settings(config)))
    base = tuple((group, group["lr"]) for part in parts for group in part.param_groups)
    return Optimisers(tuple(parts), {p: name for name, p in named.items()}, base)


def _sparse_tables(module: nn.Module) -> set[str]:
    return {
        f"{prefix}.weight".lstrip(".")
        for prefix, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    }


def _groups(
    module: nn.Module, named: Mapping[str, Tensor], config: OptimiserConfig, head: Sequence[str]
) -> list[dict[str, Any]]:
    """Parameters by rate and decay. Biases and the weights of norms are what has fewer than two dimensions."""
    decay = float(torch_defaults(config.name)["weight_decay"]) if config.weight_decay is None else config.weight_decay
    embeddings = {p for part in module.modules() for p in _embeddings(part)}
    body_rate, head_rate = rates(config)
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in named.items():
        spared = config.decay_on != "all" and parameter.ndim < 2
        spared |= config.decay_on == "matrices_but_embeddings" and parameter in embeddings
        rate = head_rate if name.startswith(tuple(head)) else body_rate
        groups.setdefault((rate, 0.0 if spared else decay), []).append(parameter)
    return [{"params": params, "lr": rate, "weight_decay": pull} for (rate, pull), params in groups.items()]


def _embeddings(part: nn.Module) -> Iterable[Tensor]:
    """Tables of vectors among a module's own parameters: torch's, or those that the module names as such."""
    if isinstance(part, nn.Embedding):
        return part.parameters()
    return (getattr(part, name) for name in getattr(part, "word_tables", ()))


def _torch_settings(config: OptimiserConfig) -> dict[str, Any]:
    """What the config says in torch's words; what it does not say stays torch's default."""
    given = {theirs: getattr(config, ours) for ours, theirs in TORCH_NAMES.items()}
    settings = {key: value for key, value in given.items() if value is not None}
    return {**settings, "amsgrad": True} if config.name == "amsgrad" else settings


def _torch_optimiser(config: OptimiserConfig, groups: list[dict[str, Any]]) -> Optimizer:
    """Fused kernels where there are any: one pass over memory instead of ten (7 times as fast on a CPU)."""
    kind: Any = CLASSES[config.name]
    settings = _torch_settings(config)
    # Torch finds out in the first step that there is no kernel, which is too late for another choice.
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    if "fused" in torch_defaults(config.name) and devices <= FUSED_ON.get(config.name, {"cpu", "cuda"}):
        settings["fused"] = True
    return kind(groups, **settings)


def clip_gradients(parameters: Iterable[Tensor], longest: float) -> Tensor:
    """Scale all gradients down so that their norm is at most `longest`; returns the norm before.

    Like `torch.nn.utils.clip_grad_norm_`, but for row-sparse gradients too.
    """
    values = list(_gradient_values(parameters))
    if not values:
        return torch.zeros(())
    length = torch.nn.utils.get_total_norm(values)
    # without an `if`: on a GPU that would wait for the number
    factor = torch.clamp(longest / (length + 1e-6), max=1.0)
    torch._foreach_mul_(values, factor)
    return length


def clip_adaptively(parameters: Iterable[Tensor], lengths: list[float]) -> Tensor:
    """Allow a gradient norm of five times the largest of the last ones, and append its own to `lengths`.

    As AttentionXML does it (You et al. 2019): of each norm no more than 1, and no more than twice the largest before
    it, is kept; until there are five nothing is clipped. Returns the norm before.
    """
    longest = max(lengths) if len(lengths) == REMEMBERED else math.inf
    before = clip_gradients(parameters, 5 * longest)
    length = float(before)
    if math.isfinite(length):
        lengths.append(min(length, 2 * longest, 1.0))
        del lengths[:-REMEMBERED]
    return before


def _gradient_values(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:  # rows that stand several times must be one before they are measured
            parameter.grad = gradient = gradient.coalesce()
            yield gradient._values()
        else:
            yield gradient
