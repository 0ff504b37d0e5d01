"""Which validation of a training was the best, and when patience has run out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from labelwise.errors import ConfigError, did_you_mean
from labelwise.networks.settings import TrainingConfig, lower_is_better
from labelwise.training.checkpoint_manager import LoopState


def update_best(state: LoopState, numbers: Mapping[str, Any], config: TrainingConfig) -> bool:
    """Record a validation; returns whether it is the best so far.

    Parameters
    ----------
    state
        Progress of the training; `best` and `without_gain` are updated.
    numbers
        The numbers of the validation by name.
    config
        Settings of training, among them `metric`.
    """
    if config.validate_every is None:
        return False
    if config.metric not in numbers:
        offered = [key for key in numbers if key not in ("step", "epoch", "rate")]
        if offered == ["loss"] and config.early_stopping is None:
            return False  # no held-out documents, and no setting depends on them
        raise ConfigError(f"training.metric: no '{config.metric}' here; {did_you_mean(config.metric, offered)}")
    value = float(numbers[config.metric])
    sign = -1 if lower_is_better(config.metric) else 1
    if math.isfinite(value) and (state.best is None or sign * value > sign * state.best["value"]):
        state.best, state.without_gain = {"metric": config.metric, "value": value, "step": state.step}, 0
        return True
    state.without_gain += 1
    return False


def is_out_of_patience(state: LoopState, config: TrainingConfig) -> bool:
    """Whether so many validations have brought no gain that training ends."""
    return config.early_stopping is not None and state.without_gain >= config.early_stopping.patience
