"""The table of a study: settings with mean metrics over seeds, best first; as rows, results.csv and results.json."""

from __future__ import annotations

import csv
import json
import logging
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from labelwise.data.out_of_core import scratch_beside
from labelwise.errors import LabelwiseError
from labelwise.formatting import percent
from labelwise.io import folder as files
from labelwise.io.atomic import replacing
from labelwise.model.method import load
from labelwise.runs.data import RunData, load_run_data
from labelwise.runs.folder import RunFolder
from labelwise.runs.inspect import can_be_inspected, inspect, is_inspected
from labelwise.runtime.threads import using_threads
from labelwise.tuning.outcome import FAILED, FINISHED, HOPELESS, UNFINISHED
from labelwise.tuning.runner import SettingResult
from labelwise.tuning.study import Study, Trial

CSV, JSON, BEST = "results.csv", "results.json", "best.yml"


def result_rows(study: Study, results: list[SettingResult]) -> list[dict[str, Any]]:
    """One row per setting with means over seeds; finished settings first, sorted by the metric."""
    paths = varying(results)
    rows = []
    for result in results:
        outcomes = list(result.outcomes.values())
        statuses = Counter(outcome.status for outcome in outcomes)
        if outcomes and not result.complete:
            statuses[UNFINISHED] += len(result.trials) - len(outcomes)
        values = result.values
        tests = [outcome.test for outcome in outcomes if outcome.test is not None]
        seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
        rows.append(
            {
                **({"group": result.setting.group.name} if study.config.groups else {}),
                **{path: result.setting.values.get(path) for path in paths},
                study.config.metric: mean(values) if values else None,
                "deviation": stdev(values) if len(values) > 1 else None,
                "seeds": len(values),
                f"test {study.config.metric}": mean(tests) if tests else None,
                "seconds": round(mean(seconds), 2) if seconds else None,
                "verdict": _counted([outcome.verdict for outcome in outcomes if outcome.verdict]),
                "status": _status(statuses),
                "message": next((outcome.message for outcome in outcomes if outcome.message), ""),
                "trials": [trial.name for trial in result.trials],
            }
        )
    return sorted(rows, key=lambda row: (row["status"] != FINISHED, -(row[study.config.metric] or 0.0)))


def varying(results: list[SettingResult]) -> list[str]:
    """The fields in which settings differ."""
    paths = list(dict.fromkeys(path for result in results for path in result.setting.values))
    shown = {path: {json.dumps(f.setting.values.get(path), sort_keys=True) for f in results} for path in paths}
    return [path for path in paths if len(shown[path]) > 1]


def write_results(study: Study, results: list[SettingResult], rows: list[dict[str, Any]]) -> None:
    """Write results.csv, and results.json with every trial."""
    with replacing(study.folder / CSV) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0] if rows else [])
        for row in rows:
            writer.writerow("" if value is None else _cell(value) for value in row.values())
    trials = {
        trial.name: {
            "folder": str(Path("trials") / trial.name),
            "group": result.setting.group.name,
            "values": result.setting.values,
            "seed": trial.seed,
            **asdict(result.outcomes[trial.name]),
        }
        for result in results
        for trial in result.trials
        if trial.name in result.outcomes
    }
    whole = {
        "study": study.source.name,
        "metric": study.config.metric,
        "split": "valid",
        "rows": rows,
        "trials": trials,
    }
    with replacing(study.folder / JSON) as file:
        file.write(json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_best(study: Study, results: list[SettingResult], rows: list[dict[str, Any]]) -> Path | None:
    """Write the best setting as the config of a run; None, and no such file, if no setting is finished."""
    path = study.folder / BEST
    if not rows or rows[0]["status"] != FINISHED:
        path.unlink(missing_ok=True)
        return None
    best = next(result for result in results if [trial.name for trial in result.trials] == rows[0]["trials"])
    metric = study.config.metric
    with replacing(path) as file:
        file.write(
            f"# the best of {len(rows)} settings of {study.folder}: {metric} {percent(rows[0][metric])} % on the valid "
            f"part\n# labelwise train {path}\n{study.best_run(best.setting).to_yaml()}"
        )
    return path


def _status(statuses: Counter[str]) -> str:
    if not statuses:
        return UNFINISHED
    if len(statuses) == 1:
        return next(iter(statuses))
    order = (FINISHED, HOPELESS, FAILED, UNFINISHED)
    return ", ".join(f"{statuses[name]} {name}" for name in order if statuses[name])


def _counted(words: list[str]) -> str | None:
    if len(set(words)) < 2:
        return words[0] if words else None
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else value


# --- inspect ---
# Inspects a few trials of a finished study: the best one, and the best of each verdict.

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
