"""A study file: a base run, the fields that vary, the search, the metric. Errors are found before a trial starts.

A *setting* is one choice of values for all varying fields; with several seeds it becomes several *trials*. Each trial
is a separate run, named by a hash of its whole config. The same trial in two groups is run once.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from labelwise.config import (
    RESULT,
    Config,
    ConfigSource,
    Fields,
    KeyPath,
    flattened,
    ignored_fields,
    validated,
    with_fields_from,
    without_fields,
)
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.io.atomic import LOCK, clean_up, is_temporary_name, replacing
from labelwise.io.folder import STATE, TASKS
from labelwise.metrics.names import parse_metric
from labelwise.runs.config import RunConfig, deciding_values, run_config
from labelwise.runtime.threads import threads

Count = Annotated[int, Field(ge=1)]


class SearchSection(Config):
    """How settings are chosen."""

    kind: Literal["grid", "random", "optuna"] = "grid"
    """grid: all combinations; random: drawn at random; optuna: proposed from the results so far (extra `sweep`)."""
    trials: Count | None = None
    """Number of settings per group (random, optuna)."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the search, not of the training."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.trials is None) != (self.kind == "grid"):
            raise ValueError("`trials` is the number of settings for random and optuna; a grid has all combinations")
        return self


class StopSection(Config):
    """When a trial is hopeless."""

    after: Annotated[float, Field(gt=0)]
    """Never stop a trial before this point."""
    unit: Literal["epochs", "steps", "seconds"] = "epochs"
    """Unit of `after`, and of the point at which trials are compared."""
    factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """A trial is hopeless below this fraction of the metric that the others had at the same point."""
    than: Literal["median", "best"] = "median"
    """Compare with the median or the best of the others."""
    others: Count = 2
    """Number of trials that must have reached the same point before any is stopped."""


class GroupSection(Config):
    """A part of the study with a separate search."""

    name: str
    """Its name in the table."""
    vary: dict[str, Any]
    """Fields that vary in this group, in addition to those of the whole study."""


class StudyConfig(Config):
    """Config of a study."""

    run: dict[str, Any] = {}
    """The run that all trials share, as in a run config; overrides `base`."""
    base: str | None = None
    """A run config to start from; the path is relative to the study file."""
    search: SearchSection = SearchSection()
    """How settings are chosen."""
    vary: dict[str, Any] = {}
    """Config fields and their values: a list, one value, {choices: [...]} or {low, high, log}."""
    groups: list[GroupSection] = []
    """Parts of the study with separate searches."""
    seeds: Annotated[list[int], Field(min_length=1)] | None = None
    """Train every setting with each of these seeds."""
    seed_field: str | None = None
    """The config field that is set to the seed."""
    metric: str = "P@1"
    """The metric to maximise, on documents that are neither trained on nor tested on."""
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of the training documents held out for validation if the data has no valid part."""
    parallel: Count = 1
    """Number of trials that run in parallel."""
    threads: Count | None = None
    """Threads of all trials together. Not given: all cores."""
    gpus: Annotated[list[int], Field(min_length=1)] | None = None
    """Indices of the GPUs that trials are distributed over."""
    time_budget: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which no further trial is started; running ones end. Not given: all trials are run."""
    stop_hopeless: StopSection | None = None
    """Stop trials that are far behind. Not given: all trials run to the end."""
    inspect: Literal["chosen", "all", "none"] = "chosen"
    """Trials that are inspected for the report (attention, documents as points): the best one and the best of each
    verdict, all, or none. `run.inspect` sets what is shown."""
    report: bool = True
    """Write report.html and the folder plots/ (needs the extra `report`)."""
    folder: str | None = None
    """Folder of the study. Not given: `sweeps/` and the study file's name."""

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        try:
            return parse_metric(name).name
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.seeds is None) != (self.seed_field is None):
            raise ValueError("`seeds` and `seed_field` (such as model.seed) must be given together")
        if not self.vary and not self.groups:
            raise ValueError("nothing varies: give `vary` (or `groups`), such as vary: {model.trees: [1, 3]}")
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"groups need distinct names, got {', '.join(names)}")
        return self


