"""Reads and validates the files of a study folder: settings, their trials, and training curves.

Reports of studies are a pure function of what is returned here. A trial may have failed, may have been stopped, or may
come from a method without learning curves: missing values are None or empty.
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
from labelwise.io.folder import METRICS, RESULTS, STATE
from labelwise.io.json import Record, read_json
from labelwise.report.curves import TrainingCurves, read_training_curves
from labelwise.report.inspection import Inspection, read_inspection
from labelwise.report.schema import read_metrics
from labelwise.report.wording import short_names

TRIALS = "trials"
FACTOR, RATE = "optimiser.rate_factor", "optimiser.rate"


class TrialEntry(Record):
    """The entry of one trial in results.json."""

    seed: int | None = None
    status: str = "unknown"
    value: float | None = None
    test: float | None = None
    seconds: float | None = None
    verdict: str | None = None
    message: str = ""


class StudyEntry(Record):
    """Contents of results.json of a study."""

    metric: str
    rows: tuple[dict[str, Any], ...]
    trials: dict[str, TrialEntry]


@dataclass(frozen=True)
class TrialFacts:
    """One trial: its result, config, training curves and inspection."""

    name: str
    entry: TrialEntry
    config: dict[str, Any]
    curves: TrainingCurves
    inspection: Inspection | None

    @property
    def best(self) -> float | None:
        """The best value of the metric during training, or the final one without validation."""
        validated = [value for _, value in self.curves.metric if value is not None]
        return max(validated, default=self.entry.value)


@dataclass(frozen=True)
class SettingFacts:
    """One setting with one trial per seed; `values` are those of the fields in which settings differ."""

    group: str
    values: dict[str, Any]
    trials: tuple[TrialFacts, ...]
    varied: frozenset[str] = frozenset()
    """Fields that its group varies."""
    label: str = ""

    def each(self, what: str) -> list[float]:
        """A quantity of all trials that have it: value, test or seconds of the entry, best, or final loss."""
        values = [
            trial.best if what == "best" else trial.curves.final_loss if what == "loss" else getattr(trial.entry, what)
            for trial in self.trials
        ]
        return [value for value in values if value is not None]

    def mean(self, what: str) -> float | None:
        """The mean over seeds."""
        values = self.each(what)
        return mean(values) if values else None

    def spread(self, what: str) -> float | None:
        """The standard deviation over seeds, if there are several."""
        values = self.each(what)
        return stdev(values) if len(values) > 1 else None

    @property
    def verdict(self) -> str | None:
        """The most frequent verdict of its trials."""
        counts = Counter(trial.entry.verdict for trial in self.trials if trial.entry.verdict)
        return counts.most_common(1)[0][0] if counts else None

    @property
    def method(self) -> str | None:
        """The name of the method."""
        method = value_at(self.trials[0].config, "model.method") if self.trials else None
        return method if isinstance(method, str) else None


@dataclass(frozen=True)
class StudyFacts:
    """The contents of a study folder, the best settings first."""

    folder: Path
    metric: str
    fields: dict[str, str]
    """Paths of the fields in which settings differ, and their short names."""
    settings: tuple[SettingFacts, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def distinct(self) -> list[SettingFacts]:
        """Settings without duplicates, that is with the same trials, from other groups."""
        seen: dict[tuple[str, ...], SettingFacts] = {}
        for setting in self.settings:
            seen.setdefault(tuple(trial.name for trial in setting.trials), setting)
        return list(seen.values())


def is_study(folder: Path) -> bool:
    """Whether a folder is that of a study and not of a run."""
    return (folder / TRIALS).is_dir() and not is_run(folder)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / STATE).exists()


def read_study_folder(folder: str | Path) -> StudyFacts:
    """Read a study folder; a damaged file raises a DataError that names it."""
    path = Path(folder)
    if not (path / RESULTS).is_file():
        raise DataError(f"{RESULTS} is missing: the sweep has not finished; run its command again", path)
    whole = read_json(path / RESULTS, StudyEntry)
    notes: list[str] = []
    trials = {name: _trial(path / TRIALS, name, entry, whole.metric, notes) for name, entry in whole.trials.items()}
    settings = [_setting(row, whole.metric, trials, path / RESULTS) for row in whole.rows]
    paths = _differing(settings)
    settings = [replace(setting, values={key: setting.values[key] for key in paths}) for setting in settings]
    fields = dict(zip(paths, _field_names(paths), strict=True))
    settings, fields = _with_actual_rates(settings, fields)
    labels = _labels(settings, fields)
    labelled = tuple(replace(s, label=label or s.group or "setting") for s, label in zip(settings, labels, strict=True))
    return StudyFacts(path, whole.metric, fields, labelled, tuple(dict.fromkeys(notes)))


def _trial(folder: Path, name: str, entry: TrialEntry, metric: str, notes: list[str]) -> TrialFacts:
    if Path(name).name != name:
        raise DataError(f"damaged: {name!r} is not the name of a trial", folder.parent / RESULTS)
    path = folder / name
    entries = read_metrics(path / METRICS, notes) if (path / METRICS).is_file() else ()
    return TrialFacts(name, entry, _config(folder, name), read_training_curves(entries, metric), read_inspection(path))


def _config(folder: Path, name: str) -> dict[str, Any]:
    """The resolved config, from the run itself or from the file the sweep wrote for it."""
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
    own = tuple(trials[name] for name in names)
    config = own[0].config if own else {}
    # For fields that the group does not vary, the config has the value.
    values = {key: value_at(config, key, value) for key, value in given.items()}
    varied = frozenset(key for key, value in given.items() if value is not None)
    return SettingFacts(str(row.get("group") or ""), values, own, varied)


def value_at(config: dict[str, Any], path: str, otherwise: Any = None) -> Any:
    """The value of a field in a config, or `otherwise` if there is no such field."""
    value: Any = config
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return otherwise
        value = value[part]
    return value


def _differing(settings: Sequence[SettingFacts]) -> list[str]:
    paths = list(dict.fromkeys(path for setting in settings for path in setting.values))
    shown = {path: {json.dumps(s.values.get(path), sort_keys=True) for s in settings} for path in paths}
    return [path for path in paths if len(shown[path]) > 1]


def _field_names(paths: list[str]) -> list[str]:
    """Short names; `optimiser.name` is the optimiser, not a name."""
    whole = [path.removesuffix(".name") for path in paths]
    return short_names(whole if len(set(whole)) == len(whole) else paths)


def _with_actual_rates(
    settings: list[SettingFacts], fields: dict[str, str]
) -> tuple[list[SettingFacts], dict[str, str]]:
    """Replace multiples of default rates by actual rates, if these are known from constant schedules.

    Optimisers have different default rates, so only the actual rates are comparable.
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
            if kind == "constant" and not warmup and trial.curves.rate is not None and setting.values[path]:
                key = json.dumps([value_at(trial.config, optimiser + part) for part in ("name", "rate")])
                defaults[key] = trial.curves.rate / setting.values[path]
    keys = [
        json.dumps([value_at(s.trials[0].config if s.trials else {}, optimiser + part) for part in ("name", "rate")])
        for s in settings
    ]
    if not all(key in defaults and is_number(s.values[path]) for key, s in zip(keys, settings, strict=True)):
        return settings, fields
    actual = [
        replace(s, values={**s.values, path: float(f"{defaults[key] * s.values[path]:.6g}")})
        for key, s in zip(keys, settings, strict=True)
    ]
    return actual, {**fields, path: "rate"}


