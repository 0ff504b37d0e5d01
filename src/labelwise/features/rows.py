"""Document features as the linear kernels take them: CSR arrays, and dense columns that stay dense."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from labelwise.data.csr import Blocks, MappedCsrBuilder, csr_of, offsets_of, read_only
from labelwise.data.dataset import CSR, row_pieces
from labelwise.data.out_of_core import range_of_rows
from labelwise.errors import DataError, ModelFormatError
from labelwise.formatting import size
from labelwise.io import tensors as pages
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import in_pieces, in_range, mapping_of, release_pages
from labelwise.runtime.threads import ranges, run_all, threads

NO_COLUMNS = np.empty((0, 0), np.float32)
MIN_DENSITY = 0.5
"""Fraction of non-zeros from which an array takes less memory dense than as CSR."""


class FeatureRows(NamedTuple):
    """A CSR matrix as plain arrays, and `dense` columns, which are the features from index `first_dense` on.

    Offsets are int64 and indices int32, whatever a user's matrix has, so that every kernel is compiled once.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    """Documents, and sparse plus dense features."""
    dense: np.ndarray = NO_COLUMNS
    """[documents, columns], float32 or float16."""
    first_dense: int = 0
    zeros: bool = True
    """Whether zeros of `dense` take part in sums: adding them can change how other numbers are rounded."""
    unused: int = 0
    """How many features at the end occur in no document."""

    @classmethod
    def of(cls, matrix: Any) -> FeatureRows:
        """The arrays of a CSR matrix; rows are returned unchanged."""
        if isinstance(matrix, FeatureRows):
            return matrix
        return cls(offsets_of(matrix), matrix.indices.astype(np.int32, copy=False), matrix.data, matrix.shape)

    @property
    def sparse(self) -> sparse.csr_array:
        """The sparse features as a CSR matrix that shares the arrays, but has offsets of the type of its indices."""
        offsets = self.indptr.astype(np.int32) if self.indptr[-1] < 1 << 31 else self.indptr
        return csr_of(self.data, self.indices, offsets, self.shape)

    @property
    def n_dense(self) -> int:
        """Dense columns."""
        return self.dense.shape[1]


def stacked(above: FeatureRows, below: FeatureRows) -> FeatureRows:
    """The documents of two, which have the same features and the same dense columns."""
    indptr = np.append(above.indptr, below.indptr[1:] + above.indptr[-1])
    indices, data = np.append(above.indices, below.indices), np.append(above.data, below.data)
    dense = np.concatenate([above.dense, below.dense]) if above.n_dense else NO_COLUMNS
    shape = (above.shape[0] + below.shape[0], above.shape[1])
    return above._replace(indptr=indptr, indices=indices, data=data, shape=shape, dense=dense, unused=0)


def sparse_and_dense(features: Any) -> tuple[Any, np.ndarray | None]:
    """The blocks of features of any type, unchanged; None for one that there is not."""
    if isinstance(features, Blocks | FeatureRows):
        return features.sparse, features.dense
    return (features, None) if sparse.issparse(features) else (None, features)


def blocks_of(features: Any) -> tuple[Any, np.ndarray]:
    """A sparse and a dense block (without columns where there is none) from CSR, `FeatureRows`, dense or `Blocks`.

    An array of mostly zeros counts as sparse.
    """
    if isinstance(features, Blocks):
        left, dense = features.sparse, features.dense
    elif isinstance(features, np.ndarray) and np.count_nonzero(features) >= MIN_DENSITY * features.size:
        left, dense = None, features
    else:
        left, dense = features, None
    if left is None:
        left = sparse.csr_array((features.shape[0], 0), dtype=np.float32)
    return as_csr(left), NO_COLUMNS if dense is None else dense


def as_csr(features: Any) -> Any:
    """All features as CSR with sorted int32 columns, 8 bytes per dense number."""
    if isinstance(features, FeatureRows):
        return features
    if isinstance(features, Blocks):
        return features.to_csr()
    if isinstance(features, np.ndarray) and features.dtype != np.float32:
        features = features.astype(np.float32)
    csr = features if isinstance(features, CSR) else sparse.csr_array(features)
    if csr.indices.dtype != np.int32:
        csr = csr_of(csr.data, csr.indices.astype(np.int32), csr.indptr, csr.shape)  # the user's matrix is not changed
    return csr


