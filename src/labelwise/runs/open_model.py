"""What commands with a model need of its run: the options its documents were read with, and its threshold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource, validated
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError
from labelwise.methods.base import Method
from labelwise.run_schema import CONFIG


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