def _labels(settings: Sequence[SettingFacts], fields: dict[str, str]) -> list[str]:
    """Labels of settings: by the fields their group varies, or by all fields that differ if that is ambiguous."""
    whole = [setting_label(setting.values, fields) for setting in settings]
    short = [setting_label({k: v for k, v in s.values.items() if k in s.varied}, fields) for s in settings]
    full_labels: dict[str, set[str]] = {}
    for label, full in zip(short, whole, strict=True):
        full_labels.setdefault(label, set()).add(full)
    return [label if len(full_labels[label]) == 1 else full for label, full in zip(short, whole, strict=True)]


def setting_label(values: dict[str, Any], fields: dict[str, str]) -> str:
    """Values in one line: strings unchanged, numbers after their field's name."""
    parts = []
    for path, value in values.items():
        if isinstance(value, str):
            parts.append(value)
        elif value is not None:
            parts.append(f"{fields.get(path, path).replace('_', ' ')} {shown_value(value)}")
    return ", ".join(parts)


def shown_value(value: Any) -> str:
    """A config value as text: 0.0001 as 1e-4, other numbers with a few digits."""
    if is_number(value):
        if value != 0 and not 1e-3 < abs(value) < 1e5:
            digits, _, power = f"{value:.3e}".partition("e")
            return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


def is_number(value: Any) -> bool:
    """Whether it is a finite number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
