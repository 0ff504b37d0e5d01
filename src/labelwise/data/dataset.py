"""Dataset: documents with their labels, independent of the file format.

A document has a text, a row of features, a path to a file, an array, or several of these. Labels are a sparse
documents x labels matrix whose column j is called ``label_names[j]``; two data sets can only be compared after `align`
has given them the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import (
    Blocks,
    check_distinct,
    labels_from_lists,
    pick_rows,
    positions_in,
)
from labelwise.data.hashing import document_hashes, hash_fractions
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.io.tensors import (
    are_offsets,
    counts_of,
    in_pieces,
    in_range,
    mapping_of,
    release_pages,
)
from labelwise.strings import Strings

Features = sparse.csr_array | np.ndarray | Blocks
CSR = sparse.csr_array, sparse.csr_matrix
"""SciPy's newer and older type."""
RANDOM, HASH = SPLIT_BY = ("random", "hash")
"""How a split chooses documents: by a seed, or by the content of each."""
MAX_UNNAMED_LABELS = 1 << 27
"""Most labels that may be named by their column numbers: a damaged shape must not allocate gigabytes."""


class EmptyPartError(DataError):
    """A split would leave one of its two parts without documents."""


KINDS = ("texts", "features", "paths", "arrays")
"""The types of documents."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Documents and their labels.

    Parameters
    ----------
    labels
        Sparse [documents, labels]; stored values are relevances, 1 unless the source says otherwise. Or a list of
        labels per document, as in ``Dataset(texts=["a text"], labels=[["one", "two"]])``. None for documents to
        predict for.
    label_names
        The identity of each label, unique. Defaults to the labels of the lists, or to the column numbers.
    texts, features, paths, arrays
        Inputs; at least one is required, unless there are no documents. The first axis of an array is the documents,
        the others are those of one document, such as height, width and channels of an image.
    label_texts
        A description of each label, if the source has one (the name is then often a code).
    ids
        The documents' identifiers, if the source has them.
    name
        The source of the data, for messages and reports.
    open_columns
        Whether the last columns of sparse features may be missing, as in files that only list those that occur;
        `read` sets it. Matrices of other sources must have all columns that a model was trained on.
    """

    labels: sparse.csr_array = field(default=None)  # type: ignore[assignment]
    label_names: Strings = field(default=None)  # type: ignore[assignment]
    texts: Strings | None = None
    features: Features | None = None
    paths: Strings | None = None
    label_texts: Strings | None = None
    ids: Strings | None = None
    name: str = "data"
    arrays: np.ndarray | None = None
    open_columns: bool = False

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        labels: Any = self._no_labels() if self.labels is None else self.labels
        if not sparse.issparse(labels) and not isinstance(labels, np.ndarray):
            labels, names = self._from_lists()
            set_field(self, "label_names", names)
        labels = canonical_labels(labels, self.name)
        set_field(self, "labels", labels)
        names = (
            _numbered_names(labels.shape[1], self.name) if self.label_names is None else Strings.of(self.label_names)
        )
        check_distinct(names, self.name)
        set_field(self, "label_names", names)
        for part in ("texts", "paths", "label_texts", "ids"):
            value = getattr(self, part)
            if value is not None:
                set_field(self, part, Strings.of(value))
        if self.features is not None:
            set_field(self, "features", canonical_features(self.features))
        if self.arrays is not None:
            set_field(self, "arrays", canonical_arrays(self.arrays))
        self._check()

    def _no_labels(self) -> sparse.csr_array:
        """A label matrix without columns, for documents to predict for."""
        given = [part for part in (self.texts, self.features, self.paths, self.arrays) if part is not None]
        if not given:
            raise DataError(f"{self.name}: documents need texts, features, paths or arrays")
        count = given[0].shape[0] if hasattr(given[0], "shape") else len(given[0])  # type: ignore[arg-type]
        return sparse.csr_array((count, 0), dtype=np.float32)

    def _from_lists(self) -> tuple[sparse.csr_array, Strings]:
        """The label matrix of a list of labels per document."""
        given, names = self.labels, self.label_names
        if isinstance(given, str) or not isinstance(given, Iterable):
            got = type(given).__name__
            raise DataError(
                f"{self.name}: labels are a sparse matrix, or a list with each document's labels; got {got}"
            )
        if names is not None and not all(isinstance(name, str) for name in names):
            raise DataError(f"{self.name}: label names must be strings; are the labels given as the second argument? "
                            "Write Dataset(texts=..., labels=...)")  # fmt: skip
        return labels_from_lists(given, None if names is None else Strings.of(names))

    def _check(self) -> None:
        documents, n_labels = self.labels.shape
        for part in ("texts", "features", "paths", "arrays", "ids"):
            value = getattr(self, part)
            rows = documents if value is None else value.shape[0] if part == "features" else len(value)
            if rows != documents:
                raise DataError(f"{self.name}: {rows:,} {part} for {documents:,} rows of labels")
        if len(self.label_names) != n_labels:
            raise DataError(f"{self.name}: {len(self.label_names):,} label names for {n_labels:,} label columns")
        if self.label_texts is not None and len(self.label_texts) != n_labels:
            raise DataError(f"{self.name}: {len(self.label_texts):,} label texts for {n_labels:,} label columns")
        if documents and all(part is None for part in (self.texts, self.features, self.paths, self.arrays)):
            raise DataError(f"{self.name}: documents need texts, features, paths or arrays")

    def __len__(self) -> int:
        return self.labels.shape[0]

    def __repr__(self) -> str:
        parts = [p for p in ("texts", "features", "paths", "arrays") if getattr(self, p) is not None]
        inputs = "+".join(parts) or "nothing"
        return f"Dataset({self.name}: {len(self):,} documents with {inputs}, {self.n_labels:,} labels)"

    @property
    def n_labels(self) -> int:
        """Labels in the label space, whether or not a document here has them."""
        return self.labels.shape[1]

    def label_counts(self) -> np.ndarray:
        """Number of documents per label."""
        return counts_of(self.labels.indices, self.n_labels)

    def labels_of(self, row: int) -> list[str]:
        """The names of one document's labels, in the order of the label space."""
        index = range(len(self))[row]
        columns = self.labels.indices[self.labels.indptr[index] : self.labels.indptr[index + 1]]
        return [self.label_names[int(column)] for column in columns]

    @property
    def kind(self) -> str:
        """The type of the documents; the first of texts, features, paths and arrays if there are several."""
        return next(part for part in KINDS if getattr(self, part) is not None)

    def only(self, kind: str, with_features: bool = False) -> Dataset:
        """The documents as this type only, or with features next to it."""
        kept = {kind, "features"} if with_features else {kind}
        others = [part for part in KINDS if part not in kept and getattr(self, part) is not None]
        return replace(self, **dict.fromkeys(others)) if others else self

    def take(self, rows: Any) -> Dataset:
        """Some of the documents (a slice, an index array or a mask), with the same label space."""
        picked = {
            part: pick_rows(getattr(self, part), rows)
            for part in ("texts", "features", "paths", "arrays", "ids")
            if getattr(self, part) is not None
        }
        return replace(self, labels=pick_rows(self.labels, rows), **picked)

    def split(self, fraction: float, seed: int = 0, by: str = RANDOM) -> tuple[Dataset, Dataset]:
        """Split into two data sets: the second has `fraction` of the documents; both keep their order.

        With `by="hash"` the content of a document decides: it is in the same part whatever other documents there are,
        and so are its duplicates. The second part then has about that fraction.
        """
        chosen = self.split_mask(fraction, seed, by)
        return self.take(~chosen), self.take(chosen)

    def split_mask(self, fraction: float, seed: int = 0, by: str = RANDOM) -> np.ndarray:
        """Mask of the documents that `split` puts into the second data set."""
        if not 0 < fraction < 1:
            raise DataError(f"{self.name}: a split takes a fraction between 0 and 1, got {fraction}")
        if by not in SPLIT_BY:
            raise ConfigError(f"by: there is no split by '{by}'; {did_you_mean(by, SPLIT_BY)}")
        if by == HASH:
            chosen = hash_fractions(document_hashes(self), seed) < fraction
        else:
            chosen = np.zeros(len(self), bool)
            chosen[np.random.default_rng(seed).permutation(len(self))[: round(fraction * len(self))]] = True
        if not len(self):
            raise EmptyPartError(f"{self.name}: there are no documents")
        if chosen.all() or not chosen.any():
            raise EmptyPartError(f"{self.name}: {fraction:.3g} of {len(self):,} documents leaves one part without any")
        return chosen

    def align(self, label_names: Strings) -> Dataset:
        """The same documents in another label space: its columns first, then the labels that occur only here.

        Labels that are not in `label_names` are kept as additional columns, because a test label without training
        documents still counts as a miss.
        """
        if self.label_names is label_names or self.label_names == label_names:
            return self
        self._check_names(label_names)
        check_distinct(label_names, "align")
        columns = positions_in(self.label_names, label_names)
        new = np.flatnonzero(columns < 0)
        if len(new):
            new = new[_used(self.labels)[new]]
        columns[new] = len(label_names) + np.arange(len(new))
        names = label_names + self.label_names[new] if len(new) else label_names
        indices = self.labels.indices
        if not np.array_equal(columns, np.arange(len(columns))):  # else no copy is needed; they may be mapped
            indices = columns[indices]
        labels = sparse.csr_array((self.labels.data, indices, self.labels.indptr), shape=(len(self), len(names)))
        texts = None
        if self.label_texts is not None:
            candidates = names + self.label_texts
            own = positions_in(names, self.label_names)
            texts = candidates[np.where(own < 0, np.arange(len(names)), len(names) + own)]
        return replace(self, labels=labels, label_names=names, label_texts=texts)

    def _check_names(self, others: Strings) -> None:
        """Refuse to match column numbers of a matrix with the names of another label space."""
        own = self.label_names
        if not len(own) or not (own.column_numbers or others.column_numbers):
            return
        mine, theirs = (
            f"{len(names):,} labels {'without names' if names.column_numbers else f'({names[0]!r}, ...)'}"
            for names in (own, others)
        )
        raise DataError(
            f"{self.name}: {mine} cannot be matched with {theirs}: column numbers only identify labels among "
            "matrices with the same columns. Give both label names (Dataset(..., label_names=...))"
        )


