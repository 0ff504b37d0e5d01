"""Reads and validates inspection.json of a run: documents as points in a plane, and attention by layer."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from labelwise.io.folder import INSPECTION
from labelwise.io.json import Record, read_json


class PlanePoints(Record):
    """Documents as points in a plane, each with the index of its label in `labels`, or -1."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    colours: tuple[int, ...]
    labels: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    cosine: float | None = None

    @model_validator(mode="after")
    def _fits(self) -> PlanePoints:
        if not len(self.x) == len(self.y) == len(self.colours):
            raise ValueError("x, y and colours must have the same length")
        if any(not -1 <= colour < len(self.labels) for colour in self.colours):
            raise ValueError("an entry of colours is not an index of labels")
        return self


class DocumentAttention(Record):
    """Attention between tokens of a document, averaged over heads, by layer."""

    document: str
    tokens: tuple[str, ...]
    n_tokens: int
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    entropy: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> DocumentAttention:
        size = len(self.tokens)
        if not self.weights or any(len(m) != size or any(len(row) != size for row in m) for m in self.weights):
            raise ValueError("weights must be a square matrix over the tokens for each layer")
        return self


class Inspection(Record):
    """Contents of inspection.json."""

    part: str = "valid"
    points: PlanePoints | None = None
    attention: tuple[DocumentAttention, ...] = ()


def read_inspection(folder: Path) -> Inspection | None:
    """Read the inspection of a run folder; None if there is none."""
    path = folder / INSPECTION
    return read_json(path, Inspection) if path.is_file() else None
