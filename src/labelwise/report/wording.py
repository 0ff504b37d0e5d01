"""Names of metrics and fields in tables and charts, and numbers above bars."""

from __future__ import annotations

import re
from collections.abc import Iterable

_AT_K = re.compile(r"^(?P<family>.+)@(?P<k>\d{1,9})$")


def bar_percent(value: float) -> str:
    """Percentage for the small space above a bar: '76', '5.3', '0.05'; '0' only for exactly 0."""
    if value == 0 or value >= 9.95:
        return f"{value:.0f}"
    if value < 0.01:
        return "<0.01"
    return f"{value:.1g}" if value < 0.95 else f"{value:.2g}"


def words(key: str) -> str:
    """A key of a file as words: 'predict_documents_per_second' -> 'predict documents per second'."""
    return key.replace("_", " ")


def family_and_k(metric: str) -> tuple[str, int | None]:
    """'nDCG@5' -> ('nDCG', 5); None for a name without k."""
    match = _AT_K.match(metric)
    return (match["family"], int(match["k"])) if match else (metric, None)


def sorted_metrics(metrics: Iterable[str]) -> list[str]:
    """Metric names grouped by family, the three main families first, sorted by k within a family."""
    first = {"P": 0, "nDCG": 1, "PSP": 2}
    families: dict[str, int] = {}
    names = list(dict.fromkeys(metrics))
    for name in names:
        family = family_and_k(name)[0]
        families.setdefault(family, first.get(family, len(first) + len(families)))
    return sorted(names, key=lambda name: (families[family_and_k(name)[0]], family_and_k(name)[1] or 0))


def short_names(paths: list[str]) -> list[str]:
    """The shortest suffixes of field paths that are distinct."""
    for length in range(1, 10):
        names = [".".join(path.split(".")[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return paths