def mark_as_read(data: Dataset) -> Dataset:
    """Mark a data set of a file: the last columns may be missing, and numbers are the names of labels."""
    object.__setattr__(data, "open_columns", True)  # `replace` would check all rows once more
    data.label_names.column_numbers = False
    return data


def _numbered_names(count: int, what: str) -> Strings:
    """Column numbers as names, for labels without names."""
    if count > MAX_UNNAMED_LABELS:
        raise DataError(
            f"{what}: {count:,} labels without names, at most {MAX_UNNAMED_LABELS:,} are read; is the shape right?"
        )
    names = Strings.numbers(count)
    names.column_numbers = True
    return names


def _used(labels: sparse.csr_array, piece: int = 1 << 20) -> np.ndarray:
    """Mask of the labels that occur; in chunks, as NumPy copies index arrays."""
    used = np.zeros(labels.shape[1], bool)
    for begin in range(0, len(labels.indices), piece):
        used[labels.indices[begin : begin + piece]] = True
    return used


def canonical_csr(given: Any, what: str) -> sparse.csr_array:
    """CSR in float32 with sorted, unique, in-range columns and no stored zeros. The input is never changed."""
    matrix: Any = given if sparse.issparse(given) else np.asarray(given)
    if is_canonical_csr(matrix):
        return matrix if isinstance(matrix, sparse.csr_array) else sparse.csr_array(matrix)
    if isinstance(matrix, np.ndarray) and (matrix.ndim != 2 or matrix.dtype.kind not in "biuf"):
        raise DataError(f"{what} must be a numeric matrix, got {matrix.dtype} of shape {matrix.shape}")
    if matrix.ndim != 2:
        raise DataError(f"{what} must have two dimensions, got the shape {matrix.shape}")
    check_compressed(matrix, what)
    csr: Any = sparse.csr_array(matrix)
    try:
        csr.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{what} is not a valid sparse matrix: {error}") from None
    if csr.dtype != np.float32:
        csr = csr.astype(np.float32)
    if not csr.has_canonical_format or (csr.data == 0).any():
        csr = csr.copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
    if not np.isfinite(csr.data).all():
        raise DataError(f"{what} contain NaN or infinity; only finite numbers are accepted")
    return csr


