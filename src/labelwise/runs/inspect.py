"""Looks into a trained model, once and for all: reports draw what is written here and need neither model nor torch.

Documents become points in a plane (principal components of their vectors, brought to length 1), coloured by frequent
labels, and for a few of them attention is kept by layer. All in one small JSON file.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from labelwise import run_schema as files
from labelwise.data.dataset import Dataset
from labelwise.methods.base import Method
from labelwise.runs.config import InspectSection
from labelwise.runs.folder import RunFolder
from labelwise.runs.load_data import RunData

COLOURS = 7
"""Labels that points are coloured by."""
MAX_LETTERS = 60


def can_be_inspected(model: Method) -> bool:
    """Whether there is anything inside to look at."""
    return model.encodes or model.attends


def inspect(run: RunFolder, model: Method, data: RunData, section: InspectSection) -> None:
    """Write inspection.json, unless it is there already for the same wishes."""
    wishes = section.model_dump(mode="json", exclude={"enabled"})
    if inspected(run, section):
        return
    name, part = next((name, part) for name, part in _parts(data) if part is not None and len(part))
    found: dict[str, Any] = {"wishes": wishes, "part": name, "points": None, "attention": []}
    if model.encodes and section.vectors:
        found["points"] = points(model, part, section.vectors)
    if model.attends and section.documents:
        found["attention"] = attention(model, part, _places(section.documents, len(part)), section.tokens)
    run.write_text(files.INSPECTION, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")


def inspected(run: RunFolder, section: InspectSection) -> bool:
    """Whether the run has been looked into in this way before."""
    try:
        found = json.loads((run / files.INSPECTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("wishes") == section.model_dump(mode="json", exclude={"enabled"})


def _parts(data: RunData) -> list[tuple[str, Dataset | None]]:
    return [("valid", data.valid), ("test", data.test), ("train", data.train)]


def _places(wanted: int | list[int], count: int) -> np.ndarray:
    """Places evenly spread over a part, or those asked for that it has."""
    if isinstance(wanted, list):
        return np.array([place for place in wanted if place < count], np.int64)
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).astype(np.int64))


# --- documents as points ----------------------------------------------------------------------------------------


def points(model: Method, part: Dataset, most: int) -> dict[str, Any] | None:
    """Some documents in a plane with the label each is coloured by; None when the vectors are no numbers."""
    chosen = part.take(_places(most, len(part)))
    vectors = model.encode(chosen).astype(np.float64)
    if not np.isfinite(vectors).all():
        return None
    plane, shares, cosine = in_a_plane(vectors)
    labels, colours = covering_labels(chosen.labels)
    return {
        "x": _rounded(plane[:, 0], 6),
        "y": _rounded(plane[:, 1], 6),
        "shares": _rounded(shares, 4),
        "cosine": None if cosine is None else round(cosine, 6),
        "colours": colours.tolist(),
        "labels": [_label(chosen, label) for label in labels],
    }


def in_a_plane(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float | None]:
    """Vectors of length 1 along their two main directions, the shares of variance, and the mean cosine of two."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, 1e-30)
    count = len(unit)
    cosine = float((np.square(unit.sum(0)).sum() - count) / (count * (count - 1))) if count > 1 else None
    centred = unit - unit.mean(0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    plane, shares = np.zeros((count, 2)), np.zeros(2)
    kept = min(2, len(sizes))
    # A direction has no sign of its own: the largest entry is made positive, so that the same model looks the same.
    signs = np.sign(right[np.arange(kept), np.abs(right[:kept]).argmax(1)])
    plane[:, :kept] = left[:, :kept] * sizes[:kept] * signs
    shares[:kept] = np.square(sizes[:kept]) / max(float(np.square(sizes).sum()), 1e-30)
    return plane, shares, cosine


def covering_labels(labels: Any) -> tuple[list[int], np.ndarray]:
    """Frequent labels and for each document the place of its label among them, -1 for none.

    Each label is the most frequent one among the documents that the labels before it have left over: the plain top of
    the list would often colour the same documents again and again.
    """
    colours = np.full(labels.shape[0], -1, np.int64)
    chosen: list[int] = []
    owners = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
    for place in range(COLOURS):
        left = colours[owners] == -1
        if not left.any():
            break
        found, counts = np.unique(labels.indices[left], return_counts=True)
        chosen.append(int(found[counts.argmax()]))
        colours[owners[left & (labels.indices == chosen[-1])]] = place
    return chosen, colours


def _label(part: Dataset, label: int) -> str:
    return part.label_names[label] if part.label_texts is None else part.label_texts[label] or part.label_names[label]


# --- attention --------------------------------------------------------------------------------------------------


def attention(model: Method, part: Dataset, places: np.ndarray, tokens: int) -> list[dict[str, Any]]:
    """Attention of some documents by layer; those whose attention is no number, or that have none, are left out."""
    kept = []
    for place, found in zip(places.tolist(), model.attention(part.take(places), tokens), strict=True):
        if len(found.weights) and np.isfinite(found.weights).all():
            kept.append(
                {
                    "document": part.ids[place] if part.ids is not None else f"document {place}",
                    "tokens": [token[:MAX_LETTERS] for token in found.tokens],
                    "n_tokens": found.n_tokens,
                    "weights": [[_rounded(row, 4) for row in layer] for layer in found.weights],
                    "entropy": _rounded(found.entropy, 4),
                }
            )
    return kept


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
