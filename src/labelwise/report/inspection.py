"""inspection.json of a run: documents as points in a plane, and attention by layer. Read and checked."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from labelwise.run_schema import INSPECTION, Record, read_json


class PlanePoints(Record):
    """Documents in a plane, each with the place of its label among `labels`, -1 for another one."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    colours: tuple[int, ...]
    labels: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    cosine: float | None = None

    @model_validator(mode="after")
    def _fits(self) -> PlanePoints:
        if not len(self.x) == len(self.y) == len(self.colours):
            raise ValueError("x, y and colours must be of one length")
        if any(not -1 <= colour < len(self.labels) for colour in self.colours):
            raise ValueError("a colour without a label")
        return self


class DocumentAttention(Record):
    """Attention among some tokens of a document, the mean over heads, by layer."""

    document: str
    tokens: tuple[str, ...]
    n_tokens: int
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    entropy: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> DocumentAttention:
        size = len(self.tokens)
        if not self.weights or any(len(m) != size or any(len(row) != size for row in m) for m in self.weights):
            raise ValueError("weights must be a square over the tokens for each layer")
        return self


class Inspection(Record):
    """The whole file."""

    part: str = "valid"
    points: PlanePoints | None = None
    attention: tuple[DocumentAttention, ...] = ()


def read_inspection(folder: Path) -> Inspection | None:
    """What a run's folder has; None for a run that was not looked into."""
    path = folder / INSPECTION
    return read_json(path, Inspection) if path.is_file() else None
