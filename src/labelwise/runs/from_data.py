"""The config of a run on given data, without a config file: what `labelwise train DATA.csv` does.

A test part and a calibration part are held out by a hash of each document, unless the data has parts of its own, and
the saved model is trained on everything once the scores are known. Every default can be overridden as in a config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource
from labelwise.data.catalogue import downloaded_folder
from labelwise.data.catalogue import entry as known_entry
from labelwise.data.read import AUTO, expand_paths, find_parts, format_named, has_parts
from labelwise.data.splits import ALIASES, stem_and_extension
from labelwise.errors import ConfigError, DataError
from labelwise.run_schema import is_run_folder
from labelwise.runs.load_data import known_name
from labelwise.store import MANIFEST

CONFIG_EXTENSIONS = (".yml", ".yaml")
METHOD, AUTO_METHOD, BASELINE = "linear_tree", "auto", "popularity"
"""The method if none is given; the name that stands for a choice; what the choice begins with."""
FRACTION = 0.1


def is_config(argument: str) -> bool:
    """Whether an argument of `train` is a config: a YAML file, or `-` for standard input. Anything else is data."""
    return argument == "-" or Path(argument).suffix.lower() in CONFIG_EXTENSIONS


def config_from_data(
    data: Sequence[str],
    options: Mapping[str, str],
    method: str | None,
    folder: str | None,
    overrides: Sequence[str],
    budget: float | None = None,
) -> ConfigSource:
    """A run config for data: files (read as one part), a folder with its parts, or a known data set.

    `options` are reading options that the command line has names for; `overrides` are `--set` assignments. With the
    method `auto`, documents are held out to compare methods on, which also serve for the calibration, and the section
    `model` is that of a baseline until one is chosen within the `budget` of seconds.
    """
    described = " ".join(data)
    source = ConfigSource({}, f"{AUTO_METHOD if method == AUTO_METHOD else 'train'} {described}").override(overrides)
    if method == AUTO_METHOD and "model" in source.values:
        raise ConfigError("auto chooses the method and its parameters; leave out --set model")
    section, calibrate, run = (_section(source, name) for name in ("data", "calibrate", "run"))
    format = section.get("format", AUTO)
    parts = _parts(data, format if isinstance(format, str) else AUTO)
    whole = data[0] if len(data) == 1 else list(data)
    key = "path" if len(data) == 1 and not Path(data[0]).is_file() and "train" in parts else "train"
    _set(section, key, whole, described, f"data.{key}")
    for key, value in options.items():
        _set(_section(source, "data", "options"), key, value, f"{key}={value}", f"data.options.{key}")
    section.setdefault("split_by", "hash")
    if "test" not in parts and section.get("test") is None:
        section.setdefault("test_fraction", FRACTION)
    has_valid = "valid" in parts or any(section.get(key) is not None for key in ("valid", "valid_fraction"))
    if not has_valid and method == AUTO_METHOD:
        section["valid_fraction"] = FRACTION
    elif not has_valid and calibrate.get("enabled") is not False:
        calibrate.setdefault("fraction", FRACTION)
    model = _section(source, "model")
    if method == AUTO_METHOD:
        model["method"] = BASELINE
    elif method is not None:
        _set(model, "method", method, f"--method {method}", "model.method")
    if folder is not None:
        _set(run, "folder", folder, f"-o {folder}", "run.folder")
    if budget is not None:
        _set(run, "time_budget", budget, f"--budget {budget:g}s", "run.time_budget")
    model.setdefault("method", METHOD)
    run.setdefault("folder", str(Path("runs") / _name(data[0])))
    run.setdefault("refit", True)
    return source


def _section(source: ConfigSource, *names: str) -> dict[str, Any]:
    """A section of the config, created if it is missing; the config's own check refuses other values."""
    values = source.values
    for name in names:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            return {}
    return values


def _set(section: dict[str, Any], key: str, value: Any, given: str, name: str) -> None:
    """Set what the command line gives; another value with `--set` is refused, because one of them would be ignored."""
    if section.get(key, value) != value:
        raise ConfigError(f"{given} and --set {name}={section[key]} contradict each other; leave out one of them")
    section[key] = value


def _parts(data: Sequence[str], format: str) -> set[str]:
    """The parts (train, valid, test) that the data has of its own."""
    if len(data) > 1:
        missing = [str(path) for path in expand_paths(data) if not path.exists()]
        if missing:
            raise DataError(f"there is no file {missing[0]}")
        return set()
    path = Path(data[0])
    if path.exists() and has_parts(path):
        _refuse_results(path)
        found = find_parts(path, format)[1]
        if len(found) == 1 and not found.keys() & ALIASES.keys() and path not in found.values():
            return {"train"}  # one file of another name
        return set(found) & set(ALIASES)
    if path.exists() or expand_paths(path) != [path]:
        return set()
    if path.suffix:
        raise DataError(f"there is no file {path}")
    name = known_name(str(path), "data")
    return set(find_parts(downloaded_folder(name), known_entry(name).format)[1]) & set(ALIASES)


def _refuse_results(folder: Path) -> None:
    if is_run_folder(folder):
        raise ConfigError(f"{folder}: this is a run folder, not data; labelwise train {folder}/config.yml resumes it")
    if (folder / MANIFEST).exists() and not format_named("native").recognises(folder):
        raise ConfigError(f"{folder}: this is a model folder, not data")


def _name(path: str) -> str:
    """A name for the run: that of the file without extensions, or of the folder."""
    plain = Path(path).resolve()
    name = plain.name if plain.is_dir() else stem_and_extension(plain)[0]
    return "".join(character for character in name if character not in "*?[]") or "run"
