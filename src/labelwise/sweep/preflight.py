"""What is found out before the first trial of a study: every config, the data's valid part, missing files, the GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

from labelwise.data.out_of_core import scratch_beside
from labelwise.errors import ConfigError, require
from labelwise.runs.load_data import load_run_data
from labelwise.sweep.outcome import read_outcome
from labelwise.sweep.search import Listed, make_search
from labelwise.sweep.study import Group, Setting, Study

COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def check_study(study: Study) -> None:
    """Find faults before the first hour is spent; notes which data needs held-out documents."""
    settings = _settings(study)
    _find_valid_parts(study, settings)
    for setting in settings:
        for trial in study.trials(setting):
            if not read_outcome(trial, study.config.metric).settled:
                trial.config.make_method().check_needs()
    _check_gpus(study)


def _settings(study: Study) -> list[Setting]:
    """All settings that are known beforehand; of a search that learns, one of each group."""
    search = make_search(study) if study.config.search.kind != "optuna" else None
    settings = search.settings if isinstance(search, Listed) else []
    return settings or [_first(group) for group in study.groups]


def _first(group: Group) -> Setting:
    return Setting(group, {path: v[0] if isinstance(v, list) else v.low for path, v in group.vary.items()})


def _find_valid_parts(study: Study, settings: list[Setting]) -> None:
    """Look once whether the data has a valid part; if not, every trial holds out the same training documents.

    To get at the data, every trial's config is made and so checked.
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
    """Torch falls back to the CPU without a word when a GPU is not there."""
    if study.config.gpus is None:
        return
    require("gpus", "nn", "torch")
    count = count_gpus()
    missing = [number for number in study.config.gpus if not 0 <= number < count]
    if missing:
        there = f"there are {count}, counted from 0" if count else "torch sees none on this machine"
        where = study.source.where(("gpus",))
        raise ConfigError(f"{where}: gpus: there is no GPU {missing[0]}; {there}. Leave `gpus` out to use the CPU")


def count_gpus() -> int:
    """All GPUs of the machine, as torch sees them; asked in another process, for torch keeps what it has seen."""
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run([sys.executable, "-c", COUNT_GPUS], env=environment, capture_output=True, text=True)
    return int(done.stdout) if done.stdout.strip().isdigit() else 0
