"""Where the names of one label space stand in another. Plain Python for small spaces, a kernel for large ones.

A dictionary of ten million names costs gigabytes and seconds; the kernel's table a fraction of both.
"""

from __future__ import annotations

import numpy as np

from labelwise.errors import DataError
from labelwise.strings import Strings

LARGE = 100_000


def places_of(names: Strings, within: Strings) -> np.ndarray:
    """For each name its place in `within` (whose names differ from each other), or -1."""
    if len(names) + len(within) < LARGE:
        places = within.positions
        return np.fromiter((places.get(name, -1) for name in names), np.int64, len(names))
    from labelwise.kernels.formats.fields import Interner

    table = Interner()
    table.add(within.buffer, within.starts, within.ends)
    places = table.add(names.buffer, names.starts, names.ends).astype(np.int64)
    return np.where(places < len(within), places, -1)


def check_distinct(names: Strings, what: str) -> None:
    """Refuse names of which two are equal; the answer is remembered."""
    if names.distinct is None:
        repeated = first_repeated(names)
        if repeated is not None:
            raise DataError(f"{what}: the label name {repeated!r} stands for more than one label")
        names.distinct = True


def first_repeated(names: Strings) -> str | None:
    """A name that stands there more than once, or None."""
    if len(names) < LARGE:
        if len(names.positions) == len(names):
            return None
        return next(name for place, name in enumerate(names) if names.positions[name] != place)
    from labelwise.kernels.formats.fields import Interner

    places = Interner().add(names.buffer, names.starts, names.ends)
    again = np.flatnonzero(places != np.arange(len(names)))
    return names[int(again[0])] if len(again) else None
