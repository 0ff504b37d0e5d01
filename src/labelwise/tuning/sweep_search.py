"""The search: all settings of a grid, random ones, or what Optuna proposes from the results so far."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from labelwise.errors import MissingDependencyError, ModelFormatError
from labelwise.io.atomic import replacing
from labelwise.tuning.study import SearchGroup, Setting, Span, Study


class Search(Protocol):
    """A source of settings."""

    def next(self) -> Setting | None:
        """The next setting to try, None when there are no more."""

    def tell(self, setting: Setting, value: float | None) -> None:
        """Report the metric of a setting; None if it failed."""


def make_search(study: Study) -> Search:
    """The search that a study configures."""
    kind = study.config.search.kind
    if kind == "optuna":
        return OptunaSearch(study)
    return ListSearch(grid_settings(study) if kind == "grid" else random_settings(study))


class ListSearch:
    """A fixed list of settings."""

    def __init__(self, settings: list[Setting]) -> None:
        self.settings = settings
        self._remaining = iter(settings)

    def next(self) -> Setting | None:
        """The next setting in the list."""
        return next(self._remaining, None)

    def tell(self, setting: Setting, value: float | None) -> None:
        """Ignored: the list is fixed."""


def grid_settings(study: Study) -> list[Setting]:
    """All combinations, group by group; the last field varies fastest."""
    return [setting for group in study.groups for setting in _combinations(group)]


def _combinations(group: SearchGroup) -> Iterator[Setting]:
    choices = [values for values in group.vary.values() if isinstance(values, list)]
    for values in product(*choices):
        yield Setting(group, dict(zip(group.vary, values, strict=True)))


def random_settings(study: Study) -> list[Setting]:
    """Random settings; the same seed gives the same settings, and more trials only add to them."""
    settings = []
    for number, group in enumerate(study.groups):
        random = np.random.default_rng([study.config.search.seed, number])
        for _ in range(study.config.search.trials or 0):
            settings.append(Setting(group, {path: _draw(values, random) for path, values in group.vary.items()}))
    return settings


def _draw(values: list[Any] | Span, random: np.random.Generator) -> Any:
    if isinstance(values, list):
        return values[int(random.integers(len(values)))]
    low, high = (math.log(values.low), math.log(values.high)) if values.log else (values.low, values.high)
    if values.whole and not values.log:
        return int(random.integers(int(values.low), int(values.high), endpoint=True))
    value = float(random.uniform(low, high))
    value = min(max(math.exp(value) if values.log else value, values.low), values.high)
    return round(value) if values.whole else float(f"{value:.6g}")  # few digits, for people who read and type them


class OptunaSearch:
    """Optuna's TPE, one Optuna study per group. Proposals are kept in a file, so that a sweep can be resumed."""

    def __init__(self, study: Study) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingDependencyError("optuna", "sweep", "search.kind: optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.file = study.folder / "proposed.json"
        self.trials_per_group = study.config.search.trials or 0
        self.groups = study.groups
        self.proposed = _proposed(self.file, self.groups)
        self.optuna, self.studies, self.given, self.asked = optuna, [], [0] * len(self.groups), {}
        for number, past in enumerate(self.proposed):
            # Another seed after an interruption: the same seed would propose the first settings again.
            seed = study.config.search.seed + 1000 * number + len(past)
            optuna_study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
            for values in past:
                optuna_study.enqueue_trial(values)
            self.studies.append(optuna_study)

    def next(self) -> Setting | None:
        """First the settings proposed before an interruption, then new ones; groups alternate."""
        number = min(range(len(self.groups)), key=lambda n: self.given[n])
        if self.given[number] >= self.trials_per_group:
            return None
        group = self.groups[number]
        asked = self.studies[number].ask({path: self._distribution(v) for path, v in group.vary.items()})
        self.given[number] += 1
        if self.given[number] > len(self.proposed[number]):
            self.proposed[number].append(dict(asked.params))
            with replacing(self.file) as file:
                json.dump({g.name: past for g, past in zip(self.groups, self.proposed, strict=True)}, file, indent=1)
        values = {p: v[asked.params[p]] if isinstance(v, list) else asked.params[p] for p, v in group.vary.items()}
        setting = Setting(group, values)
        self.asked[id(setting)] = setting, self.studies[number], asked  # keeping the setting keeps its id unique
        return setting

    def tell(self, setting: Setting, value: float | None) -> None:
        """Report the metric to Optuna."""
        _, study, asked = self.asked.pop(id(setting))
        if value is None:
            study.tell(asked, state=self.optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, value)

    def _distribution(self, values: list[Any] | Span) -> Any:
        """Choices are given by index: Optuna accepts only scalar values."""
        distributions = self.optuna.distributions
        if isinstance(values, list):
            return distributions.CategoricalDistribution(list(range(len(values))))
        if values.whole:
            return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
        return distributions.FloatDistribution(float(values.low), float(values.high), log=values.log)


def _proposed(file: Path, groups: list[SearchGroup]) -> list[list[dict[str, Any]]]:
    """Settings proposed in an earlier sweep that fit the current search space."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return [[values for values in kept.get(group.name, []) if _fits(values, group)] for group in groups]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ModelFormatError(f"{file}: damaged: {error}; remove it to start the search again") from None


def _fits(values: dict[str, Any], group: SearchGroup) -> bool:
    def inside(path: str, value: Any) -> bool:
        allowed = group.vary[path]
        if isinstance(allowed, list):
            return isinstance(value, int) and 0 <= value < len(allowed)
        return allowed.low <= value <= allowed.high

    return values.keys() == group.vary.keys() and all(inside(path, value) for path, value in values.items())
