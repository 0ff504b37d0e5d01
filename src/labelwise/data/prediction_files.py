"""Recognises files that `labelwise predict` has written, so that a folder is not read as if they were its documents."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from labelwise.data.files import first_bytes
from labelwise.data.splits import stem_and_extension

SCORES = ("score", "probability", "scores", "probabilities")
"""Columns of predicted tables; of long ones the first two, after `label`, of wide ones the others, after `labels`."""
PREFIX = "predicted_"
"""Of the columns of a wide table whose input has a column of the same name."""


def is_prediction_file(path: Path) -> bool:
    """Whether the first line is that of predictions as JSONL, TSV or CSV."""
    extension = stem_and_extension(path)[1]
    if extension not in (".jsonl", ".ndjson", ".tsv", ".csv"):
        return False
    line = first_bytes(path).removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
    if extension in (".jsonl", ".ndjson"):
        return _is_prediction(line)
    return any(_is_header(line, delimiter) for delimiter in ("\t" if extension == ".tsv" else ",;\t"))


def _is_header(line: str, delimiter: str) -> bool:
    try:
        names = [name.removeprefix(PREFIX) for name in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return False
    long = "label" in names and names[:1] == ["id"] and bool(set(SCORES[:2]) & set(names))
    return long or ("labels" in names and bool(set(SCORES[2:]) & set(names)))


def _is_prediction(line: str) -> bool:
    """Whether labels are objects with a score; those of documents are names, or a mapping to relevances."""
    try:
        labels = json.loads(line)["labels"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return False
    listed = labels if isinstance(labels, list) else []
    return any(isinstance(one, dict) and one.keys() >= {"label", "score"} for one in listed)
