"""How trials are named for people: position, total and setting; their folders are named by hashes."""

from __future__ import annotations

from labelwise.report.wording import short_names
from labelwise.sweep.search import ListSearch, Search
from labelwise.sweep.study import Setting, Study, Trial


class Trials:
    """The trials of a sweep in the order in which the search gives them."""

    def __init__(self, study: Study, search: Search) -> None:
        if isinstance(search, ListSearch):
            self.total = len({trial.name for setting in search.settings for trial in study.trials(setting)})
        else:
            self.total = (study.config.search.trials or 0) * len(study.groups) * len(study.config.seeds or [None])
        self._settings: dict[str, tuple[int, Setting]] = {}

    def add(self, trial: Trial, setting: Setting) -> None:
        """Give a trial its position."""
        self._settings[trial.name] = len(self._settings) + 1, setting

    def describe(self, trial: Trial) -> str:
        """As in `trial 2 of 4 (leaf_size 4, seed 1; f31a1729be65)`."""
        position, setting = self._settings[trial.name]
        names = short_names(list(setting.values))
        values = [f"{name} {value}" for name, value in zip(names, setting.values.values(), strict=True)]
        group = [setting.group.name] if setting.group.name else []
        seed = [] if trial.seed is None else [f"seed {trial.seed}"]
        return f"trial {position} of {self.total} ({', '.join(group + values + seed)}; {trial.name})"
