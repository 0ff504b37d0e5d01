"""Writes the report of a study: one self-contained HTML page, and every chart as SVG and PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labelwise.data.stream import write_stream
from labelwise.errors import DataError
from labelwise.formatting import (
    MISSING,
    cut,
    duration,
    number,
    percent,
)
from labelwise.report.charts import Chart, sorted_verdicts, study_inspection_charts
from labelwise.report.field_plots import field_charts
from labelwise.report.inspection import Inspection
from labelwise.report.run import for_page, write_page
from labelwise.report.study_files import (
    SettingFacts,
    StudyFacts,
    TrialFacts,
    read_study_folder,
    shown_value,
)
from labelwise.report.study_plots import best_first, collapse_chart, curve_charts, overview_chart
from labelwise.report.wording import words

PAGE, PLOTS = "report.html", "plots"
KINDS = ("svg", "png")


def write_study_report(folder: str | Path, plots: str | Path | None = None, force: bool = False) -> list[Path]:
    """Write the report of a study.

    Parameters
    ----------
    folder
        Folder of a study whose sweep has finished.
    plots
        Folder for the chart files. Not given: `plots` in the study folder, where existing charts are replaced.
    force
        Also replace existing charts in a given folder.

    Returns
    -------
    list of Path
        The page, then the charts.
    """
    study = read_study_folder(folder)
    charts = study_charts(study)
    target = Path(folder) / PLOTS if plots is None else Path(plots)
    files = {target / f"{chart.name}.{kind}": (chart, kind) for chart in charts.values() for kind in KINDS}
    for path in files:
        if plots is not None and path.exists() and not force:
            raise DataError(f"{path} exists already; --force replaces it")
    for path, (chart, kind) in files.items():
        content = chart.file(kind)
        with write_stream(path) as file:
            file.write(content)
    page = Path(folder) / PAGE
    write_page(page, "study.html", study_values(study, charts), follow=False)
    return [page, *files]


def study_charts(study: StudyFacts) -> dict[str, Chart]:
    """All charts for which there are data, by name."""
    charts: list[Chart | None] = [overview_chart(study), *curve_charts(study), *field_charts(study)]
    charts += [collapse_chart(study), *study_inspection_charts(inspected_trials(study))]
    return {chart.name: chart for chart in charts if chart is not None}


def inspected_trials(study: StudyFacts) -> list[tuple[str, Inspection]]:
    """The inspected trials: the best one and the best of each verdict, the good verdicts first."""
    by_verdict: dict[str | None, tuple[str, Inspection]] = {}
    for setting in best_first(study.distinct):
        for trial in sorted(setting.trials, key=lambda trial: -(trial.entry.value or 0.0)):
            if trial.inspection is not None:
                verdict = trial.entry.verdict
                seed = f", seed {trial.entry.seed}" if len(setting.trials) > 1 else ""
                name = f"{setting.label}{seed}" + (f" ({verdict})" if verdict else "")
                by_verdict.setdefault(verdict, (name, trial.inspection))
    return [by_verdict[verdict] for verdict in sorted_verdicts(by_verdict)]


def study_values(study: StudyFacts, charts: dict[str, Chart]) -> dict[str, Any]:
    """The values that the template shows."""
    inline = {name: for_page(chart) for name, chart in charts.items()}

    def with_prefix(*prefixes: str) -> list[dict[str, Any]]:
        return [chart for name, chart in inline.items() if name.startswith(prefixes)]

    return {
        "title": cut(study.name, 120),
        "summary": summary(study),
        "notes_list": list(study.notes),
        "columns": _columns(study),
        "rows": [_row(study, setting) for setting in study.settings],
        "overview": inline.get("settings"),
        "curves": inline.get("curves"),
        "more_curves": with_prefix("curves-"),
        "fields": with_prefix("by-"),
        "collapse": inline.get("collapse"),
        "points": inline.get("points"),
        "attention": with_prefix("attention-"),
        "layers": with_prefix("layers-"),
        "trials": _trials(study),
    }


def summary(study: StudyFacts) -> str:
    """The best setting and the counts of verdicts, in one or two sentences."""
    settings = study.distinct
    text = f"{len(settings)} setting{'s' * (len(settings) != 1)}, chosen by {study.metric} on held-out documents."
    scored = [setting for setting in best_first(settings) if setting.mean("value") is not None]
    if scored:
        text += f" The best is {scored[0].label} with {percent(scored[0].mean('value'))} %."
    counts = {
        verdict: sum(s.verdict == verdict for s in settings) for verdict in sorted_verdicts(s.verdict for s in settings)
    }
    if any(counts):
        text += " " + ", ".join(f"{n} {verdict or 'without verdict'}" for verdict, n in counts.items()).capitalize()
        text += "."
    failed = sum(any(t.entry.status == "failed" for t in s.trials) for s in settings)
    return text + (f" {failed} failed." if failed else "")


# --- the table ----------------------------------------------------------------------------------------


def _columns(study: StudyFacts) -> list[str]:
    heads = ["group"] if any(setting.group for setting in study.settings) else []
    heads += [words(name) for name in study.fields.values()]
    heads += [f"{study.metric}, %"]
    heads += ["best during training, %"] if _differs(study.settings) else []
    heads += ["test, %"] if any(setting.each("test") for setting in study.settings) else []
    heads += ["final loss"] if any(trial.curves.loss for s in study.settings for trial in s.trials) else []
    several = any(len(setting.trials) > 1 for setting in study.settings)
    return [*heads, "mean time" if several else "time"]


def _differs(settings: Sequence[SettingFacts]) -> bool:
    return any(setting.mean("best") != setting.mean("value") for setting in settings)


def _row(study: StudyFacts, setting: SettingFacts) -> dict[str, Any]:
    columns = _columns(study)
    cells = [cut(setting.group, 40)] if "group" in columns else []
    cells += [MISSING if value is None else cut(shown_value(value), 60) for value in setting.values.values()]
    cells.append(_with_spread(setting, "value", 100))
    if "best during training, %" in columns:
        cells.append(_with_spread(setting, "best", 100))
    if "test, %" in columns:
        cells.append(_with_spread(setting, "test", 100))
    if "final loss" in columns:
        diverged = any(trial.curves.loss and trial.curves.final_loss is None for trial in setting.trials)
        cells.append("not a number" if diverged and not setting.each("loss") else _with_spread(setting, "loss", 1))
    seconds = setting.mean("seconds")
    cells.append(MISSING if seconds is None else duration(seconds))
    return {"cells": cells, "verdicts": _verdicts(setting), "status": _status(setting)}


def _with_spread(setting: SettingFacts, what: str, scale: float) -> str:
    middle, spread = setting.mean(what), setting.spread(what)
    if middle is None:
        return MISSING
    if scale == 1:
        return number(float(f"{middle:.4g}")) + ("" if spread is None else f" ± {spread:.2g}")
    return percent(middle) + ("" if spread is None else f" ± {percent(spread)}")


def _verdicts(setting: SettingFacts) -> list[dict[str, str]]:
    """Each verdict of a setting's trials, with reason and remedy of the first trial that has it."""
    by_verdict: dict[str, list[TrialFacts]] = {}
    for trial in setting.trials:
        if trial.entry.verdict:
            by_verdict.setdefault(trial.entry.verdict, []).append(trial)
    several = len(setting.trials) > 1
    return [
        {
            "name": f"{len(trials)} × {verdict}" if several else verdict,  # noqa: RUF001
            "reason": cut(trials[0].curves.reason, 400),
            "remedy": cut(trials[0].curves.remedy, 400),
        }
        for verdict, trials in by_verdict.items()
    ]


def _status(setting: SettingFacts) -> list[str]:
    """Status and message of trials that failed or were stopped."""
    messages = [
        f"{trial.entry.status}{f': {cut(trial.entry.message, 300)}' if trial.entry.message else ''}"
        for trial in setting.trials
        if trial.entry.status != "finished"
    ]
    return list(dict.fromkeys(messages))


def _trials(study: StudyFacts) -> list[dict[str, str]]:
    """Name and folder of each trial."""
    return [
        {
            "name": setting.label + (f", seed {trial.entry.seed}" if trial.entry.seed is not None else ""),
            "folder": f"trials/{trial.name}",
        }
        for setting in study.distinct
        for trial in setting.trials
    ]
