"""What commands read: configs, models and texts, from files or standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from labelwise.data.options import ReadOptions
    from labelwise.methods.base import Method


def config_source(path: str) -> ConfigSource:
    """The config in a file, or on standard input for `-`."""
    if path == "-":
        return ConfigSource.from_yaml(stdin_text("the config"), "stdin")
    return ConfigSource.from_file(path)


def refuse_study(source: ConfigSource) -> None:
    """Say which command is meant when a run is to be trained from a study file."""
    if source.values.keys() & {"vary", "groups", "search", "seeds"} and not source.values.keys() & {"data", "model"}:
        raise ConfigError(f"{source.name}: this is a study, not the config of a run; labelwise sweep carries it out")


def refuse_run_config(source: ConfigSource) -> None:
    """Say which command is meant when a study is to be made of a run config."""
    if source.values.keys() & {"data", "model"} and not source.values.keys() & {"vary", "groups"}:
        raise ConfigError(
            f"{source.name}: this is the config of a run, not a study; labelwise train carries it out. A study has the "
            "run config under `run` (or names it as `base`), and `vary`"
        )


def stdin_text(what: str) -> str:
    """All of standard input."""
    try:
        return sys.stdin.read()
    except (AttributeError, ValueError, OSError) as error:
        raise ConfigError(f"stdin: {what} cannot be read: {error}") from None


def open_model(path: str) -> Method:
    """The model in a model folder or in a run folder."""
    from labelwise.methods.base import load

    return load(model_folder(path))


def model_folder(path: str) -> Path:
    """The model folder that is meant by a model folder or a run folder."""
    from labelwise.store import MANIFEST

    folder = Path(path)
    if not (folder / MANIFEST).exists() and (folder / "state.json").exists():
        if not (folder / "model" / MANIFEST).exists():
            raise ConfigError(f"{folder}: this run has no model yet; give its train command again to go on with it")
        return folder / "model"
    return folder


def chosen_threshold(given: str | None, model: Method) -> float | None:
    """A threshold as typed: a number, or `auto` for the one that was found when the model was calibrated."""
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
    """How to read documents for a model: as its run was told for such files, changed by what is given now."""
    from labelwise.config import validated
    from labelwise.data.options import ReadOptions

    before, held = section_of_run(model, "data"), None
    if Path(str(before.get("train") or before.get("path"))).suffix == Path(documents).suffix:
        held = before.get("options")
    return validated(ReadOptions, {**(held if isinstance(held, dict) else {}), **overrides}, source)


def section_of_run(model: str, name: str) -> dict[str, Any]:
    """What the config of a run says in one section; nothing for a model folder."""
    config = Path(model) / "config.yml"
    section: Any = ConfigSource.from_file(config).values.get(name) if config.exists() else None
    return section if isinstance(section, dict) else {}


def refuse_existing(path: str | Path, force: bool) -> Path:
    """The path, unless something is there and may not be replaced."""
    target = Path(path)
    if target.exists() and not force:
        raise DataError(f"{target} exists already; --force replaces it")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: there is no such folder")
    return target
