"""The files of a study's folder, read and checked: settings, their trials, and how each training went.

Reports of studies are a pure function of what is returned here. A trial may have failed, may have been stopped, or may
come from a method without learning curves: what is not there is None or empty.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from labelwise.config import ConfigSource
from labelwise.errors import DataError, LabelwiseError
from labelwise.formatting import number
from labelwise.report.curves import Course, read_course
from labelwise.report.inspection import Inspection, read_inspection
from labelwise.report.wording import short_names
from labelwise.run_schema import METRICS, RESULTS, STATE, Record, read_json, read_metrics

TRIALS = "trials"
FACTOR, RATE = "optimiser.rate_factor", "optimiser.rate"


class TrialEntry(Record):
    """What results.json says of one trial."""

    seed: int | None = None
    status: str = "unknown"
    value: float | None = None
    test: float | None = None
    seconds: float | None = None
    verdict: str | None = None
    message: str = ""


class StudyEntry(Record):
    """results.json of a study."""

    metric: str
    rows: tuple[dict[str, Any], ...]
    trials: dict[str, TrialEntry]


@dataclass(frozen=True)
class TrialFacts:
    """One trial: what came out of it, and how it went."""

    name: str
    entry: TrialEntry
    config: dict[str, Any]
    course: Course
    inspection: Inspection | None

    @property
    def best(self) -> float | None:
        """The best of the metric while training; without validation what it has in the end."""
        reached = [value for _, value in self.course.metric if value is not None]
        return max(reached, default=self.entry.value)


@dataclass(frozen=True)
class SettingFacts:
    """One setting with a trial for each seed; `values` are those of the fields in which settings differ."""

    group: str
    values: dict[str, Any]
    trials: tuple[TrialFacts, ...]
    varied: frozenset[str] = frozenset()
    """Fields that its own group gives a value."""
    label: str = ""

    def each(self, what: str) -> list[float]:
        """A number of every trial that has it: value, test, seconds of the entry, or best, or the final loss."""
        found = [
            trial.best if what == "best" else trial.course.final_loss if what == "loss" else getattr(trial.entry, what)
            for trial in self.trials
        ]
        return [value for value in found if value is not None]

    def mean(self, what: str) -> float | None:
        """The mean over seeds."""
        found = self.each(what)
        return mean(found) if found else None

    def spread(self, what: str) -> float | None:
        """The standard deviation over seeds, if there are several."""
        found = self.each(what)
        return stdev(found) if len(found) > 1 else None

    @property
    def verdict(self) -> str | None:
        """The commonest verdict of its trials."""
        found = Counter(trial.entry.verdict for trial in self.trials if trial.entry.verdict)
        return found.most_common(1)[0][0] if found else None

    @property
    def method(self) -> str | None:
        """The method trained."""
        found = value_at(self.trials[0].config, "model.method") if self.trials else None
        return found if isinstance(found, str) else None


@dataclass(frozen=True)
class StudyFacts:
    """All that is known of a study, the best settings first."""

    folder: Path
    metric: str
    fields: dict[str, str]
    """Paths of the fields in which settings differ, and what they are called."""
    settings: tuple[SettingFacts, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def distinct(self) -> list[SettingFacts]:
        """Settings without those that another group has too: the same trials."""
        seen: dict[tuple[str, ...], SettingFacts] = {}
        for setting in self.settings:
            seen.setdefault(tuple(trial.name for trial in setting.trials), setting)
        return list(seen.values())


def is_study(folder: Path) -> bool:
    """Whether a folder is a study's and not a run's."""
    return (folder / TRIALS).is_dir() and not is_run(folder)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's."""
    return (folder / STATE).exists()


def read_study_folder(folder: str | Path) -> StudyFacts:
    """Read a study's folder; what is damaged raises a DataError that names the file."""
    path = Path(folder)
    if not (path / RESULTS).is_file():
        raise DataError(f"{RESULTS} is missing: the sweep has not come to its end; give its command again", path)
    whole = read_json(path / RESULTS, StudyEntry)
    notes: list[str] = []
    trials = {name: _trial(path / TRIALS, name, entry, whole.metric, notes) for name, entry in whole.trials.items()}
    settings = [_setting(row, whole.metric, trials, path / RESULTS) for row in whole.rows]
    paths = _differing(settings)
    settings = [replace(setting, values={key: setting.values[key] for key in paths}) for setting in settings]
    fields = dict(zip(paths, _field_names(paths), strict=True))
    settings, fields = _with_real_rates(settings, fields)
    labels = _labels(settings, fields)
    labelled = tuple(replace(s, label=label or s.group or "setting") for s, label in zip(settings, labels, strict=True))
    return StudyFacts(path, whole.metric, fields, labelled, tuple(dict.fromkeys(notes)))


def _trial(folder: Path, name: str, entry: TrialEntry, metric: str, notes: list[str]) -> TrialFacts:
    if Path(name).name != name:
        raise DataError(f"damaged: {name!r} is not the name of a trial", folder.parent / RESULTS)
    path = folder / name
    entries = read_metrics(path / METRICS, notes) if (path / METRICS).is_file() else ()
    return TrialFacts(name, entry, _config(folder, name), read_course(entries, metric), read_inspection(path))