def canonical_labels(given: Any, what: str) -> sparse.csr_array:
    """Labels as canonical CSR; an array of -1 and 1 is refused, because every stored value is a label."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "if" and (given < 0).any():
        raise DataError(
            f"{what}: labels have negative values; give 1 for a label that a document has, 0 otherwise, or "
            "relevances above 0"
        )
    return canonical_csr(given, "labels")


def check_compressed(matrix: Any, what: str) -> None:
    """Refuse a CSR, CSC or BSR matrix whose arrays point outside each other.

    SciPy's own check subtracts neighbouring offsets, which may wrap around, and its conversions trust the result.
    """
    if getattr(matrix, "format", None) not in ("csr", "csc", "bsr"):
        return
    (rows, columns), (height, width) = matrix.shape, matrix.blocksize if matrix.format == "bsr" else (1, 1)
    major, minor = (columns, rows) if matrix.format == "csc" else (rows // height, columns // width)
    sound = (
        len(matrix.indptr) == major + 1
        and len(matrix.indices) == len(matrix.data)
        and are_offsets(matrix.indptr, len(matrix.indices))
        and in_range(matrix.indices, minor)
    )
    if not sound:
        raise DataError(f"{what} is not a valid sparse matrix: offsets or indices point outside it")


def is_canonical_csr(matrix: Any) -> bool:
    """Whether `canonical_csr` would return it unchanged, for either SciPy type; one pass, no copies."""
    if not isinstance(matrix, CSR) or matrix.ndim != 2 or matrix.dtype != np.float32:
        return False
    from labelwise.kernels.fields import is_canonical

    if mapping_of(matrix.indices) is None:
        return is_canonical(matrix.indptr, matrix.indices, matrix.data, *matrix.shape)
    indptr = matrix.indptr
    if len(indptr) != matrix.shape[0] + 1 or not are_offsets(indptr, len(matrix.indices)):
        return False
    return all(_rows_are_canonical(matrix, *rows) for rows in row_pieces(indptr))


def _rows_are_canonical(matrix: Any, first: int, last: int) -> bool:
    """`is_canonical` for some rows of a mapped matrix, whose pages are released afterwards."""
    from labelwise.kernels.fields import is_canonical

    begin, end = matrix.indptr[first], matrix.indptr[last]
    indices, data = matrix.indices[begin:end], matrix.data[begin:end]
    sound = is_canonical(matrix.indptr[first : last + 1] - begin, indices, data, last - first, matrix.shape[1])
    release_pages(indices)
    release_pages(data)
    return sound


def row_pieces(indptr: np.ndarray, size: int = 1 << 22) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `size` stored values, at least one row each."""
    first = 0
    while first < len(indptr) - 1:
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + size, "right")) - 1)
        yield first, last
        first = last


