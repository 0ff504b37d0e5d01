"""Predicted labels as JSON. Names and texts of labels are written once and kept: they are most of an answer's time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from labelwise.strings import Strings

KEPT_BYTES = 16_000_000
"""Memory for the JSON of labels; when it is used up, they are made again."""
OVERHEAD = 150
"""Bytes of memory that a kept label needs besides its characters."""

Fields = Callable[[str, str | None], dict[str, Any]]


class Ranked(NamedTuple):
    """The labels of a document, best first: their numbers, scores, and words if they were asked for."""

    labels: list[int]
    scores: list[float]
    words: list[list[str]] | None


class LabelStarts(dict[int, str]):
    """The object of each label up to its score, in ASCII; made when it is first needed."""

    def __init__(self, names: Strings, texts: Strings | None, fields: Fields) -> None:
        super().__init__()
        self.names, self.texts, self.fields = names, texts, fields
        self.bytes = 0

    def __missing__(self, number: int) -> str:
        text = None if self.texts is None else self.texts[number]
        start = compact(self.fields(self.names[number], text))[:-1] + ',"score":'
        if self.bytes + len(start) + OVERHEAD > KEPT_BYTES:
            self.clear()
            self.bytes = 0
        self.bytes += len(start) + OVERHEAD
        self[number] = start
        return start


def compact(value: Any) -> str:
    """JSON in ASCII, so that no text can break out of anything."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def label_fields(name: str, text: str | None) -> dict[str, Any]:
    """A label as our own routes show it."""
    return {"label": name} if text is None else {"label": name, "text": text}


def labels_json(starts: LabelStarts, found: Ranked) -> str:
    """The list of a document's labels. Scores have six significant digits; those that are not finite are null."""
    scores: Sequence[str] = [f"{score:.6g}" if math.isfinite(score) else "null" for score in found.scores]
    ends: Sequence[str] = ["}"] * len(scores)
    if found.words is not None:
        ends = [f',"words":{compact(words)}}}' for words in found.words]
    parts = [starts[label] + score + end for label, score, end in zip(found.labels, scores, ends, strict=True)]
    return f"[{','.join(parts)}]"