def _config(folder: Path, name: str) -> dict[str, Any]:
    """The resolved config, from the run itself or as the sweep handed it over."""
    for path in (folder / name / "config.yml", folder / f"{name}.yml"):
        if path.is_file():
            try:
                return ConfigSource.from_file(path).values
            except LabelwiseError as error:
                raise DataError(f"damaged: {error}", path) from None
    return {}


def _setting(row: dict[str, Any], metric: str, trials: dict[str, TrialFacts], path: Path) -> SettingFacts:
    names = row.get("trials")
    if not isinstance(names, list) or not all(name in trials for name in names) or metric not in row:
        raise DataError("damaged: a row does not name its trials or lacks the metric", path)
    given = {key: row[key] for key in list(row)[: list(row).index(metric)] if key != "group"}
    found = tuple(trials[name] for name in names)
    config = found[0].config if found else {}
    # The config knows what a field was where a group does not vary it.
    values = {key: value_at(config, key, value) for key, value in given.items()}
    varied = frozenset(key for key, value in given.items() if value is not None)
    return SettingFacts(str(row.get("group") or ""), values, found, varied)


def value_at(config: dict[str, Any], path: str, otherwise: Any = None) -> Any:
    """The value of a field in a config, `otherwise` where it has no such field."""
    found: Any = config
    for part in path.split("."):
        if not isinstance(found, dict) or part not in found:
            return otherwise
        found = found[part]
    return found


def _differing(settings: Sequence[SettingFacts]) -> list[str]:
    paths = list(dict.fromkeys(path for setting in settings for path in setting.values))
    shown = {path: {json.dumps(s.values.get(path), sort_keys=True) for s in settings} for path in paths}
    return [path for path in paths if len(shown[path]) > 1]


def _field_names(paths: list[str]) -> list[str]:
    """Short names; `optimiser.name` is the optimiser, not a name."""
    whole = [path.removesuffix(".name") for path in paths]
    return short_names(whole if len(set(whole)) == len(whole) else paths)


def _with_real_rates(settings: list[SettingFacts], fields: dict[str, str]) -> tuple[list[SettingFacts], dict[str, str]]:
    """Multiples of default rates as the rates that were used, where constant rates tell them.

    Optimisers have different defaults, so that only the rates themselves can be compared.
    """
    path = next((path for path in fields if path.endswith(FACTOR)), None)
    if path is None or any(field.endswith(RATE) for field in fields):
        return settings, fields
    optimiser = path.removesuffix("rate_factor")
    defaults: dict[str, float] = {}
    for setting in settings:
        for trial in setting.trials:
            kind = value_at(trial.config, optimiser.removesuffix("optimiser.") + "schedule.kind")
            warmup = value_at(trial.config, optimiser.removesuffix("optimiser.") + "schedule.warmup")
            if kind == "constant" and not warmup and trial.course.rate is not None and setting.values[path]:
                key = json.dumps([value_at(trial.config, optimiser + part) for part in ("name", "rate")])
                defaults[key] = trial.course.rate / setting.values[path]
    keys = [
        json.dumps([value_at(s.trials[0].config if s.trials else {}, optimiser + part) for part in ("name", "rate")])
        for s in settings
    ]
    if not all(key in defaults and is_number(s.values[path]) for key, s in zip(keys, settings, strict=True)):
        return settings, fields
    real = [
        replace(s, values={**s.values, path: float(f"{defaults[key] * s.values[path]:.6g}")})
        for key, s in zip(keys, settings, strict=True)
    ]
    return real, {**fields, path: "rate"}


def _labels(settings: Sequence[SettingFacts], fields: dict[str, str]) -> list[str]:
    """What settings are called: by what their group varies, and by all that differs where that is not enough."""
    whole = [setting_label(setting.values, fields) for setting in settings]
    short = [setting_label({k: v for k, v in s.values.items() if k in s.varied}, fields) for s in settings]
    meant: dict[str, set[str]] = {}
    for label, full in zip(short, whole, strict=True):
        meant.setdefault(label, set()).add(full)
    return [label if len(meant[label]) == 1 else full for label, full in zip(short, whole, strict=True)]


def setting_label(values: dict[str, Any], fields: dict[str, str]) -> str:
    """Values in one line: words as they are, numbers behind their field's name."""
    parts = []
    for path, value in values.items():
        if isinstance(value, str):
            parts.append(value)
        elif value is not None:
            parts.append(f"{fields.get(path, path).replace('_', ' ')} {shown_value(value)}")
    return ", ".join(parts)


def shown_value(value: Any) -> str:
    """A config value to be read: 0.0001 as 1e-4, others in a few digits."""
    if is_number(value):
        if value != 0 and not 1e-3 < abs(value) < 1e5:
            digits, _, power = f"{value:.3e}".partition("e")
            return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


def is_number(value: Any) -> bool:
    """Whether it is a finite number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