def unit_rows(features: Any) -> Any:
    """Features (CSR, dense or `Blocks`) with every document scaled to unit L2 norm; documents without features stay.

    No array is shared with the given ones but the offsets: training renumbers columns in place.
    """
    if isinstance(features, Blocks):
        parts = [part for part in (features.sparse, features.dense) if part is not None]
        norms = np.sqrt(sum(_squares(part) for part in parts))
        left, dense = (None if part is None else _divided(part, norms) for part in (features.sparse, features.dense))
        return Blocks(left, dense)
    return _divided(features, np.sqrt(_squares(features)))


def unit_rows_on_disk(features: Any, folder: Path) -> Any:
    """`unit_rows` of CSR in a file of the folder, which is mapped; sums are rounded as those of short matrices."""
    return _mapped(features, unit_rows, folder)


def _mapped(features: Any, change: Callable[[Any], Any], folder: Path) -> Any:
    """CSR with its rows changed, in a file of the folder."""
    builder = MappedCsrBuilder(True, folder)
    for first, last in row_pieces(features.indptr):
        part = change(range_of_rows(features, first, last))
        builder.add(np.diff(part.indptr), part.indices, part.data, 1.0)
        release_pages(features.indices)
        release_pages(features.data)
    return builder.matrix(features.shape[1])


def _squares(features: Any) -> np.ndarray:
    """The sum of the squares of each row, float64."""
    if isinstance(features, np.ndarray):
        return np.einsum("ij,ij->i", features, features, dtype=np.float64)
    ends = np.append(0.0, np.cumsum(np.square(features.data, dtype=np.float64)))[features.indptr]
    return np.diff(ends)


def _divided(features: Any, norms: np.ndarray) -> Any:
    factors = np.divide(1.0, norms, out=np.ones_like(norms), where=norms > 0).astype(np.float32)
    if isinstance(features, np.ndarray):
        return features * factors[:, None].astype(features.dtype)
    data = features.data * np.repeat(factors, np.diff(features.indptr))
    return csr_of(data, features.indices.copy(), features.indptr, features.shape)


# --- feature order ---
# Features renumbered by document frequency, for memory locality.
#
# Most of a document's features are frequent ones. With the most frequent first, their weights share cache lines and
# pages in every node of a tree: training and a single prediction take a quarter less time. Names and the user's
# numbering are untouched; a model stores the order beside its weights.

PIECE_ENTRIES = 1 << 22
"""Entries that are read from a file at a time."""
MIN_PARALLEL = 64  # documents up to which one thread is faster than several
MAX_FEATURES = 1 << 30
"""A model stores one number per feature, whether it occurs or not."""


