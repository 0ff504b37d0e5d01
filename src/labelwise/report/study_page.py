"""The report of a study: one self-contained HTML page, and every chart as SVG and PNG files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labelwise.data.files import write_stream
from labelwise.errors import DataError
from labelwise.formatting import MISSING, cut, duration, number, percent
from labelwise.report.drawing import Chart
from labelwise.report.field_plots import field_charts
from labelwise.report.html import for_page, write_page
from labelwise.report.inspection import Inspection
from labelwise.report.inspection_plots import study_inspection_charts
from labelwise.report.study_files import SettingFacts, StudyFacts, TrialFacts, read_study_folder, shown_value
from labelwise.report.study_plots import best_first, collapse_chart, curve_charts, overview_chart
from labelwise.report.verdict_marks import in_order
from labelwise.report.wording import words

PAGE, PLOTS = "report.html", "plots"
KINDS = ("svg", "png")


def write_study_report(folder: str | Path, plots: str | Path | None = None, force: bool = False) -> list[Path]:
    """Write the report of a study.

    Parameters
    ----------
    folder
        Folder of a study whose sweep has come to its end.
    plots
        Where the charts go as files. Not given: `plots` in the study's folder, where older ones are replaced.
    force
        Replace charts in another folder too.

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
    """All charts there are figures for, by their names."""
    charts: list[Chart | None] = [overview_chart(study), *curve_charts(study), *field_charts(study)]
    charts += [collapse_chart(study), *study_inspection_charts(inspected(study))]
    return {chart.name: chart for chart in charts if chart is not None}


def inspected(study: StudyFacts) -> list[tuple[str, Inspection]]:
    """The trials that were looked into: the best one and the best of each verdict, the good ones first."""
    found: dict[str | None, tuple[str, Inspection]] = {}
    for setting in best_first(study.distinct):
        for trial in sorted(setting.trials, key=lambda trial: -(trial.entry.value or 0.0)):
            if trial.inspection is not None:
                verdict = trial.entry.verdict
                seed = f", seed {trial.entry.seed}" if len(setting.trials) > 1 else ""
                told = f"{setting.label}{seed}" + (f" ({verdict})" if verdict else "")
                found.setdefault(verdict, (told, trial.inspection))
    return [found[verdict] for verdict in in_order(found)]


def study_values(study: StudyFacts, charts: dict[str, Chart]) -> dict[str, Any]:
    """All that the template shows, in words."""
    drawn = {name: for_page(chart) for name, chart in charts.items()}

    def starting(*beginnings: str) -> list[dict[str, Any]]:
        return [chart for name, chart in drawn.items() if name.startswith(beginnings)]

    return {
        "title": cut(study.name, 120),
        "summary": summary(study),
        "notes_list": list(study.notes),
        "columns": _columns(study),
        "rows": [_row(study, setting) for setting in study.settings],
        "overview": drawn.get("settings"),
        "curves": drawn.get("curves"),
        "more_curves": starting("curves-"),
        "fields": starting("by-"),
        "collapse": drawn.get("collapse"),
        "points": drawn.get("points"),
        "attention": starting("attention-"),
        "layers": starting("layers-"),
        "trials": _trials(study),
    }


def summary(study: StudyFacts) -> str:
    """The best setting and how the others did, in a sentence or two."""
    settings = study.distinct
    told = f"{len(settings)} setting{'s' * (len(settings) != 1)}, chosen by {study.metric} on held-out documents."
    scored = [setting for setting in best_first(settings) if setting.mean("value") is not None]
    if scored:
        told += f" The best is {scored[0].label} with {percent(scored[0].mean('value'))} %."
    counts = {verdict: sum(s.verdict == verdict for s in settings) for verdict in in_order(s.verdict for s in settings)}
    if any(counts):
        told += " " + ", ".join(f"{n} {verdict or 'without verdict'}" for verdict, n in counts.items()).capitalize()
        told += "."
    failed = sum(any(t.entry.status == "failed" for t in s.trials) for s in settings)
    return told + (f" {failed} failed." if failed else "")


# --- the table ----------------------------------------------------------------------------------------


def _columns(study: StudyFacts) -> list[str]:
    heads = ["group"] if any(setting.group for setting in study.settings) else []
    heads += [words(name) for name in study.fields.values()]
    heads += [f"{study.metric}, %"]
    heads += ["best while training, %"] if _differs(study.settings) else []
    heads += ["test, %"] if any(setting.each("test") for setting in study.settings) else []
    heads += ["loss at the end"] if any(trial.course.loss for s in study.settings for trial in s.trials) else []
    several = any(len(setting.trials) > 1 for setting in study.settings)
    return [*heads, "mean time" if several else "time"]


def _differs(settings: Sequence[SettingFacts]) -> bool:
    return any(setting.mean("best") != setting.mean("value") for setting in settings)


def _row(study: StudyFacts, setting: SettingFacts) -> dict[str, Any]:
    columns = _columns(study)
    cells = [cut(setting.group, 40)] if "group" in columns else []
    cells += [MISSING if value is None else cut(shown_value(value), 60) for value in setting.values.values()]
    cells.append(_with_spread(setting, "value", 100))
    if "best while training, %" in columns:
        cells.append(_with_spread(setting, "best", 100))
    if "test, %" in columns:
        cells.append(_with_spread(setting, "test", 100))
    if "loss at the end" in columns:
        diverged = any(trial.course.loss and trial.course.final_loss is None for trial in setting.trials)
        cells.append("not a number" if diverged and not setting.each("loss") else _with_spread(setting, "loss", 1))
    seconds = setting.mean("seconds")
    cells.append(MISSING if seconds is None else duration(seconds))
    return {"cells": cells, "judgements": _judgements(setting), "status": _status(setting)}


def _with_spread(setting: SettingFacts, what: str, scale: float) -> str:
    middle, spread = setting.mean(what), setting.spread(what)
    if middle is None:
        return MISSING
    if scale == 1:
        return number(float(f"{middle:.4g}")) + ("" if spread is None else f" ± {spread:.2g}")
    return percent(middle) + ("" if spread is None else f" ± {percent(spread)}")


def _judgements(setting: SettingFacts) -> list[dict[str, str]]:
    """Each verdict of a setting's trials once, with the words of the first that got it."""
    found: dict[str, list[TrialFacts]] = {}
    for trial in setting.trials:
        if trial.entry.verdict:
            found.setdefault(trial.entry.verdict, []).append(trial)
    several = len(setting.trials) > 1
    return [
        {
            "name": f"{len(trials)} × {verdict}" if several else verdict,  # noqa: RUF001
            "reason": cut(trials[0].course.reason, 400),
            "remedy": cut(trials[0].course.remedy, 400),
        }
        for verdict, trials in found.items()
    ]


def _status(setting: SettingFacts) -> list[str]:
    """What is not as it should be: trials that failed or were stopped, with their message."""
    told = [
        f"{trial.entry.status}{f': {cut(trial.entry.message, 300)}' if trial.entry.message else ''}"
        for trial in setting.trials
        if trial.entry.status != "finished"
    ]
    return list(dict.fromkeys(told))


def _trials(study: StudyFacts) -> list[dict[str, str]]:
    """Which folder holds which trial."""
    return [
        {
            "name": setting.label + (f", seed {trial.entry.seed}" if trial.entry.seed is not None else ""),
            "folder": f"trials/{trial.name}",
        }
        for setting in study.distinct
        for trial in setting.trials
    ]
