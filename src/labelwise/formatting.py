"""Formatting of values for people: per cent, numbers, durations, bytes, text without control characters.

Tables, charts, pages and messages all use these functions, so that they agree.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MISSING = "–"  # noqa: RUF001 - an en dash for a value that is not known
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, marks that change the direction of text, lone surrogates."""


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters are escaped as in Python, `\\x1b`."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON without control characters; reads back as the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as per cent without the % sign: 0.9173 -> '91.73'."""
    return MISSING if value is None else f"{100 * value:.{digits}f}"


def number(value: object, digits: int | None = None) -> str:
    """Integers with commas, floats with four significant digits or `digits` decimals, anything else as text."""
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if isinstance(value, float) and digits is not None:
        return f"{value:,.{digits}f}"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def counted(part: int | None, whole: int | None) -> str:
    """'1,000', or '1,000 of 6,875' for a part of something."""
    return number(part) if whole is None or part == whole else f"{number(part)} of {number(whole)}"


def duration(seconds: float | None) -> str:
    """A time span: '850 ms', '13.2 s', '4 min 12 s', '2 h 05 min', '3 d 4 h'."""
    if seconds is None:
        return MISSING
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
        return MISSING
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while abs(amount) >= 999.5 and power < len(units) - 1:
        amount, power = amount / 1000, power + 1
    if power == 0:
        return f"{amount:.0f} bytes"
    return f"{amount:.1f} {units[power]}" if abs(amount) < 99.95 else f"{amount:,.0f} {units[power]}"


def cut(text: str | None, length: int) -> str:
    """Text on one line without control characters, cut at a length with an ellipsis."""
    plain = "".join(character for character in " ".join((text or "").split()) if character.isprintable())
    return plain if len(plain) <= length else plain[: length - 1].rstrip() + "…"