class FeatureOrder:
    """``original[new index]`` is the feature's index in the user's data, most frequent first; `ranks` inverts it."""

    def __init__(self, original: np.ndarray) -> None:
        self.original = original
        self.ranks = np.empty(len(original), np.int32)
        self.ranks[original] = np.arange(len(original), dtype=np.int32)

    @classmethod
    def by_frequency(cls, features: Any, n_dense: int = 0) -> FeatureOrder:
        """The order for a CSR matrix; ties keep the user's order.

        Dense columns, numbered after the sparse ones by the user, follow the sparse features that occur; features
        that do not occur come last.
        """
        from labelwise.kernels.packing import count_columns

        n_sparse = features.shape[1]
        if n_sparse + n_dense > MAX_FEATURES:
            raise DataError(
                f"{n_sparse + n_dense:,} features are too many: a linear model keeps a number per feature and accepts "
                f"at most {MAX_FEATURES:,}; renumber the features that occur from 0, or hash them into fewer"
            )
        counts = np.zeros(n_sparse, np.int32)
        indices = read_only(features.indices)
        for begin in range(0, len(indices), PIECE_ENTRIES):
            count_columns(indices, begin, min(begin + PIECE_ENTRIES, len(indices)), counts)
            release_pages(features.indices)
        seen = np.flatnonzero(counts)
        original = np.empty(n_sparse + n_dense, np.int32)
        original[: len(seen)] = seen[np.argsort(-counts[seen], kind="stable")]
        original[len(seen) : len(seen) + n_dense] = np.arange(n_sparse, n_sparse + n_dense)
        original[len(seen) + n_dense :] = np.flatnonzero(counts == 0)
        return cls(original)

    @classmethod
    def learn(cls, features: Any, in_place: bool = False, folder: Path | None = None) -> OrderedFeatures:
        """The order of the training features, and the features renumbered by it.

        `in_place` overwrites the CSR; with a folder they are written to files in it and mapped.
        """
        csr, dense = blocks_of(features)
        order = cls.by_frequency(csr, dense.shape[1])
        ordered = order.apply(csr, in_place) if folder is None else _mapped(csr, order.apply, folder)
        # all features that occur have the lowest numbers
        n_seen = max((int(piece.max(initial=-1)) for piece in in_pieces(ordered.indices)), default=-1) + 1
        shape = (csr.shape[0], len(order.original))
        unused = shape[1] - n_seen - dense.shape[1]
        rows = FeatureRows(offsets_of(ordered), ordered.indices, ordered.data, shape, dense, n_seen, unused=unused)
        return OrderedFeatures(order, rows, folder)

    def extended(self, n_features: int) -> FeatureOrder:
        """The order with more features, numbered after the others by the user and here."""
        return FeatureOrder(np.append(self.original, np.arange(len(self.original), n_features, dtype=np.int32)))

    def apply(self, features: Any, in_place: bool = False) -> Any:
        """Renumber the columns of a CSR matrix, in a copy unless `in_place`."""
        if in_place:
            self._renumber(features, features.indices, features.data)
            return features
        indices, data = np.empty_like(features.indices), np.empty_like(features.data)
        self._renumber(features, indices, data)
        return csr_of(data, indices, features.indptr, features.shape)

    def rows(self, features: Any) -> FeatureRows:
        """Renumbered documents to predict for, as arrays: building a matrix takes longer than scoring a document.

        `FeatureRows`, which users never hold, are renumbered in place. Dense columns stay dense if they are consecutive
        in the model's order, which they are if it was trained on the same columns.
        """
        csr, dense = blocks_of(features)
        first = 0
        if dense.shape[1]:
            ranks = self.ranks[csr.shape[1] :]
            first = int(ranks.min())
            if int(ranks.max()) - first >= len(ranks):
                csr, dense = as_csr(features), NO_COLUMNS
            elif (np.diff(ranks) < 0).any():
                dense = dense[:, np.argsort(ranks)]
        shape = (csr.shape[0], len(self.ranks))
        if isinstance(csr, FeatureRows):
            self._renumber(csr, csr.indices, csr.data)
            return csr
        indices, data = np.empty_like(csr.indices), np.empty_like(csr.data)
        self._renumber(csr, indices, data)
        zeros = not isinstance(features, np.ndarray)  # CSR built from an array stores none
        return FeatureRows(offsets_of(csr), indices, data, shape, dense, first, zeros)

    def _renumber(self, features: Any, out_indices: np.ndarray, out_data: np.ndarray) -> None:
        from labelwise.kernels.packing import renumber_rows

        matrix = offsets_of(features), read_only(features.indices), read_only(features.data), self.ranks
        parts = ranges(features.shape[0], 4 * threads() if features.shape[0] > MIN_PARALLEL else 1)
        run_all(lambda part: renumber_rows(*matrix, *part, out_indices, out_data), parts)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], n_features: int, path: Path) -> FeatureOrder:
        """Restore ``original`` and check that it is a permutation: kernels index with it unchecked."""
        original = get_tensor(tensors, "feature_order", path)
        sound = original.dtype == np.int32 and original.shape == (n_features,) and in_range(original, n_features)
        if sound:
            seen = np.zeros(n_features, bool)
            seen[original] = True
            sound = bool(seen.all())
        if not sound:
            raise ModelFormatError(f"{path}: the order of features is damaged")
        return cls(original)


class OrderedFeatures(NamedTuple):
    """Training features, renumbered by the order next to them."""

    order: FeatureOrder
    rows: FeatureRows
    folder: Path | None = None
    """For the files of mapped rows, and for copies of some of them; None: rows are in memory."""


# --- held rows ---
# Some rows of mapped features in memory, or in a smaller file, read in one pass over the file.
#
# Work that needs the documents of many labels would read each document as often as it has labels, from places all over
# the file. It is divided into batches whose documents fit in memory together; the file is read from its beginning to
# its end once per batch, which is as fast as the disk. Documents that do not fit but are read many times are copied to
# a file of their own: between them, the system would read others from the disk with them.

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
    from labelwise.kernels.packing import copy_rows

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
    except BaseException as error:
        builder.remove()
        if not isinstance(error, DataError | OSError):
            raise
        level = logging.DEBUG if folder in _warned else logging.WARNING
        _warned.add(folder)  # every level of every tree tries again
        log.log(level, "%s; documents of large nodes are not copied, which takes longer", error)
        return None
    return HeldRows(rows, offsets_of(matrix), matrix.indices, matrix.data)


def batches_of(
    items: Sequence[Item], documents: Iterable[np.ndarray], features: FeatureRows, limit: float
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
