"""`pecos`: a folder with `X.trn.txt` (texts), `X.trn.npz` or `.npy` (features), `Y.trn.npz` (labels).

Labels are columns without names; `output-items.txt` contains their texts. Features may be in a sub-folder, as
in `tfidf-attnxml/X.trn.npz`. Any file of a part can be given as its path. Features in a file of any other name are
read too: without labels, or with those of `Y_new.npz` if the features are in `X_new.npz`.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from scipy import sparse

from labelwise.data.dataset import Dataset, Features, canonical_csr
from labelwise.data.formats.base import Format
from labelwise.data.formats.lines import read_lines, write_lines
from labelwise.data.options import (
    ReadOptions,
    canonical_split,
    files_in,
    plain_name,
    sort_parts,
)
from labelwise.data.stream import write_stream
from labelwise.data.tables import no_labels, refuse_line_ends, refuse_mark
from labelwise.errors import DataError
from labelwise.io.tensors import are_offsets, in_range
from labelwise.strings import Strings

# --- npz ---
# NumPy's .npy and SciPy's .npz files from untrusted sources.
#
# NumPy's readers run without pickle, and only after the size in an array's header has been compared with the bytes that
# are there: neither a damaged nor a hostile file can allocate more memory than its own size.

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError)


def load_npz_matrix(path: Path) -> sparse.csr_array:
    """Read a sparse matrix written by `scipy.sparse.save_npz`, as CSR in float32."""
    return canonical_csr(load_npz_sparse(path).tocsr(), f"{path}: the values")


def load_npz_sparse(path: Path) -> Any:
    """Read a matrix written by `scipy.sparse.save_npz` as it is stored: CSR or CSC of any type, with its duplicates."""
    try:
        with zipfile.ZipFile(path) as archive:
            layout = (_member(archive, "format", path).reshape(-1)[:1].tolist() or [""])[0]
            layout = layout.decode("latin-1") if isinstance(layout, bytes) else layout
            if layout not in ("csr", "csc"):
                raise DataError(f"a sparse matrix in the format csr or csc is needed, this is {layout!r}", path)
            data, indices, indptr, shape = (
                _member(archive, name, path) for name in ("data", "indices", "indptr", "shape")
            )
    except (*DAMAGE, RuntimeError, MemoryError, OverflowError) as error:
        raise DataError(f"not a sparse matrix written by scipy.sparse.save_npz: {error or 'damaged'}", path) from None
    sound = (
        all(array.ndim == 1 and array.dtype.kind in "iu" for array in (indices, indptr, shape))
        and data.ndim == 1
        and data.dtype.kind in "biuf"
        and len(shape) == 2
        and int(shape.min()) >= 0
        and int(shape.max()) < 1 << 31
    )
    if not sound:
        raise DataError("the arrays of the sparse matrix have wrong types or shapes", path)
    rows, columns = (int(n) for n in shape)
    matrix_type = sparse.csr_array if layout == "csr" else sparse.csc_array
    major, minor = (rows, columns) if layout == "csr" else (columns, rows)
    sound = (
        len(indptr) == major + 1
        and len(indices) == len(data)
        and are_offsets(indptr, len(indices))
        and in_range(indices, minor)
    )
    if not sound:
        raise DataError("the sparse matrix is damaged: offsets or indices point outside it", path)
    try:
        indices, indptr = (array.astype(np.int64, copy=False) for array in (indices, indptr))
        matrix = matrix_type((data, indices, indptr), shape=(rows, columns))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"the sparse matrix is damaged: {error}", path) from None
    return matrix


def load_npy_matrix(path: Path) -> np.ndarray:
    """Map a dense matrix written by `numpy.save`."""
    try:
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size, path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"not an array written by numpy.save: {error}", path) from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"a numeric matrix is needed, got {array.dtype} of shape {array.shape}", path)
    return array


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """Read one array of an archive."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise DataError(f"the array '{name}' of a sparse matrix is missing", path) from None
    with archive.open(info) as file:
        _check_header(file, info.file_size, path)
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def _check_header(file: IO[bytes], size: int, path: Path) -> None:
    """Refuse an array whose header does not describe plain numbers of the size in the file."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(
            f"NumPy's format version {version} is not supported; write the array again with version 1.0 or 2.0", path
        )
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except Exception as error:  # NumPy parses it as Python, which fails in many ways
        raise DataError(f"the header of an array cannot be read: {error}", path) from None
    if dtype.kind not in "biufSU" or min(shape, default=0) < 0:
        raise DataError(
            f"only arrays of plain numbers are supported, this one has type {dtype} and shape {shape}", path
        )
    needed, present = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != present:
        raise DataError(f"the header says {needed:,} bytes, but there are {present:,}", path)


NAME = "pecos"
LABEL_TEXTS = "output-items.txt"
ARRAYS = (".npz", ".npy")
_PART = re.compile(r"[XY]\.(?P<split>[A-Za-z]+)\.(?:txt|npz|npy)")
_SHORT = {"train": "trn", "valid": "val", "test": "tst"}


@dataclass(frozen=True)
class _Files:
    """The files of one part; None for missing ones."""

    labels: Path | None
    texts: Path | None
    features: Path | None


def recognises(path: Path) -> bool:
    files = _files_of(path)
    return files is not None and path.is_file() and files.labels is not None


def recognises_unlabelled(path: Path) -> bool:
    named = _PART.fullmatch(path.name) is not None and path.name.startswith("X.")
    return path.is_file() and (named or path.suffix in ARRAYS)


def parts(folder: Path) -> dict[str, Path]:
    by_split: dict[str, Path] = {}
    for path in files_in(folder):
        match = _PART.fullmatch(path.name)
        if match and path.name.startswith("Y.") and path.suffix == ".npz":
            by_split.setdefault(canonical_split(match["split"]), path)
    return sort_parts(by_split)


def part_name(split: str) -> str:
    return f"Y.{_SHORT.get(split, split)}.npz"


def siblings(path: Path) -> list[Path]:
    """All files that a part may have."""
    match = _PART.fullmatch(plain_name(path))
    if match is None:
        return []
    names = ("X.{}.txt", "X.{}.npz", "X.{}.npy", "Y.{}.npz")
    return [path.with_name(name.format(match["split"])) for name in names]


def _files_of(path: Path) -> _Files | None:
    """The files that are read for one of them; None if it is neither named like a part nor an array."""
    match = _PART.fullmatch(plain_name(path))
    if match is not None:
        return _files(path.parent, match["split"])
    if path.suffix not in ARRAYS:
        return None
    labels = path.with_name("Y" + path.stem[1:] + ".npz")
    return _Files(labels if path.name.startswith("X") and labels.is_file() else None, None, path)


def _files(folder: Path, split: str) -> _Files:
    here = {plain_name(path): path for path in reversed(files_in(folder))}
    below: dict[str, Path] = {}
    if f"X.{split}.npz" not in here and f"X.{split}.npy" not in here:
        for path in sorted(folder.glob(f"tfidf*/X.{split}.np[yz]")):
            below.setdefault(path.name, path)
    features = [files.get(f"X.{split}.{suffix}") for files in (here, below) for suffix in ("npz", "npy")]
    return _Files(
        labels=here.get(f"Y.{split}.npz"),
        texts=here.get(f"X.{split}.txt"),
        features=next((path for path in features if path is not None), None),
    )


def read(path: Path, options: ReadOptions) -> Dataset:
    files, match = _files_of(path), _PART.fullmatch(plain_name(path))
    if files is None:
        raise DataError("a file of the format pecos is named like X.trn.txt, X.trn.npz or Y.trn.npz", path)
    if files.labels is None and options.labels:
        if match is not None:
            raise DataError(f"the labels are missing: there is no Y.{match['split']}.npz beside it", path)
        raise DataError(
            "the labels are missing: features with labels are named like X.trn.txt or X_new.npz, with the labels in "
            "Y.trn.npz or Y_new.npz beside them. Without labels: --set labels=false",
            path,
        )
    if match is not None and files.texts is None and files.features is None:
        raise DataError(f"the documents are missing: there is no X.{match['split']}.txt, .npz or .npy", path)
    texts = None if files.texts is None else read_lines(files.texts, options)
    features = None if files.features is None else _load_features(files.features)
    if files.labels is None or not options.labels:
        return _unlabelled(texts, features, files, path)
    labels = load_npz_matrix(files.labels)
    expected = len(labels.indptr) - 1
    for rows, where in ((_rows(texts), files.texts), (_rows(features), files.features)):
        if rows not in (None, expected):
            raise DataError(f"{rows:,} documents, but {expected:,} rows of labels in {files.labels}", where)
    return Dataset(labels, texts=texts, features=features, name=str(path))


def _unlabelled(texts: Strings | None, features: Features | None, files: _Files, path: Path) -> Dataset:
    counts = [rows for rows in (_rows(texts), _rows(features)) if rows is not None]
    if len(set(counts)) > 1:
        raise DataError(f"{counts[0]:,} texts, but {counts[1]:,} rows of features in {files.features}", files.texts)
    return Dataset(no_labels(counts[0]), texts=texts, features=features, name=str(path))


def _rows(part: Strings | Features | None) -> int | None:
    if part is None:
        return None
    return len(part) if isinstance(part, Strings) else part.shape[0]


def _load_features(path: Path) -> Features:
    return load_npz_matrix(path) if path.suffix == ".npz" else load_npy_matrix(path)


def write(dataset: Dataset, path: Path) -> None:
    match = _PART.fullmatch(path.name)
    if match is None:
        raise DataError("the format pecos writes to files named like Y.trn.npz; give such a name", path)
    folder, split = path.parent, match["split"]
    if dataset.texts is not None:
        refuse_line_ends(dataset.texts, "text", path, NAME)
        if len(dataset):
            refuse_mark(dataset.texts[0], path, NAME)
        write_lines(dataset.texts, folder / f"X.{split}.txt")
    if dataset.label_texts is not None:
        refuse_line_ends(dataset.label_texts, "label text", path, NAME)
        if dataset.n_labels:
            refuse_mark(dataset.label_texts[0], path, NAME)
        write_lines(dataset.label_texts, folder / LABEL_TEXTS)
    if isinstance(dataset.features, np.ndarray):
        with write_stream(folder / f"X.{split}.npy") as file:
            np.save(file, dataset.features, allow_pickle=False)
    elif isinstance(dataset.features, sparse.csr_array):
        _save_matrix(dataset.features, folder / f"X.{split}.npz")
    _save_matrix(dataset.labels, folder / f"Y.{split}.npz")


def _save_matrix(matrix: sparse.csr_array, path: Path) -> None:
    """Save as csr_matrix, which every SciPy version can load."""
    with write_stream(path) as file:
        sparse.save_npz(file, sparse.csr_matrix(matrix))


FORMAT = Format(
    name=NAME,
    about="PECOS's folder: X.trn.txt texts, X.trn.npz features, Y.trn.npz labels, output-items.txt",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=".npz",
    other_extensions=(".npy",),
    part_name=part_name,
    siblings=siblings,
    recognises_unlabelled=recognises_unlabelled,
)
