"""The sections of a run's report: converts results to the text and numbers that the template shows."""

from __future__ import annotations

import math
from typing import Any

from labelwise.formatting import (
    MISSING,
    cut,
    duration,
    number,
    percent,
    size,
)
from labelwise.io.folder import CONFIG
from labelwise.report.charts import thinned
from labelwise.report.run_files import Run
from labelwise.report.schema import Calibration, Evaluation, Results
from labelwise.report.wording import family_and_k, sorted_metrics, words

MAX_ROWS = 80
MAX_CONFIG_CHARACTERS = 40_000
TIE_SPREAD = 0.001

_FACTS = {
    "name": "name",
    "documents": "documents",
    "labels": "labels in the label space",
    "labels_used": "labels that occur",
    "mean_labels": "labels per document, mean",
    "mean_documents": "documents per label, mean",
    "median_documents": "documents per label, median",
    "share_labels_5": "labels with at most 5 documents, %",
    "mean_words": "words per text, mean",
    "mean_nonzeros": "features per document, mean",
    "documents_without_labels": "documents without labels",
    "repeated_texts": "duplicate texts",
}
_FRACTIONS = {
    "share_labels_1": "labels with one document, %",
    "share_labels_5": "labels with at most 5 documents, %",
    "share_labels_10": "labels with at most 10 documents, %",
    "top_1_percent": "occurrences of the most frequent 1 % of labels, %",
    "top_10_percent": "occurrences of the most frequent 10 % of labels, %",
}


def tiles(results: Results) -> list[dict[str, str]]:
    """The main figures, shown at the top."""
    values = results.evaluation.values
    ordered = sorted_metrics(values)
    last = {family_and_k(name)[0]: name for name in ordered}
    first = [name for name in ordered if values[name] is not None][:1]
    chosen = dict.fromkeys([*first, *(last[family] for family in ("nDCG", "PSP") if family in last)])
    tiles = [{"name": f"{cut(name, 20)}, %", "value": percent(values[name])} for name in chosen]
    if (fit := results.timings.get("fit")) is not None:
        tiles.append({"name": "training", "value": duration(fit)})
    if results.refit is not None and results.refit.seconds is not None:
        tiles.append({"name": "training on all documents", "value": duration(results.refit.seconds)})
    if (amount := results.model_bytes) is not None:
        tiles.append({"name": "model", "value": size(amount)})
    return tiles


def score_table(results: Results) -> dict[str, Any]:
    """Metrics with intervals and the baseline, and notes on how to interpret them."""
    evaluation, baseline = results.evaluation, results.baseline
    rows, family = [], None
    for metric in sorted_metrics(evaluation.values)[:MAX_ROWS]:
        span = evaluation.intervals.get(metric)
        rows.append(
            {
                "metric": cut(metric, 40),
                "value": percent(evaluation.values[metric]),
                "interval": _span(span) if span else MISSING,
                "baseline": percent(baseline.values.get(metric)) if baseline else None,
                "starts_family": family not in (None, family_and_k(metric)[0]),
            }
        )
        family = family_and_k(metric)[0]
    lines = [] if results.refit is None else [f"{str(results.refit).capitalize()}."]
    if evaluation.n_without_labels:
        lines.append(f"{number(evaluation.n_without_labels)} documents without any true label are counted as zero.")
    if evaluation.n_unseen_labels:
        unseen = [group.occurrences for group in evaluation.groups if group.name == "unseen"]
        times = f" ({number(unseen[0])} occurrences)" if unseen and unseen[0] is not None else ""
        lines.append(
            f"{number(evaluation.n_unseen_labels)} distinct true labels{times} never occur in the training documents."
        )
    if evaluation.propensity:
        constants = ", ".join(f"{words(key)} {number(value)}" for key, value in evaluation.propensity.items())
        lines.append(f"Propensities: {constants}.")
    lines += _tie_lines(evaluation)
    return {
        "rows": rows,
        "has_intervals": bool(evaluation.intervals),
        "baseline": cut(baseline.method, 40) if baseline else None,
        "lines": lines,
    }


def _tie_lines(evaluation: Evaluation) -> list[str]:
    """Notes on ties that matter or, because they extend beyond the end of the lists, may matter."""
    ties = {name: span for name, span in evaluation.ties.items() if span is not None}
    cut_off = {name: evaluation.ties_cut_off.get(name, 0) for name in ties}
    min_documents = TIE_SPREAD * (evaluation.n_documents or 0)
    shown = [name for name, (low, high) in ties.items() if high - low > TIE_SPREAD or cut_off[name] > min_documents]
    shown = sorted_metrics(shown)[:12]
    if not shown:
        return []
    ranges = ", ".join(f"{cut(name, 20)} {_span(ties[name])}" for name in shown)
    line = f"Labels with equal scores can be ranked in any order; depending on it, {ranges}."
    bounded = ", ".join(f"{cut(name, 20)} (in {number(cut_off[name])} documents)" for name in shown if cut_off[name])
    if bounded:
        line += f" Lower bounds, because ties extend beyond the last predicted label: {bounded}."
    return [line]


def _span(span: tuple[float, float]) -> str:
    return f"{percent(span[0])} {MISSING} {percent(span[1])}"


