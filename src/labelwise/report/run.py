"""Writes a self-contained HTML page of a run: scores, charts, examples, costs, config.

The page is a pure function of the run folder's files: the same files give the same bytes. The page notes which files
are missing. Everything from files is escaped, and the page forbids all scripts but the one that filters the examples,
which is part of it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise import __version__
from labelwise.data.stream import write_stream
from labelwise.errors import MissingDependencyError
from labelwise.formatting import (
    MISSING,
    counted,
    cut,
    duration,
    number,
    percent,
    size,
)
from labelwise.io.folder import (
    CONFIG,
    EXAMPLES,
    LABELS,
    MACHINE,
    METRICS,
    REPORT,
    RESULTS,
    STATE,
)
from labelwise.report import sections
from labelwise.report.charts import SERIES, Chart, thinned
from labelwise.report.curves import read_training_curves
from labelwise.report.label_lines import LabelTable
from labelwise.report.plots import run_charts
from labelwise.report.run_files import Run, read_run
from labelwise.report.schema import (
    AutoRecord,
    Confusions,
    Example,
    Option,
    PredictedLabel,
    Results,
)
from labelwise.report.wording import family_and_k, sorted_metrics, words

if TYPE_CHECKING:
    from markupsafe import Markup


# --- label sections ---
# The parts of a run's report that show labels: a table of some labels, and siblings that are confused.

MAX_PAIRS = 20
_LABEL_FRACTIONS = ("precision", "recall", "f1")


def label_table(table: LabelTable, results: Results | None) -> dict[str, Any]:
    """The worst, frequent and rare labels, without the columns that are empty, and which predictions they count."""
    rows = [*table.worst, *table.frequent, *table.rare]
    kept = [index for index in range(len(table.columns)) if any(row[index] for row in rows)]
    columns = []
    for index in kept:
        title = cut(words(table.columns[index]), 40)
        is_words = index == 0 or not all(_is_number(row[index]) for row in rows)
        is_fraction = not is_words and table.columns[index] in _LABEL_FRACTIONS
        columns.append(
            {"title": f"{title}, %" if is_fraction else title, "is_words": is_words, "is_fraction": is_fraction}
        )

    def shown(row: tuple[str, ...]) -> list[str]:
        cells = zip((row[index] for index in kept), columns, strict=True)
        return [
            cut(cell, 90)
            if column["is_words"]
            else percent(float(cell), 1)
            if column["is_fraction"]
            else _with_commas(cell)
            for cell, column in cells
        ]

    return {
        "columns": columns,
        "caption": f"{number(table.n_rows)} labels; {LABELS} in the run folder contains all of them."
        + ("" if results is None else f" Predictions that count: {results.label_counts}."),
        "worst": [shown(row) for row in table.worst],
        "frequent": [shown(row) for row in table.frequent],
        "rare": [shown(row) for row in table.rare],
    }


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _with_commas(cell: str) -> str:
    return number(int(cell)) if cell.isdecimal() else number(float(cell))


def confusion_rows(confusions: Confusions) -> list[dict[str, Any]]:
    """Pairs of siblings, and the fraction of the first label's documents that got the second instead."""
    rows = []
    for pair in confusions.pairs[:MAX_PAIRS]:
        fraction = pair.documents / pair.true_documents if pair.true_documents else None
        rows.append(
            {
                "true": label_title(pair.true, pair.true_text),
                "predicted": label_title(pair.predicted, pair.predicted_text),
                "cells": [
                    number(pair.documents),
                    number(pair.true_documents),
                    percent(fraction, 1),
                    number(pair.predicted_documents),
                ],
            }
        )
    return rows


def label_title(label: str, text: str | None) -> str:
    """A label with its text, if it has one."""
    return f"{cut(text, 160)} ({cut(label, 60)})" if text and text != label else cut(label, 160)


# --- example cards ---
# The example documents of a run's report: cards, and what the browser of examples searches and filters by.

MAX_EXAMPLES = 100
SHOWN_AT_FIRST = 4
MAX_TRUE_LABELS = 30
MAX_PREDICTED_LABELS = 10
DATA_URI = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]{1,60000}={0,2}")
"""Images that a run may put on a page."""
FIRST_RIGHT, FIRST_WRONG, ALL_FOUND, NONE_FOUND = "first-right", "first-wrong", "all-found", "none-found"
FILTERS = (
    (FIRST_RIGHT, "best label right"),
    (FIRST_WRONG, "best label wrong"),
    (ALL_FOUND, "all true labels found"),
    (NONE_FOUND, "no true label found"),
)


