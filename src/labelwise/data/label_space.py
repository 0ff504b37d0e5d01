"""Label spaces: positions of names in another one, and label matrices from lists. Kernels are for large spaces.

A dictionary of ten million names costs gigabytes and seconds; the kernel's table a fraction of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import sparse

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


def labels_from_lists(lists: Iterable[Any], label_names: Strings | None = None) -> tuple[sparse.csr_array, Strings]:
    """A label matrix from a list of labels, or one label, per document; names as `sorted_label_names` sorts them."""
    rows = [_label_list(row, index) for index, row in enumerate(lists)]
    names = label_names if label_names is not None else sorted_label_names({n for row in rows for n in row})
    column_of = names.positions
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    try:
        indices = np.fromiter((column_of[n] for row in rows for n in row), np.int64, int(indptr[-1]))
    except KeyError as error:
        raise DataError(f"label {error.args[0]!r} is not among the {len(names):,} given label names") from None
    matrix = sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), len(names)))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix, names


def _label_list(row: Any, index: int) -> list[str]:
    if isinstance(row, str | int | np.integer):
        return [str(row)]
    if not isinstance(row, Iterable) or not all(isinstance(label, str | int | np.integer) for label in row):
        raise DataError(f"document {index}: its labels must be a list of names or numbers, got {row!r}")
    return [str(label) for label in row]


def sorted_label_names(names: Iterable[str]) -> Strings:
    """Names in the order of label ids: by number when all are plain numbers, else by code point."""
    listed = list(names)
    plain = all(name.isascii() and name.isdigit() and (name == "0" or name[0] != "0") for name in listed)
    return Strings.of(sorted(listed, key=int) if plain else sorted(listed))
