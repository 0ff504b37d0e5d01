"""Inputs of commands: configs and texts, from files or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, DataError


def config_source(path: str) -> ConfigSource:
    """The config in a file, or on standard input for `-`."""
    if path == "-":
        return ConfigSource.from_yaml(stdin_text("the config"), "stdin")
    return ConfigSource.from_file(path)


def refuse_study(source: ConfigSource) -> None:
    """Refuse a study file where a run config is needed, and name the right command."""
    if source.values.keys() & {"vary", "groups", "search", "seeds"} and not source.values.keys() & {"data", "model"}:
        raise ConfigError(f"{source.name}: this is a study, not the config of a run; use labelwise sweep")


def refuse_run_config(source: ConfigSource) -> None:
    """Refuse a run config where a study file is needed, and name the right command."""
    if source.values.keys() & {"data", "model"} and not source.values.keys() & {"vary", "groups"}:
        raise ConfigError(
            f"{source.name}: this is the config of a run, not a study; use labelwise train. A study has the "
            "run config under `run` (or names it as `base`), and `vary`"
        )


def stdin_text(what: str) -> str:
    """All of standard input."""
    try:
        return sys.stdin.read()
    except (AttributeError, ValueError, OSError) as error:
        raise ConfigError(f"stdin: {what} cannot be read: {error}") from None


def refuse_existing(path: str | Path, force: bool) -> Path:
    """The path as a Path; an error if it exists and `force` is not given."""
    target = Path(path)
    if target.exists() and not force:
        raise DataError(f"{target} exists already; --force replaces it")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: there is no such folder")
    return target
