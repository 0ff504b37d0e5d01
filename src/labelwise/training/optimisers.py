"""Optimisers from their config: torch's own with torch's own defaults, parameter groups, clipping, flat state.

Parameters are identified by name, also in checkpoints.
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
"""Gradient norms that adaptive clipping remembers."""
# Names of the settings: ours and torch's.
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
    base_rates: tuple[tuple[dict[str, Any], float], ...]
    """Each parameter group and its learning rate before the schedule."""

    def set_rates(self, factor: float) -> None:
        """Set the learning rates of the next step."""
        for group, rate in self.base_rates:
            group["lr"] = rate * factor

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
        Name prefixes of the tables with row-sparse gradients (see `encoders/row_gradients.py`).
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
    return [{"params": params, "lr": rate, "weight_decay": decay} for (rate, decay), params in groups.items()]


def _embeddings(part: nn.Module) -> Iterable[Tensor]:
    """Embedding tables among a module's own parameters: torch's, or those listed in its `word_tables`."""
    if isinstance(part, nn.Embedding):
        return part.parameters()
    return (getattr(part, name) for name in getattr(part, "word_tables", ()))


def _torch_settings(config: OptimiserConfig) -> dict[str, Any]:
    """The settings of the config under torch's names; the others have torch's defaults."""
    given = {theirs: getattr(config, ours) for ours, theirs in TORCH_NAMES.items()}
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
