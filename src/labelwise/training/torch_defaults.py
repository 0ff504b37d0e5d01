"""Torch's optimisers by our names, and torch's default settings."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim import Optimizer

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