def example_cards(examples: Sequence[Example]) -> dict[str, Any]:
    """Documents with their true and predicted labels, evenly spaced among all examples."""
    shown = thinned(examples, MAX_EXAMPLES)
    counted = f"{len(shown)} of {len(examples)}" if len(shown) < len(examples) else f"{len(shown)}"
    caption = (
        f"{counted} documents. ✓: both true and predicted; the number after a true label counts its training documents."
    )
    cards = [_example(example) for example in shown]
    kinds = {kind for card in cards for kind in card["kinds"]}
    return {"shown": cards, "caption": caption, "filters": [one for one in FILTERS if one[0] in kinds]}


def _example(example: Example) -> dict[str, Any]:
    predicted = example.predicted[:MAX_PREDICTED_LABELS]
    predicted_names = {label.label for label in predicted}
    widths = _widths(predicted)
    return {
        "id": cut(example.id, 120) or "document",
        "kinds": _kinds(example),
        "text": cut(example.text, 700),
        "images": [uri for uri in (example.image, example.map) if uri and DATA_URI.fullmatch(uri)],
        "truth": [
            {
                "name": label_title(label.label, label.text),
                "hint": cut(label.label, 200),
                "count": number(label.count) if label.count is not None else None,
                "predicted": label.label in predicted_names,
            }
            for label in example.truth[:MAX_TRUE_LABELS]
        ],
        "more_truth": max(0, len(example.truth) - MAX_TRUE_LABELS),
        "predicted": [
            {
                "name": label_title(label.label, label.text),
                "score": MISSING if label.score is None else f"{label.score:.3g}",
                "correct": label.correct,
                "width": width,
            }
            for label, width in zip(predicted, widths, strict=True)
        ],
    }


def _kinds(example: Example) -> list[str]:
    """The filters that an example passes."""
    kinds = []
    if example.predicted:
        kinds.append(FIRST_RIGHT if example.predicted[0].correct else FIRST_WRONG)
    if example.truth:
        found = {label.label for label in example.predicted} & {label.label for label in example.truth}
        kinds += [ALL_FOUND] if len(found) == len({label.label for label in example.truth}) else []
        kinds += [] if found else [NONE_FOUND]
    return kinds


def _widths(predicted: Sequence[PredictedLabel]) -> list[float]:
    """Lengths of the bars in per cent: probabilities unchanged, other scores scaled to the range of the row."""
    scores = [label.score for label in predicted]
    known = [score for score in scores if score is not None]
    if not known:
        return [0.0] * len(scores)
    low, high = (0.0, 1.0) if min(known) >= 0 and max(known) <= 1 else (min(0.0, min(known)), max(known))
    reach = (high - low) or 1.0
    return [0.0 if score is None else round(100 * (score - low) / reach, 1) for score in scores]


# --- tried ---
# The section of a run's report on what `labelwise auto` has tried.

MAX_ROWS = 60


def tried_table(record: AutoRecord) -> dict[str, Any]:
    """Rows for the template: models from cheap to expensive, then ensembles, and how to read them."""
    lines = [
        f"Compared on {number(record.n_valid)} validation documents, after training on {number(record.n_train)}; test "
        "documents were not used to choose. Figures of ensembles are cross-fitted: learned on one half of the "
        "validation documents and judged on the other.",
        "Chosen is the first model, from cheap to expensive, that is less than one standard error of the paired "
        "difference behind the best.",
        f"Time budget {duration(record.budget)}"
        + (f", of which {duration(record.seconds)} until the decision" if record.seconds is not None else "")
        + ". Which models are tried depends on the clock.",
        *(_tried_sentence(note) for note in record.notes),
    ]
    return {
        "metric": cut(record.metric, 20),
        "why": _tried_sentence(record.why) if record.why else "Nothing is decided yet.",
        "rows": [_row(option, record.chosen) for option in record.options[:MAX_ROWS]],
        "lines": lines,
    }


def _row(option: Option, chosen: str | None) -> dict[str, Any]:
    behind = option.behind_best
    noise = ", within noise" if option.within_noise and behind is not None and behind[0] > 0 else ""
    low, high = option.interval or (None, None)
    return {
        "name": cut(option.name, 120),
        "chosen": option.name == chosen,
        "value": percent(option.value),
        "interval": MISSING if low is None else f"{percent(low)} {MISSING} {percent(high)}",
        "behind": MISSING if behind is None else percent(behind[0]) + noise,
        "seconds": duration(option.seconds),
        "size": size(option.bytes),
        "what": cut(f"{option.status}: {option.reason}" if option.reason else option.about, 300),
    }


def _tried_sentence(text: str) -> str:
    plain = cut(text, 400)
    return f"{plain[:1].upper()}{plain[1:]}."


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
