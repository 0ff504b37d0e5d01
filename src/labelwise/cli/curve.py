"""The curve of label frequencies, drawn with characters on log axes."""

from __future__ import annotations

import math

import numpy as np

_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bits of a Braille character at the positions of its dots."""


def draw_curve(counts: np.ndarray, width: int = 60, height: int = 12, braille: bool = True) -> list[str]:
    """Lines of a drawing of label frequencies over ranks, both axes logarithmic; none if no label occurs.

    Parameters
    ----------
    counts
        Number of documents per label.
    width, height
        Size of the drawing inside its axes, in characters.
    braille
        Eight dots per character; False draws with `*` for ASCII-only outputs.
    """
    from labelwise.data.stats import frequency_curve

    across, down = (2, 4) if braille else (1, 1)
    ranks, frequencies = frequency_curve(counts, 2 * across * width)
    if len(ranks) == 0:
        return []
    columns, rows = across * width, down * height
    most, last = int(frequencies[0]), int(ranks[-1])
    # one point per column, so that the curve has no gaps where ranks are far apart
    positions = np.geomspace(1, last, columns) if last > 1 else np.ones(1)
    heights = np.interp(np.log(positions), np.log(ranks), np.log(frequencies))
    scale = (rows - 1) / math.log(most) if most > 1 else 0.0
    levels = np.rint(heights * scale).astype(int)
    canvas = np.zeros((rows, columns), bool)
    before = levels[0]
    for column, level in enumerate(levels.tolist()):
        low, high = sorted((level, before if abs(before - level) <= 1 else before - 1))
        canvas[rows - 1 - high : rows - low, column] = True
        before = level
    return _add_axes(canvas, across, down, most, last, braille)


def _add_axes(canvas: np.ndarray, across: int, down: int, most: int, last: int, braille: bool) -> list[str]:
    height, width = canvas.shape[0] // down, canvas.shape[1] // across
    upright, corner, flat = ("┤", "└", "─") if braille else ("|", "+", "-")
    margin = len(f"{most:,}")
    lines = ["documents"]
    for row in range(height):
        cells = "".join(_cell(canvas, row * down, column * across, braille) for column in range(width))
        level = round(most ** (1 - row / max(height - 1, 1)))
        shown = f"{level:,}" if row == height - 1 or (row % 4 == 0 and level > 1) else ""
        lines.append(f"{shown:>{margin}} {upright}{cells}".rstrip())
    lines.append(" " * (margin + 1) + corner + flat * width)
    middle = f"{round(math.sqrt(last)):,}"
    axis = list(" " * (width + 1))
    axis[1:2] = "1"
    start = width // 2 - len(middle) // 2
    axis[start : start + len(middle)] = middle
    end = f"{last:,}"
    axis[width + 1 - len(end) :] = end
    lines.append(" " * (margin + 1) + "".join(axis) + "  rank of the label")
    return lines


def _cell(canvas: np.ndarray, top: int, left: int, braille: bool) -> str:
    if not braille:
        return "*" if canvas[top, left] else " "
    bits = int(_DOTS[canvas[top : top + 4, left : left + 2]].sum())
    return chr(0x2800 + bits) if bits else " "
