"""Label files: a list of allowed labels, the names of all, and factors for scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from labelwise.errors import DataError
from labelwise.strings import Strings


def read_label_list(path: str | Path, known: Strings) -> list[str]:
    """Labels of the model, one per line; blank lines are ignored."""
    labels = []
    for number, line in _lines(path):
        if line not in known.positions:
            raise DataError(f"the model has no label '{line[:80]}'", path, number)
        labels.append(line)
    if not labels:
        raise DataError("the file is empty; label names are needed, one per line", path)
    return labels


def read_label_names(path: str | Path) -> Strings:
    """The names of all labels in the order of their numbers, one per line."""
    names = []
    for number, line in _lines(path):
        if number != len(names) + 1:
            raise DataError("the line is blank; every label needs a name, one per line", path, len(names) + 1)
        names.append(line)
    if not names:
        raise DataError("the file is empty; label names are needed, one per line", path)
    return Strings.of(names)


def read_label_weights(path: str | Path) -> dict[str, float]:
    """Factors by label, from lines of label<TAB>factor."""
    weights: dict[str, float] = {}
    for number, line in _lines(path):
        label, tab, text = line.rpartition("\t")
        try:
            factor = float(text) if tab else None
        except ValueError:
            factor = None
        if factor is None or not math.isfinite(factor) or not label:
            raise DataError(f"{line[:80]!r} is not label<TAB>factor", path, number)
        if weights.get(label, factor) != factor:
            raise DataError(f"'{label}' has another factor on an earlier line", path, number)
        weights[label] = factor
    if not weights:
        raise DataError("the file is empty; lines of label<TAB>factor are needed", path)
    return weights


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines, without blank lines."""
    from labelwise.data.stream import line_bounds, text_blocks

    for block in text_blocks(Path(path)):
        for number, line in enumerate(Strings(block.data, *line_bounds(block.data)), block.first_line):
            if line.strip():
                yield number, line.strip("\r")
