"""Numbers as people read them: per cent, time, bytes, counts. One place, so that tables and charts agree."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

NOTHING = "–"  # noqa: RUF001 - an en dash stands for a value that is not known

_AT_K = re.compile(r"^(?P<family>.+)@(?P<k>\d{1,9})$")


def percent(value: float | None, digits: int = 2) -> str:
    """A share as per cent without the sign: 0.9173 -> '91.73'."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def bar_percent(value: float) -> str:
    """Per cent above a bar, where there is little room: '76', '5.3', '0.05'; only nothing at all is '0'."""
    if value == 0 or value >= 9.95:
        return f"{value:.0f}"
    if value < 0.01:
        return "<0.01"
    return f"{value:.1g}" if value < 0.95 else f"{value:.2g}"


def number(value: object) -> str:
    """Any plain value: whole numbers with commas, other numbers with about four digits, words as they are."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """A time span: '850 ms', '13.2 s', '4 min 12 s', '2 h 05 min', '3 d 4 h'."""
    if seconds is None:
        return NOTHING
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0005 or seconds == 0 else "<1 ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    hours, minute = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minute:02d} min"
    return f"{hours // 24:,} d {hours % 24} h"


def size(amount: float | None) -> str:
    """Bytes in decimal units: '412 MB', '1.3 GB'."""
    if amount is None:
        return NOTHING
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    place = 0
    while abs(amount) >= 999.5 and place < len(units) - 1:
        amount, place = amount / 1000, place + 1
    if place == 0:
        return f"{amount:.0f} bytes"
    return f"{amount:.1f} {units[place]}" if abs(amount) < 99.95 else f"{amount:,.0f} {units[place]}"


def words(key: str) -> str:
    """A file's key as words: 'predict_documents_per_second' -> 'predict documents per second'."""
    return key.replace("_", " ")


def cut(text: str | None, length: int) -> str:
    """Text on one line without control characters, cut at a length with an ellipsis."""
    plain = "".join(letter for letter in " ".join((text or "").split()) if letter.isprintable())
    return plain if len(plain) <= length else plain[: length - 1].rstrip() + "…"


def family_and_k(metric: str) -> tuple[str, int | None]:
    """'nDCG@5' -> ('nDCG', 5); a name without a cut-off has None."""
    match = _AT_K.match(metric)
    return (match["family"], int(match["k"])) if match else (metric, None)


def in_reading_order(metrics: Iterable[str]) -> list[str]:
    """Metric names with the families kept together, the usual three first, and k rising inside a family."""
    first = {"P": 0, "nDCG": 1, "PSP": 2}
    families: dict[str, int] = {}
    names = list(dict.fromkeys(metrics))
    for name in names:
        family = family_and_k(name)[0]
        families.setdefault(family, first.get(family, len(first) + len(families)))
    return sorted(names, key=lambda name: (families[family_and_k(name)[0]], family_and_k(name)[1] or 0))


def short_names(paths: list[str]) -> list[str]:
    """Field names as short as they can be told apart."""
    for length in range(1, 10):
        names = [".".join(path.split(".")[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return paths
