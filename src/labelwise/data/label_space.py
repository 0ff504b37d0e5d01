"""Positions of label names in another label space. Plain Python for small spaces, a kernel for large ones.

A dictionary of ten million names costs gigabytes and seconds; the kernel's table a fraction of both.
"""

from __future__ import annotations

import numpy as np

from labelwise.errors import DataError
from labelwise.strings import Strings

LARGE = 100_000


def positions_in(names: Strings, within: Strings) -> np.ndarray:
    """For each name its index in `within` (which has no duplicates), or -1."""
    if len(names) + len(within) < LARGE:
        index_of = within.positions
        return np.fromiter((index_of.get(name, -1) for name in names), np.int64, len(names))
    from labelwise.kernels.formats.fields import Interner

    table = Interner()
    table.add(within.buffer, within.starts, within.ends)
    indices = table.add(names.buffer, names.starts, names.ends).astype(np.int64)
    return np.where(indices < len(within), indices, -1)


def check_distinct(names: Strings, what: str) -> None:
    """Refuse duplicate names; the result is cached in `names.distinct`."""
    if names.distinct is None:
        duplicate = first_duplicate(names)
        if duplicate is not None:
            raise DataError(f"{what}: duplicate label name {duplicate!r}; names must be unique")
        names.distinct = True


def first_duplicate(names: Strings) -> str | None:
    """The first name that occurs more than once, or None."""
    if len(names) < LARGE:
        if len(names.positions) == len(names):
            return None
        return next(name for index, name in enumerate(names) if names.positions[name] != index)
    from labelwise.kernels.formats.fields import Interner

    indices = Interner().add(names.buffer, names.starts, names.ends)
    duplicates = np.flatnonzero(indices != np.arange(len(names)))
    return names[int(duplicates[0])] if len(duplicates) else None
