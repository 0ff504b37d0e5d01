"""Opens the model of a model folder or run folder, with the options that its run read documents with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource, validated
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError
from labelwise.methods.base import Method, load
from labelwise.run_schema import CONFIG, MODEL, STATE
from labelwise.store import MANIFEST


def open_model(path: str) -> Method:
    """The model in a model folder or in a run folder."""
    return load(model_folder(path))


def model_folder(path: str) -> Path:
    """The model folder itself, or the one inside a run folder."""
    folder = Path(path)
    if not (folder / MANIFEST).exists() and (folder / STATE).exists():
        if not (folder / MODEL / MANIFEST).exists():
            raise ConfigError(f"{folder}: this run has no model yet; run its train command again to resume it")
        return folder / MODEL
    return folder


def chosen_threshold(given: str | None, model: Method) -> float | None:
    """Parse --threshold: a number, or `auto` for the calibrated threshold of the model."""
    if given is None:
        return None
    if given == "auto":
        if model.threshold_ is None:
            raise ConfigError(
                "--threshold auto: this model is not calibrated; `labelwise calibrate MODEL DATA` does that, "
                "or give a number"
            )
        return model.threshold_
    try:
        return float(given)
    except ValueError:
        raise ConfigError(f"--threshold: a number or auto is needed, got '{given}'") from None


def read_options(model: str, documents: str, overrides: Mapping[str, Any], source: ConfigSource) -> ReadOptions:
    """How to read documents for a model: as its run read files of this type, with overrides."""
    before, recorded = section_of_run(model, "data"), None
    trained = before.get("train") or before.get("path")
    first = trained[0] if isinstance(trained, list) else trained
    if Path(str(first)).suffix == Path(documents).suffix:
        recorded = before.get("options")
    return validated(ReadOptions, {**(recorded if isinstance(recorded, dict) else {}), **overrides}, source)


def section_of_run(model: str, name: str) -> dict[str, Any]:
    """One section of the config of a run; empty for a model folder."""
    config = Path(model) / CONFIG
    section: Any = ConfigSource.from_file(config).values.get(name) if config.exists() else None
    return section if isinstance(section, dict) else {}
