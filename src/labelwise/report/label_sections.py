"""The parts of a run's report that show labels: a table of some labels, and siblings that are confused."""

from __future__ import annotations

import math
from typing import Any

from labelwise.formatting import cut, number, percent
from labelwise.report.label_lines import LabelTable
from labelwise.report.wording import words
from labelwise.report_schema import Confusions
from labelwise.run_schema import LABELS, Results

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