class Span(Config):
    """Numbers from low to high; integers if both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("low must be below high, and above 0 with log")
        return self

    @property
    def whole(self) -> bool:
        """Whether the range is one of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class SearchGroup:
    """Fields that vary together: choices or a range for each."""

    name: str
    vary: dict[str, list[Any] | Span]
    key_paths: dict[str, KeyPath]


@dataclass(frozen=True)
class Setting:
    """One choice of values for all varying fields of a group."""

    group: SearchGroup
    values: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    name: str
    folder: Path
    config: RunConfig
    seed: int | None

    def beside(self, ending: str) -> Path:
        """A file of the sweep about this trial, beside its run folder."""
        return self.folder.with_name(self.name + ending)


@dataclass
class Study:
    """A validated study, which builds the configs of its trials."""

    config: StudyConfig
    source: ConfigSource
    folder: Path
    groups: list[SearchGroup]
    base: ConfigSource
    held_out: dict[str, float] = field(default_factory=dict)
    """For data sections without a valid part, by their JSON: the fraction to hold out."""

    @property
    def threads_per_trial(self) -> int:
        """Threads each trial may use."""
        return max(1, (self.config.threads or threads()) // self.config.parallel)

    def trials(self, setting: Setting) -> list[Trial]:
        """The trials of a setting, one per seed; a ConfigError if a value is not accepted."""
        return [self._trial(setting, seed) for seed in self.config.seeds or [None]]

    def best_run(self, setting: Setting) -> RunConfig:
        """The config of a setting with the first seed as a run outside the study, without what only trials need."""
        source = self._source(setting, self.config.seeds[0] if self.config.seeds else None)
        _set_value(source, ("run", "folder"), str(Path("runs") / f"{self.folder.name}-best"), self.source.name)
        return self._with_valid_part(run_config(source))

    def _source(self, setting: Setting, seed: int | None) -> ConfigSource:
        """The shared run with the values of a setting."""
        source = copy.deepcopy(self.base)
        for path, value in setting.values.items():
            _set_value(source, tuple(path.split(".")), value, self.source.where(setting.group.key_paths[path]))
        if seed is not None:
            _set_value(source, tuple(str(self.config.seed_field).split(".")), seed, self.source.where(("seed_field",)))
        return source

    def _with_valid_part(self, config: RunConfig) -> RunConfig:
        """The config with held-out documents if the data has no valid part."""
        fraction = self.held_out.get(config.data.model_dump_json())
        if fraction is None:
            return config
        return config.model_copy(update={"data": config.data.model_copy(update={"valid_fraction": fraction})})

    def _trial(self, setting: Setting, seed: int | None) -> Trial:
        source = self._source(setting, seed)
        _set_value(source, ("run", "threads"), self.threads_per_trial, self.source.name)
        if "report" not in source.values["run"]:
            _set_value(source, ("run", "report"), False, self.source.name)
        _set_value(source, ("run", "refit"), False, self.source.name)  # a refitted model has seen the valid part
        _set_value(source, ("inspect", "enabled"), self.config.inspect == "all", self.source.name)
        config = self._with_valid_part(run_config(source))
        identity = json.dumps(_identity(config, setting.values), sort_keys=True)
        name = hashlib.sha256(identity.encode()).hexdigest()[:12]
        folder = self.folder / "trials" / name
        run = config.run.model_copy(update={"folder": str(folder)})
        return Trial(name, folder, config.model_copy(update={"run": run}), seed)


def _identity(config: RunConfig, varied: Iterable[str]) -> dict[str, Any]:
    """What identifies a trial: all values that decide the result, and the varied fields of the study.

    Other parameters of the method are set to their defaults, so that trial names do not change when a field is marked.
    """
    run, kind = config.resolved(), type(config.make_method().config)
    fields = ignored_fields(kind, RESULT)
    for path in varied:
        _unmark(fields, path.split(".")[1:] if path.startswith("model.") else [])
    defaults = with_fields_from(run["model"], kind().model_dump(mode="json"), fields)
    values = {**without_fields(run, ignored_fields(RunConfig, RESULT)), "model": defaults}
    if config.run.time_budget is None:
        del values["run"]  # as before runs had a time budget, so that names of trials do not change
    return values


def _unmark(fields: Fields, key_path: Sequence[str]) -> None:
    """Remove a field, and all below it, from the ignored fields."""
    for part in key_path:
        if part == key_path[-1] or fields.get(part) is True:
            fields.pop(part, None)
            return
        fields = fields.get(part, {})


def read_study(source: ConfigSource) -> Study:
    """A validated study; errors name file, line and the most similar valid key."""
    config = validated(StudyConfig, source.values, source)
    common = _dimensions(config.vary, ("vary",), source, config.search.kind)
    groups = []
    for number, section in enumerate(config.groups):
        own = _dimensions(section.vary, ("groups", number, "vary"), source, config.search.kind)
        groups.append(_group(section.name, {**common, **own}))
    folder = Path(config.folder or Path("sweeps") / (Path(source.name).stem or "study"))
    return Study(config, source, folder, groups or [_group("", common)], _base(config, source))


def _group(name: str, dimensions: Mapping[str, tuple[list[Any] | Span, KeyPath]]) -> SearchGroup:
    vary = {path: values for path, (values, _) in dimensions.items()}
    return SearchGroup(name, vary, {path: key_path for path, (_, key_path) in dimensions.items()})


def _dimensions(
    vary: Mapping[str, Any], prefix: KeyPath, source: ConfigSource, kind: str
) -> dict[str, tuple[list[Any] | Span, KeyPath]]:
    dimensions: dict[str, tuple[list[Any] | Span, KeyPath]] = {}
    for path, given in vary.items():
        key_path = (*prefix, path)
        values: Any = given
        if isinstance(given, dict) and "choices" in given:
            values = given["choices"] if len(given) == 1 else None
        elif isinstance(given, dict):
            values = validated(Span, given, source, key_path)
        elif not isinstance(given, list):
            values = [given]
        where = f"{source.where(key_path)}: {path}"
        if not all(path.split(".")):
            raise ConfigError(f"{where}: a config field is needed, such as model.trees")
        if isinstance(values, Span) and kind == "grid":
            raise ConfigError(f"{where}: a grid needs a list of values; {{low, high}} is for random and optuna")
        if not isinstance(values, Span | list) or not values:
            raise ConfigError(f"{where}: a list of values, {{choices: [...]}} or {{low, high, log}} is needed")
        dimensions[path] = values, key_path
    return dimensions


def _base(config: StudyConfig, source: ConfigSource) -> ConfigSource:
    """The run that all trials share, with the file and line of each value."""
    if config.base is not None:
        base = ConfigSource.from_file(Path(source.name).parent / config.base)
        for key_path, value in _leaves(config.run, ()):
            _set_value(base, key_path, value, source.where(("run", *key_path)))
    else:
        lines = {key_path[1:]: line for key_path, line in source.lines.items() if key_path[:1] == ("run",)}
        base = ConfigSource(copy.deepcopy(config.run), source.name, lines)
        base.texts = {key_path[1:]: text for key_path, text in source.texts.items() if key_path[:1] == ("run",)}
        base.overridden = {p[1:]: option for p, option in source.overridden.items() if p[:1] == ("run",)}
    if not isinstance(base.values.setdefault("run", {}), dict):
        raise ConfigError(f"{base.where(('run',))}: run: a section with keys is needed")
    return base


def _leaves(values: Mapping[str, Any], key_path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*key_path, key))
        else:
            yield (*key_path, key), value


