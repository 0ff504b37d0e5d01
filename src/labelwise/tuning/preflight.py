"""Checks before the first trial of a study: every config, the valid part of the data, missing files, the GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

from labelwise.data.out_of_core import scratch_beside
from labelwise.errors import ConfigError, check_installed
from labelwise.runs.data import load_run_data
from labelwise.runtime.tasks import NOT_FROM_HERE
from labelwise.tuning.outcome import read_outcome
from labelwise.tuning.study import SearchGroup, Setting, Study
from labelwise.tuning.sweep_search import ListSearch, make_search

COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def check_study(study: Study) -> None:
    """Check a study before any training; records which data needs held-out documents."""
    settings = _settings(study)
    _find_valid_parts(study, settings)
    for setting in settings:
        for trial in study.trials(setting):
            if not read_outcome(trial, study.config.metric).settled:
                trial.config.make_method().check_needs()
    _check_gpus(study)


def _settings(study: Study) -> list[Setting]:
    """All settings of a grid or random search; for Optuna, one setting per group."""
    search = make_search(study) if study.config.search.kind != "optuna" else None
    settings = search.settings if isinstance(search, ListSearch) else []
    return settings or [_first(group) for group in study.groups]


def _first(group: SearchGroup) -> Setting:
    return Setting(group, {path: v[0] if isinstance(v, list) else v.low for path, v in group.vary.items()})


def _find_valid_parts(study: Study, settings: list[Setting]) -> None:
    """Check whether the data has a valid part; if not, every trial holds out the same training documents.

    This builds and so validates the config of every trial.
    """
    sections = {}
    for setting in settings:
        for trial in study.trials(setting):
            sections[trial.config.data.model_dump_json()] = trial.config.data
    has_valid: dict[str, bool] = {}
    for key, section in sections.items():
        whole = section.model_copy(update={"limit": None}).model_dump_json()
        if whole not in has_valid:
            with scratch_beside(study.folder) if section.mapped else nullcontext() as scratch:
                has_valid[whole] = load_run_data(section, scratch).valid is not None
        if not has_valid[whole]:
            study.held_out[key] = study.config.valid_fraction


def _check_gpus(study: Study) -> None:
    """Refuse GPUs that do not exist: torch would silently use the CPU."""
    if study.config.gpus is None:
        return
    check_installed("gpus", "nn", "torch")
    count = count_gpus()
    missing = [number for number in study.config.gpus if not 0 <= number < count]
    if missing:
        available = f"there are {count}, counted from 0" if count else "torch sees none on this machine"
        where = study.source.where(("gpus",))
        raise ConfigError(f"{where}: gpus: there is no GPU {missing[0]}; {available}. Leave `gpus` out to use the CPU")


def count_gpus() -> int:
    """All GPUs of the machine; counted in another process, because torch caches the number."""
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, NOT_FROM_HERE, "-c", COUNT_GPUS], env=environment, capture_output=True, text=True
    )
    return int(done.stdout) if done.stdout.strip().isdigit() else 0
