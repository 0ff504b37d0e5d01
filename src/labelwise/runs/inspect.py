"""Inspects a trained model once, so that reports need neither the model nor torch.

Documents become points in a plane (principal components of their vectors, normalised to unit norm), coloured by
frequent labels, and attention per layer is kept for a few of them. All in one small JSON file.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.io import folder as files
from labelwise.model.method import Method
from labelwise.registry import can
from labelwise.runs.config import InspectSection
from labelwise.runs.data import RunData
from labelwise.runs.folder import RunFolder

COLOURS = 7
"""Number of labels that points are coloured by."""
MAX_TOKEN_CHARACTERS = 60


def can_be_inspected(model: Method) -> bool:
    """Whether a method has document vectors or attention to show."""
    return can(model, "vectors") or can(model, "attention")


def inspect(run: RunFolder, model: Method, data: RunData, section: InspectSection) -> None:
    """Write inspection.json, unless it exists already for the same options."""
    options = section.model_dump(mode="json", exclude={"enabled"})
    if is_inspected(run, section):
        return
    name, part = next((name, part) for name, part in _parts(data) if part is not None and len(part))
    content: dict[str, Any] = {"wishes": options, "part": name, "points": None, "attention": []}
    if can(model, "vectors") and section.vectors:
        content["points"] = points(model, part, section.vectors)
    if can(model, "attention") and section.documents:
        content["attention"] = attention(model, part, _document_indices(section.documents, len(part)), section.tokens)
    run.write_text(files.INSPECTION, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def is_inspected(run: RunFolder, section: InspectSection) -> bool:
    """Whether the run has an inspection.json that was written with the same options."""
    try:
        content = json.loads((run / files.INSPECTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("wishes") == section.model_dump(mode="json", exclude={"enabled"})


def _parts(data: RunData) -> list[tuple[str, Dataset | None]]:
    return [("valid", data.valid), ("test", data.test), ("train", data.train)]


def _document_indices(requested: int | list[int], count: int) -> np.ndarray:
    """Indices evenly spread over a part, or the requested ones that exist."""
    if isinstance(requested, list):
        return np.array([index for index in requested if index < count], np.int64)
    return np.unique(np.linspace(0, count - 1, min(requested, count)).astype(np.int64))


# --- documents as points ----------------------------------------------------------------------------------------


def points(model: Method, part: Dataset, limit: int) -> dict[str, Any] | None:
    """Some documents in a plane with the label each is coloured by; None if vectors are not finite."""
    chosen = part.take(_document_indices(limit, len(part)))
    vectors = model.encode(chosen).astype(np.float64)
    if not np.isfinite(vectors).all():
        return None
    plane, explained, cosine = project_to_plane(vectors)
    labels, colours = covering_labels(chosen.labels)
    return {
        "x": _rounded(plane[:, 0], 6),
        "y": _rounded(plane[:, 1], 6),
        "shares": _rounded(explained, 4),
        "cosine": None if cosine is None else round(cosine, 6),
        "colours": colours.tolist(),
        "labels": [_label(chosen, label) for label in labels],
    }


def project_to_plane(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float | None]:
    """Unit vectors on their first two principal components, the explained variance ratios, and the mean cosine."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(norms, 1e-30)
    count = len(unit)
    cosine = float((np.square(unit.sum(0)).sum() - count) / (count * (count - 1))) if count > 1 else None
    centred = unit - unit.mean(0)
    left, singular, right = np.linalg.svd(centred, full_matrices=False)
    plane, explained = np.zeros((count, 2)), np.zeros(2)
    kept = min(2, len(singular))
    # The sign of a component is arbitrary: its largest entry is made positive, so that the result is deterministic.
    signs = np.sign(right[np.arange(kept), np.abs(right[:kept]).argmax(1)])
    plane[:, :kept] = left[:, :kept] * singular[:kept] * signs
    explained[:kept] = np.square(singular[:kept]) / max(float(np.square(singular).sum()), 1e-30)
    return plane, explained, cosine


def covering_labels(labels: Any) -> tuple[list[int], np.ndarray]:
    """Frequent labels, and for each document the index of its label among them, -1 for none.

    Chosen greedily: each label is the most frequent one among the documents without a colour. The most frequent labels
    overall would often colour the same documents.
    """
    colours = np.full(labels.shape[0], -1, np.int64)
    chosen: list[int] = []
    owners = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
    for colour in range(COLOURS):
        uncoloured = colours[owners] == -1
        if not uncoloured.any():
            break
        candidates, counts = np.unique(labels.indices[uncoloured], return_counts=True)
        chosen.append(int(candidates[counts.argmax()]))
        colours[owners[uncoloured & (labels.indices == chosen[-1])]] = colour
    return chosen, colours


def _label(part: Dataset, label: int) -> str:
    return part.label_names[label] if part.label_texts is None else part.label_texts[label] or part.label_names[label]


# --- attention --------------------------------------------------------------------------------------------------


def attention(model: Method, part: Dataset, indices: np.ndarray, tokens: int) -> list[dict[str, Any]]:
    """Attention of some documents per layer, without documents whose attention is empty or not finite."""
    kept = []
    for index, maps in zip(indices.tolist(), model.attention(part.take(indices), tokens), strict=True):
        if len(maps.weights) and np.isfinite(maps.weights).all():
            kept.append(
                {
                    "document": part.ids[index] if part.ids is not None else f"document {index}",
                    "tokens": [token[:MAX_TOKEN_CHARACTERS] for token in maps.tokens],
                    "n_tokens": maps.n_tokens,
                    "weights": [[_rounded(row, 4) for row in layer] for layer in maps.weights],
                    "entropy": _rounded(maps.entropy, 4),
                }
            )
    return kept


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
