"""A study file: a base run, what varies in it, how to search, how to choose. Faults are found before a trial starts.

A *setting* is one choice of values for all that varies; with several seeds it becomes several *trials*, and each trial
is a run of its own, named by a hash of its whole config. The same trial in two groups is run once.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from labelwise.config import Config, ConfigSource, Place, validated
from labelwise.errors import ConfigError
from labelwise.metrics.names import parse_metric
from labelwise.parallel import threads
from labelwise.result_fields import RESULT, Fields, fields_beside, with_values_of, without
from labelwise.runs.config import RunConfig, run_config

Count = Annotated[int, Field(ge=1)]


class SearchSection(Config):
    """How settings are chosen."""

    kind: Literal["grid", "random", "optuna"] = "grid"
    """grid: all combinations; random: drawn; optuna: drawn with regard to what came out before (extra `sweep`)."""
    trials: Count | None = None
    """Settings for each group (random, optuna)."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the search, not of the training."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.trials is None) != (self.kind == "grid"):
            raise ValueError("`trials` is the number of settings for random and optuna; a grid has all of them")
        return self


class StopSection(Config):
    """When a trial is hopeless."""

    after: Annotated[float, Field(gt=0)]
    """Leave every trial alone until then."""
    unit: Literal["epochs", "steps", "seconds"] = "epochs"
    """What `after` counts, and at what trials are compared."""
    factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Hopeless is what stays below this share of what the others had at the same point."""
    than: Literal["median", "best"] = "median"
    """Which of the others is the measure."""
    others: Count = 2
    """Trials that must have come as far before any is stopped."""


class GroupSection(Config):
    """A part of the study with a search of its own."""

    name: str
    """Its name in the table."""
    vary: dict[str, Any]
    """What varies here, beside what varies in the whole study."""


class StudyConfig(Config):
    """A whole study."""

    run: dict[str, Any] = {}
    """The run that all trials share, as in a run config; goes over `base`."""
    base: str | None = None
    """A run config to start from, a path from the study file."""
    search: SearchSection = SearchSection()
    """How settings are chosen."""
    vary: dict[str, Any] = {}
    """Config fields and their values: a list, one value, {choices: [...]} or {low, high, log}."""
    groups: list[GroupSection] = []
    """Parts with a search of their own."""
    seeds: Annotated[list[int], Field(min_length=1)] | None = None
    """Train every setting with each of these seeds."""
    seed_field: str | None = None
    """The config field that takes the seed."""
    metric: str = "P@1"
    """What is to be high, on documents that are neither trained on nor tested on."""
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training documents held out for choosing when the data has no valid part."""
    parallel: Count = 1
    """Trials at a time."""
    threads: Count | None = None
    """Threads of all trials together. Not given: all cores."""
    gpus: Annotated[list[int], Field(min_length=1)] | None = None
    """Numbers of GPUs to give to the trials in turn."""
    stop_hopeless: StopSection | None = None
    """End trials that are far behind. Not given: all go to their end."""
    inspect: Literal["chosen", "all", "none"] = "chosen"
    """Trials that are looked into for the report (attention, documents as points): the best one and the best of each
    verdict, all, or none. What is looked at is `run.inspect`."""
    report: bool = True
    """Write report.html and the folder plots/ (needs the extra `report`)."""
    folder: str | None = None
    """Where the study goes. Not given: `sweeps/` and the study file's name."""

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
            raise ValueError("`seeds` and `seed_field` (such as model.seed) go together")
        if not self.vary and not self.groups:
            raise ValueError("nothing varies: give `vary` (or `groups`), such as vary: {model.trees: [1, 3]}")
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"groups need names of their own, got {', '.join(names)}")
        return self


class Span(Config):
    """Numbers from low to high; whole ones if both ends are."""

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
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True)
class Group:
    """Fields that vary together: choices or a span for each."""

    name: str
    vary: dict[str, list[Any] | Span]
    places: dict[str, Place]


@dataclass(frozen=True)
class Setting:
    """One choice of values for all that varies in a group."""

    group: Group
    values: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    name: str
    folder: Path
    config: RunConfig
    seed: int | None

    def beside(self, ending: str) -> Path:
        """A file of the sweep's own about this trial, beside its run folder."""
        return self.folder.with_name(self.name + ending)