def _set_value(source: ConfigSource, key_path: tuple[str, ...], value: Any, origin: str) -> None:
    """Set a value and record its origin."""
    where = source.values
    for depth, part in enumerate(key_path[:-1], 1):
        if where.get(part) is None:
            where[part] = {}
        where = where[part]
        if not isinstance(where, dict):
            raise ConfigError(f"{origin}: {'.'.join(key_path)}: {'.'.join(key_path[:depth])} is a value, not a section")
    where[key_path[-1]] = copy.deepcopy(value)
    source.overridden[key_path] = origin


# --- claim ---
# Checks that a folder belongs to a study: study.json in it is a copy of the study with all defaults.
#
# A sweep resumes only in the folder of the same study. Trials are named by hashes of their configs, so adding values,
# seeds or settings keeps the study the same; another base run, or removing a field from `vary`, makes it a different
# one.

log = logging.getLogger("labelwise")

STUDY, FORMAT = "study.json", "labelwise-study"
WRITTEN = ("trials", "results.csv", "results.json", "best.yml", "proposed.json", "report.html", "plots")
FILES = (STUDY, *WRITTEN)
FIXED_FIELDS = ("search.kind", "search.seed", "seed_field", "valid_fraction")


def resolved(study: Study) -> dict[str, Any]:
    """A study as plain data: its config, the run that all trials share, and the fields that vary in each group."""
    values = study.config.model_dump(mode="json", exclude={"base", "folder", "run"})
    base = copy.deepcopy(study.base)
    try:
        run = run_config(base).resolved()
    except LabelwiseError:  # a run that is incomplete without the varied fields is kept as written
        run = base.values
    return {
        **values,
        "run": deciding_values(run, RESULT),
        "varies": {group.name: sorted(group.vary) for group in study.groups},
    }