def canonical_features(features: Any) -> Features:
    """Features as canonical CSR, a dense float32 matrix (float16 stays float16), or both side by side."""
    if isinstance(features, Blocks):
        parts: list[Any] = [
            None if block is None else canonical_features(block) for block in (features.sparse, features.dense)
        ]
        return Blocks(*parts)
    if sparse.issparse(features):
        return canonical_csr(features, "features")
    dense = np.asarray(features)
    if dense.ndim != 2 or dense.dtype.kind not in "biuf":
        raise DataError(f"features must be a numeric matrix, got {dense.dtype} of shape {dense.shape}")
    dense = np.ascontiguousarray(dense, np.float16 if dense.dtype == np.float16 else np.float32)
    if not all(np.isfinite(piece).all() for piece in in_pieces(dense.reshape(-1))):
        raise DataError("features contain NaN or infinity; only finite numbers are accepted")
    return dense


def canonical_arrays(arrays: Any) -> np.ndarray:
    """Finite numbers of any type, the first of at least two axes being the documents."""
    array = np.asarray(arrays)
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"arrays must be numeric with documents as the first axis, got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "f" and not all(np.isfinite(piece).all() for piece in in_pieces(array.reshape(-1))):
        raise DataError("arrays contain NaN or infinity; only finite numbers are accepted")
    return array


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents to predict for: like a `Dataset` without labels, but faster to build."""

    texts: Strings | None = None
    features: Features | None = None
    paths: Strings | None = None
    arrays: np.ndarray | None = None

    def _parts(self) -> tuple[Any, ...]:
        return self.texts, self.features, self.paths, self.arrays

    def __len__(self) -> int:
        if self.features is not None:
            return self.features.shape[0]
        return next((len(part) for part in self._parts() if part is not None), 0)

    def take(self, rows: Any) -> Documents:
        """The documents of some rows, as `Dataset.take`."""
        return Documents(*(None if part is None else pick_rows(part, rows) for part in self._parts()))


def check_labelled(labels: Any, name: str, without: str = "there is nothing to compare predictions with") -> None:
    """Refuse documents of which none has a label: nothing could be learned from them, and all metrics would be 0."""
    if labels.shape[0] and labels.nnz == 0:
        raise DataError(
            f"{name}: none of the {labels.shape[0]:,} documents has a label, so {without}; "
            "is this a file without labels, or are they in another column?"
        )


def check_known(data: Dataset, n_known: int) -> None:
    """Refuse documents of which no label is among the first `n_known`, those of the model: all metrics would be 0."""
    labels = data.labels
    if labels.nnz and labels.indices.min() >= n_known:
        names = data.label_names
        raise DataError(
            f"{data.name}: none of its {len(set(labels.indices.tolist())):,} labels is known to the model, so every "
            f"prediction would count as wrong; a label is called '{names[int(labels.indices[0])]}', one of the model's "
            f"'{names[0]}': are these documents of another vocabulary, or ids where the model has names?"
        )