@dataclass
class Study:
    """A checked study and the way to its trials."""

    config: StudyConfig
    source: ConfigSource
    folder: Path
    groups: list[Group]
    base: ConfigSource
    held_out: dict[str, float] = field(default_factory=dict)
    """For data sections without a valid part, by their JSON: the share to hold out."""

    @property
    def threads_a_trial(self) -> int:
        """Threads each trial may use."""
        return max(1, (self.config.threads or threads()) // self.config.parallel)

    def trials(self, setting: Setting) -> list[Trial]:
        """The runs of a setting, one a seed; a ConfigError if a value does not go."""
        return [self._trial(setting, seed) for seed in self.config.seeds or [None]]

    def _trial(self, setting: Setting, seed: int | None) -> Trial:
        source = copy.deepcopy(self.base)
        for path, value in setting.values.items():
            _put(source, tuple(path.split(".")), value, self.source.where(setting.group.places[path]))
        if seed is not None:
            _put(source, tuple(str(self.config.seed_field).split(".")), seed, self.source.where(("seed_field",)))
        _put(source, ("run", "threads"), self.threads_a_trial, self.source.name)
        if "report" not in source.values["run"]:
            _put(source, ("run", "report"), False, self.source.name)
        _put(source, ("inspect", "enabled"), self.config.inspect == "all", self.source.name)
        config = run_config(source)
        fraction = self.held_out.get(config.data.model_dump_json())
        if fraction is not None:
            config = config.model_copy(update={"data": config.data.model_copy(update={"valid_fraction": fraction})})
        identity = json.dumps(_identity(config, setting.values), sort_keys=True)
        name = hashlib.sha256(identity.encode()).hexdigest()[:12]
        folder = self.folder / "trials" / name
        run = config.run.model_copy(update={"folder": str(folder)})
        return Trial(name, folder, config.model_copy(update={"run": run}), seed)


def _identity(config: RunConfig, varied: Iterable[str]) -> dict[str, Any]:
    """What makes two trials different ones: all that decides the result, and what varies in the study.

    Other parameters of the method have their defaults here, so that names of trials do not change when one is marked.
    """
    run, kind = config.resolved(), type(config.make_method().config)
    fields = fields_beside(kind, RESULT)
    for path in varied:
        _unmark(fields, path.split(".")[1:] if path.startswith("model.") else [])
    defaults = with_values_of(run["model"], kind().model_dump(mode="json"), fields)
    return {**without(run, fields_beside(RunConfig, RESULT)), "model": defaults}


def _unmark(fields: Fields, place: Sequence[str]) -> None:
    """Take a field, and all below it, out of the fields that are left out."""
    for part in place:
        if part == place[-1] or fields.get(part) is True:
            fields.pop(part, None)
            return
        fields = fields.get(part, {})


def read_study(source: ConfigSource) -> Study:
    """A checked study; faults name file, line and the nearest valid name."""
    config = validated(StudyConfig, source.values, source)
    common = _dimensions(config.vary, ("vary",), source, config.search.kind)
    groups = []
    for number, section in enumerate(config.groups):
        own = _dimensions(section.vary, ("groups", number, "vary"), source, config.search.kind)
        groups.append(_group(section.name, {**common, **own}))
    folder = Path(config.folder or Path("sweeps") / (Path(source.name).stem or "study"))
    return Study(config, source, folder, groups or [_group("", common)], _base(config, source))


def _group(name: str, dimensions: Mapping[str, tuple[list[Any] | Span, Place]]) -> Group:
    vary = {path: values for path, (values, _) in dimensions.items()}
    return Group(name, vary, {path: place for path, (_, place) in dimensions.items()})


def _dimensions(
    vary: Mapping[str, Any], prefix: Place, source: ConfigSource, kind: str
) -> dict[str, tuple[list[Any] | Span, Place]]:
    found: dict[str, tuple[list[Any] | Span, Place]] = {}
    for path, given in vary.items():
        place = (*prefix, path)
        values: Any = given
        if isinstance(given, dict) and "choices" in given:
            values = given["choices"] if len(given) == 1 else None
        elif isinstance(given, dict):
            values = validated(Span, given, source, place)
        elif not isinstance(given, list):
            values = [given]
        where = f"{source.where(place)}: {path}"
        if not all(path.split(".")):
            raise ConfigError(f"{where}: a config field is needed, such as model.trees")
        if isinstance(values, Span) and kind == "grid":
            raise ConfigError(f"{where}: a grid needs a list of values; {{low, high}} goes with random and optuna")
        if not isinstance(values, Span | list) or not values:
            raise ConfigError(f"{where}: a list of values, {{choices: [...]}} or {{low, high, log}} is needed")
        found[path] = values, place
    return found


def _base(config: StudyConfig, source: ConfigSource) -> ConfigSource:
    """The run that all trials share, which still knows where each of its values stands."""
    if config.base is not None:
        base = ConfigSource.from_file(Path(source.name).parent / config.base)
        for place, value in _leaves(config.run, ()):
            _put(base, place, value, source.where(("run", *place)))
    else:
        lines = {place[1:]: line for place, line in source.lines.items() if place[:1] == ("run",)}
        base = ConfigSource(copy.deepcopy(config.run), source.name, lines)
        base.texts = {place[1:]: text for place, text in source.texts.items() if place[:1] == ("run",)}
        base.overridden = {p[1:]: option for p, option in source.overridden.items() if p[:1] == ("run",)}
    if not isinstance(base.values.setdefault("run", {}), dict):
        raise ConfigError(f"{base.where(('run',))}: run: a section with keys of its own is needed")
    return base


def _leaves(values: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*place, key))
        else:
            yield (*place, key), value


def _put(source: ConfigSource, place: tuple[str, ...], value: Any, origin: str) -> None:
    """Set a value, and remember who says so."""
    where = source.values
    for depth, part in enumerate(place[:-1], 1):
        if where.get(part) is None:
            where[part] = {}
        where = where[part]
        if not isinstance(where, dict):
            raise ConfigError(f"{origin}: {'.'.join(place)}: {'.'.join(place[:depth])} is a value, not a section")
    where[place[-1]] = copy.deepcopy(value)
    source.overridden[place] = origin