def check_folder(study: Study, force: bool) -> bool:
    """Whether the folder already holds this study; an error if it holds anything else. Nothing is written."""
    folder, path = study.folder, study.folder / STUDY
    try:
        names = {item.name for item in folder.iterdir()} - {LOCK, TASKS} if folder.exists() else set()
        names = {name for name in names if not is_temporary_name(name, FILES, ())}
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be used: {error.strerror}") from None
    if not names:
        return False
    if STATE in names:
        raise ConfigError(f"{folder} is the folder of a run; choose another for the study with --set folder=...")
    if STUDY not in names:
        raise ConfigError(f"{folder} exists and is not a study's folder; choose another with --set folder=...")
    before = _read_study(path)
    if force:
        return True
    different = differences(before, resolved(study))
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise ConfigError(
            f"{folder} holds another study; it differs in {', '.join(different[:5])}{more}. --force replaces it, "
            "--set folder=... keeps both"
        )
    return True


def claim(study: Study, force: bool) -> None:
    """Write study.json; with `force`, after removing everything that a sweep has written there.

    The old study.json stays until the new one replaces it, so that a kill in between leaves a valid study folder.
    """
    clean_up(study.folder, FILES, ())
    if check_folder(study, force):
        if force:
            for path in (study.folder / name for name in WRITTEN):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        else:
            log.info("resuming the study in %s", study.folder)
    with replacing(study.folder / STUDY) as file:
        file.write(json.dumps({"format": FORMAT, "study": resolved(study)}, indent=1, ensure_ascii=False) + "\n")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The fields in which two studies differ, with both values; empty if the second can resume the first."""
    different = []
    earlier, later = (flattened({**study, "run": deciding_values(study["run"], RESULT)}) for study in (before, now))
    for group, paths in before["varies"].items():
        if group not in now["varies"]:
            different.append(f"groups ({group} was removed)" if group else "groups (there were none)")
        else:
            removed = [path for path in paths if path not in now["varies"][group]]
            different += [f"vary ({path} no longer varies)" for path in removed]
    for path in FIXED_FIELDS:
        was, value = earlier.get(path), later.get(path)
        if was != value and not (path == "seed_field" and was is None):  # seeds may be added
            different.append(f"{path} ({_shown(was)}, now {_shown(value)})")
    varying = {f"run.{path}" for values in (before, now) for paths in values["varies"].values() for path in paths}
    varying |= {f"run.{values.get('seed_field')}" for values in (before, now)}
    for path in dict.fromkeys([*earlier, *later]):
        if not path.startswith("run.") or any(f"{path}.".startswith(f"{field}.") for field in varying):
            continue
        was, value = earlier.get(path), later.get(path)
        if was != value:
            different.append(f"{path} ({_shown(was)}, now {_shown(value)})")
    return different


def _read_study(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (
            content["format"] == FORMAT
            and isinstance(content["study"]["varies"], dict)
            and isinstance(content["study"]["run"], dict)
        ):
            return content["study"]
        problem = "not the file of a study"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    raise ModelFormatError(f"{path}: damaged: {problem}; choose another folder with --set folder=...")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
