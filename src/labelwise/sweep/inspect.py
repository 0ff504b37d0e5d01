"""Inspects a few trials of a finished study: the best one, and the best of each verdict."""

from __future__ import annotations

import logging
from contextlib import nullcontext

from labelwise import run_schema as files
from labelwise.data.out_of_core import scratch_beside
from labelwise.errors import LabelwiseError
from labelwise.methods.base import load
from labelwise.parallel import using_threads
from labelwise.runs.folder import RunFolder
from labelwise.runs.inspect import can_be_inspected, inspect, is_inspected
from labelwise.runs.load_data import RunData, load_run_data
from labelwise.sweep.outcome import FINISHED
from labelwise.sweep.runner import SettingResult
from labelwise.sweep.study import Study, Trial

log = logging.getLogger("labelwise")


def chosen_trials(results: list[SettingResult]) -> list[Trial]:
    """The best of all finished trials, then the best of every other verdict."""
    finished = {
        trial.name: (trial, result.outcomes[trial.name])
        for result in results
        for trial in result.trials
        if trial.name in result.outcomes and result.outcomes[trial.name].status == FINISHED
    }
    ranked = sorted(finished.values(), key=lambda pair: -(pair[1].value or 0.0))
    seen: dict[str | None, Trial] = {}
    for trial, outcome in ranked:
        seen.setdefault(outcome.verdict, trial)
    return list(seen.values())


def inspect_chosen(study: Study, results: list[SettingResult]) -> None:
    """Write inspection.json into the folders of the chosen trials; a trial that fails is skipped with a warning."""
    if study.config.inspect == "none":
        return
    loaded: dict[str, RunData] = {}
    trials = chosen_trials(results)
    mapped = any(trial.config.data.mapped for trial in trials)
    context = scratch_beside(study.folder) if mapped else nullcontext()
    with using_threads(study.config.threads), context as scratch:
        for trial in trials:
            run, section = RunFolder(trial.folder), trial.config.inspect
            if is_inspected(run, section) or not can_be_inspected(trial.config.make_method()):
                continue
            try:
                data = trial.config.data
                key = data.model_dump_json()
                if key not in loaded:
                    loaded[key] = load_run_data(data, scratch if data.mapped else None)
                inspect(run, load(run / files.MODEL), loaded[key], section)
                log.info("trial %s inspected", trial.name)
            except LabelwiseError as error:
                log.warning("trial %s could not be inspected: %s", trial.name, error)