def group_table(results: Results) -> dict[str, Any]:
    """Metrics of head, torso and tail labels."""
    groups = results.evaluation.groups[:MAX_ROWS]
    recall_ks = thinned(sorted({k for group in groups for k in group.recall}), 4)
    contribution_ks = thinned(sorted({k for group in groups for k in group.contribution}), 4)
    rows = []
    for group in groups:
        cells = [number(group.labels), number(group.occurrences), percent(group.share, 1)]
        # The recall of a group that never occurs is undefined, not 0.
        cells += [percent(group.recall.get(k) if group.occurrences != 0 else None) for k in recall_ks]
        cells += [percent(group.contribution.get(k)) for k in contribution_ks]
        rows.append({"name": cut(group.name, 40), "cells": cells})
    return {"rows": rows, "recall_ks": recall_ks, "contribution_ks": contribution_ks}


def data_table(results: Results) -> dict[str, Any]:
    """Facts as rows, parts of the data (train, test) as columns; the less important rows come second."""
    parts = {name: part for name, part in results.data.items() if isinstance(part, dict)}
    keys = dict.fromkeys(
        key for part in parts.values() for key, value in part.items() if isinstance(value, str | int | float)
    )
    rows = []
    for key in [*(key for key in _FACTS if key in keys), *(key for key in keys if key not in _FACTS)][:MAX_ROWS]:
        cells = [cut(_fact(key, part.get(key)), 80) for part in parts.values()]
        title = _FACTS.get(key, _FRACTIONS.get(key, words(key)))
        rows.append({"name": cut(title, 60), "cells": cells, "main": key in _FACTS})
    return {"data_rows": rows, "data_parts": [cut(name, 40) for name in parts]}


def _fact(key: str, value: Any) -> str:
    is_fraction = key in _FRACTIONS and isinstance(value, int | float) and math.isfinite(value)
    return percent(value) if is_fraction else number(value)


def calibration_table(calibration: Calibration) -> dict[str, Any]:
    """Bins of scores with the fraction of correct labels before and after calibration, and the threshold."""
    before = {(one.low, one.high): one for one in calibration.before}
    rows = []
    for one in calibration.after[:MAX_ROWS]:
        first = before.get((one.low, one.high))
        cells = [number(first.pairs), percent(first.share, 1)] if first else [MISSING, MISSING]
        cells += [number(one.pairs), percent(one.share, 1)]
        rows.append({"name": f"{100 * one.low:.0f} {MISSING} {100 * one.high:.0f}", "cells": cells})
    target = calibration.wanted_precision
    purpose = "for the best micro-F1" if target is None else f"for a precision of {percent(target, 1)} %"
    missed = "" if calibration.reached else " (not reachable; the nearest was used)"
    documents = "held-out" if calibration.n_documents is None else f"{number(calibration.n_documents)} held-out"
    return {
        "rows": rows,
        "lines": [
            f"Scores are probabilities, learned from {documents} documents. The threshold {purpose}{missed} is "
            f"{calibration.threshold:.4g}; there, expect precision {percent(calibration.precision)} %, recall "
            f"{percent(calibration.recall)} %, micro-F1 {percent(calibration.f1)} %.",
            f"Calibration error {percent(calibration.error_after)} %, before {percent(calibration.error_before)} %. "
            "All figures are from documents that were not used to fit the calibration.",
        ],
    }


def cost_table(results: Results) -> list[dict[str, Any]]:
    """Times with their fraction of the total, then memory and size."""
    spans = {key: value for key, value in results.timings.items() if value is not None and "per_second" not in key}
    if results.refit is not None and results.refit.seconds is not None:
        spans["refit (training on all documents)"] = results.refit.seconds
    total = sum(spans.values()) or 1.0
    rows: list[dict[str, Any]] = [
        {"name": cut(words(key), 60), "value": duration(value), "width": round(100 * value / total, 1)}
        for key, value in list(spans.items())[:MAX_ROWS]
    ]

    def add(name: str, value: str) -> None:
        rows.append({"name": name, "value": value, "width": None})

    if (rate := results.timings.get("predict_documents_per_second")) is not None:
        add("documents per second at prediction", number(round(rate)))
    for key, value in results.memory.items():
        add("peak memory" if key == "peak_bytes" else cut(words(key), 60), size(value))
    for key, value in results.saved_model.items():
        if key == "bytes" and not isinstance(value, str):
            add("model on disk", size(value))
        else:
            add(
                "labels in the model" if key == "n_labels" else cut(f"model {words(key)}", 60),
                cut(number(value), 60),
            )
    return rows


def about_list(run: Run) -> list[dict[str, str]]:
    """Date, method and machine of the run."""
    machine = run.machine
    items: list[tuple[str, str | None]] = [
        ("run folder", run.folder.resolve().name),
        ("method", run.state.method),
        ("started", run.state.started),
        ("finished", run.state.finished),
    ]
    if machine is not None:
        used = [f"{number(machine.threads)} threads"] if machine.threads is not None else []
        used += [f"{number(machine.cores)} cores"] if machine.cores is not None else []
        used += [size(machine.memory_bytes)] if machine.memory_bytes is not None else []
        packages = [f"{name} {version}" for name, version in sorted(machine.packages.items()) if version]
        items += [
            ("processor", ", ".join([machine.cpu or "not known", *used])),
            ("system", machine.platform),
            ("Python", machine.python),
            ("packages", ", ".join(packages[:MAX_ROWS])),
        ]
    return [{"name": name, "value": cut(value, 2000)} for name, value in items if value]


def shown_config(text: str | None) -> str | None:
    """The config, truncated if it is very long."""
    if text is None or len(text) <= MAX_CONFIG_CHARACTERS:
        return text
    return text[:MAX_CONFIG_CHARACTERS] + f"\n... truncated; {CONFIG} in the run folder has all of it"
