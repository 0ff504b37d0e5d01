"""Writes a self-contained HTML page of a run: scores, charts, examples, costs, config.

The page is a pure function of the run folder's files: the same files give the same bytes. The page notes which files
are missing. Everything from files is escaped, and the page forbids all scripts but the one that filters the examples,
which is part of it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise import __version__
from labelwise.data.files import write_stream
from labelwise.errors import MissingDependencyError
from labelwise.formatting import counted, cut, duration, number, percent
from labelwise.report import sections
from labelwise.report.curves import read_training_curves
from labelwise.report.drawing import SERIES, Chart, thinned
from labelwise.report.example_cards import SHOWN_AT_FIRST, example_cards
from labelwise.report.label_sections import confusion_rows, label_table
from labelwise.report.plots import run_charts
from labelwise.report.run_files import Run, read_run
from labelwise.report.tried import tried_table
from labelwise.report.wording import family_and_k, sorted_metrics
from labelwise.run_schema import CONFIG, EXAMPLES, LABELS, MACHINE, METRICS, REPORT, RESULTS, STATE

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_REMARKS = 20
BROWSER = "browse_examples.js"
"""The only script that a page may run: the page names its hash, so that no other one does."""
_WHEN_MISSING = {
    CONFIG: "the config is not shown",
    STATE: "method and times are unknown",
    METRICS: "there are no learning curves",
    RESULTS: "there are no scores; the run was stopped before its evaluation, or has no test part",
    MACHINE: "the machine is unknown",
    EXAMPLES: "no examples are shown",
    LABELS: "no labels are shown",
}


def write_report(run_folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a run.

    Parameters
    ----------
    run_folder
        Folder of a run, which need not be finished.
    path
        The page to write. Not given: `report.html` in the run folder.

    Returns
    -------
    Path
        The page.
    """
    target = Path(run_folder) / REPORT if path is None else Path(path)
    write_page(target, "report.html", report_values(read_run(run_folder)), follow=path is not None)
    return target


def write_page(path: Path, template: str, values: Mapping[str, Any], follow: bool = True) -> None:
    """Render a template and write it atomically; a link is refused with `follow=False`."""
    try:
        import jinja2
    except ImportError:
        raise MissingDependencyError("jinja2", "report", "Writing a report") from None
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    script = (folder / BROWSER).read_text(encoding="utf-8") if values.get("browses") else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() if script else None
    text = environment.get_template(template).render(
        series=SERIES, version=__version__, script=script, script_hash=digest, **values
    )
    # JSON can contain lone surrogates, which cannot be encoded.
    content = text.encode("utf-8", "replace")
    with write_stream(path, follow) as file:
        file.write(content)


def _breakable(text: str) -> Markup:
    """Escaped text with optional line breaks after slashes and underscores."""
    from markupsafe import Markup, escape

    # Entities from escaping (such as &lt;) contain none of these separators.
    return Markup(re.sub(r"[/\\_]+", r"\g<0><wbr>", str(escape(text))))


def for_page(chart: Chart) -> dict[str, Any]:
    """A chart for a template; its SVG is generated here and needs no escaping."""
    from markupsafe import Markup

    return {"title": chart.title, "svg": Markup(chart.inline_svg())}


def report_values(run: Run) -> dict[str, Any]:
    """The values that the template shows."""
    charts = {chart.name: for_page(chart) for chart in run_charts(run)}
    results = run.results
    return {
        "title": cut(run.name, 120),
        "verdict": verdict(run),
        "notes_list": _notes(run),
        "tiles": sections.tiles(results) if results else [],
        "scores": sections.score_table(results) if results else None,
        "groups": sections.group_table(results) if results else {"rows": []},
        **(sections.data_table(results) if results else {"data_rows": [], "data_parts": []}),
        "calibration": sections.calibration_table(results.calibration) if results and results.calibration else None,
        "charts": {
            name.replace("-", "_"): charts.get(name)
            for name in (
                "scores",
                "groups",
                "contribution",
                "label-scores",
                "reliability",
                "thresholds",
                "frequencies",
            )
        },
        "learning": [chart for name, chart in charts.items() if name.startswith("learning-")],
        "collapse": charts.get("collapse"),
        "monitor": read_training_curves(run.metrics, ""),
        "inside": [chart for name, chart in charts.items() if name == "points" or name.startswith("attention-")],
        "examples": (examples := example_cards(run.examples)),
        "browses": len(examples["shown"]) > SHOWN_AT_FIRST,
        "shown_at_first": SHOWN_AT_FIRST,
        "label_table": label_table(run.labels, results) if run.labels else None,
        "confusions": confusion_rows(run.confusions),
        "tried": tried_table(run.tried) if run.tried else None,
        "costs": sections.cost_table(results) if results else [],
        "about": sections.about_list(run),
        "config": sections.shown_config(run.config),
    }


def verdict(run: Run) -> str:
    """Method, data, main scores and time in one line."""
    subject = cut(run.state.method, 60) or "This run"
    if run.data_name:
        subject += f" on {cut(run.data_name, 80)}"
    results = run.results
    if results is None:
        return f"{subject}: not evaluated."
    values = results.evaluation.values
    main = [name for name in sorted_metrics(values) if family_and_k(name)[0] == "P"] or sorted_metrics(values)
    parts = [", ".join(f"{cut(name, 20)} {percent(values[name])} %" for name in thinned(main, 3))]
    if results.n_documents is not None:
        parts[0] += f" on {counted(results.n_documents, results.n_available)} {cut(results.split, 20)} documents"
    if (fit := results.timings.get("fit")) is not None:
        parts.append(f"trained in {duration(fit)}")
    if (rate := results.timings.get("predict_documents_per_second")) is not None:
        parts.append(f"{number(round(rate))} documents per second at prediction")
    return f"{subject}: {'; '.join(parts)}."


def _notes(run: Run) -> list[str]:
    # The report is the last stage of a run, so a running run with results is otherwise finished.
    notes = ["This run has not finished."] if run.state.status == "running" and run.results is None else []
    notes += [f"This run has failed: {cut(run.state.error, 600)}"] if run.state.status == "failed" else []
    notes += [f"{name} is missing: {_WHEN_MISSING[name]}." for name in run.missing]
    notes += [_sentence(run.model_changes)] if run.model_changes else []
    notes += [_sentence(remark) for remark in (run.results.remarks if run.results else ())[:MAX_REMARKS]]
    return notes + list(run.notes)


def _sentence(remark: str) -> str:
    text = cut(remark, 400)
    return f"{text[:1].upper()}{text[1:]}."
