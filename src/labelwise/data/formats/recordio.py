"""`recordio`: MXNet's `train.rec` with `train.idx`, as data sets of faces are distributed: one class per image.

Images stay in the file: a document's path is `train.rec#OFFSET`. Classes are numbers; the files have no names.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.options import ReadOptions, split_files
from labelwise.data.recordio import MAGIC, image_records, member_path
from labelwise.data.stream import first_bytes
from labelwise.data.tables import no_labels, refuse_empty
from labelwise.strings import Strings

NAME, EXTENSION = "recordio", ".rec"


def recognises(path: Path) -> bool:
    return path.suffix == EXTENSION and first_bytes(path, 4) == MAGIC.to_bytes(4, "little")


def read(path: Path, options: ReadOptions) -> Dataset:
    if path.is_file():
        refuse_empty(path.stat().st_size, path)
    records = image_records(path)
    count = len(records.offsets)
    paths = Strings.of(member_path(path, offset) for offset in records.offsets.tolist())
    ids = Strings.of(map(str, records.keys.tolist()))
    if not options.labels:
        return Dataset(no_labels(count), paths=paths, ids=ids, name=str(path))
    classes, columns = np.unique(records.labels, return_inverse=True)
    labels = sparse.csr_array((np.ones(count, np.float32), columns, np.arange(count + 1)), (count, len(classes)))
    return Dataset(labels, Strings.of(map(str, classes.tolist())), paths=paths, ids=ids, name=str(path))


def parts(folder: Path) -> dict[str, Path]:
    return split_files(folder, recognises, (EXTENSION,))


def siblings(path: Path) -> list[Path]:
    return [path.with_suffix(".idx")]


FORMAT = Format(
    name=NAME,
    about="MXNet's train.rec with train.idx: images with one class each, as data sets of faces are distributed",
    recognises=recognises,
    read=read,
    write=None,
    parts=parts,
    extension=EXTENSION,
    siblings=siblings,
)
