"""Some rows of mapped features in memory, or in a smaller file, read in one pass over the file.

Work that needs the documents of many labels would read each document as often as it has labels, from places all over
the file. It is divided into batches whose documents fit in memory together; the file is read from its beginning to its
end once per batch, which is as fast as the disk. Documents that do not fit but are read many times are copied to a file
of their own: between them, the system would read others from the disk with them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from labelwise import pages
from labelwise.data.csr import MappedCsrBuilder, offsets_of, read_only
from labelwise.errors import DataError
from labelwise.features.rows import FeatureRows
from labelwise.formatting import size
from labelwise.mapped import mapping_of, release_pages
from labelwise.parallel import ranges

ENTRY_BYTES = 8
RELEASED_ENTRIES = 1 << 22
"""Entries read after which pages of the file are released."""
WRITTEN_ENTRIES = 1 << 20
"""Entries in memory while rows are copied to a file."""
SPARE_FACTOR = 1.1
"""Free space, relative to what a copy needs, that it takes to begin with one: other files grow meanwhile."""
Item = TypeVar("Item")
log = logging.getLogger("labelwise")
_warned: set[Path] = set()
"""Folders without space for copies, which was reported."""


def is_mapped(features: FeatureRows) -> bool:
    """Whether the sparse features are in a file."""
    return mapping_of(features.indices) is not None


class HeldRows(NamedTuple):
    """Copies of some rows, and which they are, ascending."""

    rows: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Where rows, all of which are held, are among the copies."""
        return np.searchsorted(self.rows, rows)


def hold_rows(features: FeatureRows, rows: np.ndarray) -> HeldRows:
    """Copy rows (ascending, each once) to memory."""
    from labelwise.kernels.tree.row_copy import copy_rows

    rows = rows.astype(np.int64, copy=False)
    indptr = np.concatenate([[0], np.cumsum(features.indptr[rows + 1] - features.indptr[rows])])
    indices, data = pages.empty(int(indptr[-1]), np.int32), pages.empty(int(indptr[-1]), np.float32)
    given = read_only(features.indptr), read_only(features.indices), read_only(features.data)

    for begin, end in ranges(len(rows), 1 + int(indptr[-1]) // RELEASED_ENTRIES):
        copy_rows(*given, read_only(rows[begin:end]), read_only(indptr[begin:end]), indices, data)
        release_pages(features.indices)
        release_pages(features.data)
    return HeldRows(rows, indptr, indices, data)


def copy_rows_to_disk(features: FeatureRows, rows: np.ndarray, folder: Path) -> HeldRows | None:
    """Copy rows (ascending, each once) to a file of the folder, which is mapped; None, and a warning, without space."""
    entries = int((features.indptr[rows + 1] - features.indptr[rows]).sum())
    builder = MappedCsrBuilder(True, folder)
    try:
        free = shutil.disk_usage(folder).free
        if free < SPARE_FACTOR * ENTRY_BYTES * entries:
            raise DataError(f"{size(free)} are free, {size(ENTRY_BYTES * entries)} would be written", folder)
        for begin, end in ranges(len(rows), 1 + entries // WRITTEN_ENTRIES):
            piece = hold_rows(features, rows[begin:end])
            builder.add(np.diff(piece.indptr), piece.indices, piece.data, 1.0)
        matrix = builder.matrix(features.shape[1])
    except (DataError, OSError) as error:
        builder.remove()
        level = logging.DEBUG if folder in _warned else logging.WARNING
        _warned.add(folder)  # every level of every tree tries again
        log.log(level, "%s; documents of large nodes are not copied, which takes longer", error)
        return None
    except BaseException:
        builder.remove()
        raise
    return HeldRows(rows, offsets_of(matrix), matrix.indices, matrix.data)


def batches_of(
    items: Sequence[Item], documents: Iterable[np.ndarray], features: FeatureRows, limit: int
) -> Iterator[tuple[list[Item], np.ndarray]]:
    """Consecutive items with documents that take at most `limit` bytes together, and these documents, ascending.

    A document of several items counts once. Items that need more than that are one batch without documents, the last.
    """
    sizes = ENTRY_BYTES * np.diff(features.indptr)
    chosen, used, batch, large = np.zeros(len(sizes), bool), 0, [], []
    for item, rows in zip(items, documents, strict=True):
        if int(sizes[rows].sum()) > limit:
            large.append(item)
            continue
        new = rows[~chosen[rows]]
        added = int(sizes[new].sum())
        if batch and used + added > limit:
            yield batch, np.flatnonzero(chosen)
            chosen[:] = False
            new, used, batch = rows, 0, []
            added = int(sizes[rows].sum())
        chosen[new] = True
        used += added
        batch.append(item)
    if batch:
        yield batch, np.flatnonzero(chosen)
    if large:
        yield large, np.empty(0, np.int64)
