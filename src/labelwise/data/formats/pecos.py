"""`pecos`: a folder with `X.trn.txt` (texts), `X.trn.npz` or `.npy` (features), `Y.trn.npz` (labels).

Labels are columns without names; `output-items.txt` contains their texts. Features may be in a sub-folder, as
in `tfidf-attnxml/X.trn.npz`. Any file of a part can be given as its path. Features in a file of any other name are
read too: without labels, or with those of `Y_new.npz` if the features are in `X_new.npz`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.accumulators import no_labels
from labelwise.data.dataset import Dataset, Features
from labelwise.data.files import write_stream
from labelwise.data.formats.base import Format
from labelwise.data.formats.checks import refuse_line_ends, refuse_mark
from labelwise.data.formats.line_files import read_lines, write_lines
from labelwise.data.npz import load_npy_matrix, load_npz_matrix
from labelwise.data.options import ReadOptions
from labelwise.data.splits import canonical_split, files_in, plain_name, sort_parts
from labelwise.errors import DataError
from labelwise.strings import Strings

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
