"""What commands with a model need of its run: the options its documents were read with, and its threshold."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource, validated
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError
from labelwise.methods.base import Method
from labelwise.methods.card import Reading, read_card
from labelwise.run_schema import CONFIG, model_folder
from labelwise.runs.config import DataSection
from labelwise.store import Folder


def chosen_threshold(given: str | None, model: Method, path: str) -> float | None:
    """Parse --threshold: a number, or `auto` for the calibrated threshold of the model from this path."""
    if given is None:
        return None
    if given == "auto":
        if model.threshold_ is None:
            raise ConfigError(
                f"--threshold auto: this model is not calibrated; `labelwise calibrate {shlex.quote(path)} DATA` does "
                "that, or give a number"
            )
        return model.threshold_
    try:
        threshold = float(given)
    except ValueError:
        raise ConfigError(f"--threshold: a number or auto is needed, got '{given}'") from None
    if model.calibration_ is not None and threshold > 1:
        auto = "" if model.threshold_ is None else f", for example {model.threshold_:.4g}, which is `auto`"
        raise ConfigError(
            f"--threshold {given}: no label can reach it, because this model is calibrated and its scores are "
            f"probabilities; give a number between 0 and 1{auto}"
        )
    return threshold


def read_options(model: str, documents: str, overrides: Mapping[str, Any], source: ConfigSource) -> ReadOptions:
    """How to read documents for a model: as files of this type were read for its training, with overrides."""
    recorded = _reading(model).options_for(documents)
    try:
        validated(ReadOptions, recorded)
    except ConfigError as error:
        raise ConfigError(f"{model}: the options its documents were read with: {error}") from None
    return validated(ReadOptions, {**recorded, **overrides}, source)


def _reading(model: str) -> Reading:
    """From the card of the model; for one without, from the config of its run."""
    reading = read_card(Folder(model_folder(model), "model")).reading
    if reading is None:
        data = section_of_run(model, "data")
        if data:
            section = validated(DataSection, data)
            reading = Reading.of(section.training_path, section.format, section.options)
    return reading or Reading()


def section_of_run(model: str, name: str) -> dict[str, Any]:
    """One section of the config of a run; empty for a model folder."""
    config = Path(model) / CONFIG
    section: Any = ConfigSource.from_file(config).values.get(name) if config.exists() else None
    return section if isinstance(section, dict) else {}
