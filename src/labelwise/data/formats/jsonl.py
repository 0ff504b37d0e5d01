"""`jsonl`: one JSON object per line: text, labels, optionally id, path, features. Stores any text and any label.

Labels are a list, one string, or a mapping from label to relevance; features a mapping from column to value,
or a list for a dense row. Other fields are ignored. The first document determines which of text, id, path
and features all documents must have.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset, Features
from labelwise.data.formats.base import Format
from labelwise.data.options import ReadOptions, how_to_set, split_files, stem_and_extension
from labelwise.data.stream import first_bytes, text_blocks, write_stream
from labelwise.data.tables import (
    NO_DOCUMENTS,
    LabelAccumulator,
    TextAccumulator,
    missing_columns,
    near_miss,
)
from labelwise.errors import DataError

NAME = "jsonl"
FEATURES = "features"
MAX_COLUMNS = 1 << 31
ONE_PER_LINE = "one JSON object {...} per line is needed"
_LARGEST = float(np.finfo(np.float32).max)
_EXTENSIONS = (".jsonl", ".ndjson")


def recognises(path: Path) -> bool:
    if not path.is_file():
        return False
    if stem_and_extension(path)[1] in _EXTENSIONS:
        return True
    line, newline, _ = first_bytes(path).removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    try:
        return line.startswith(b"{") and (not newline or isinstance(json.loads(line), dict))
    except (ValueError, RecursionError):
        return False


def parts(folder: Path) -> dict[str, Path]:
    return split_files(folder, recognises, _EXTENSIONS)


# --- reading ----------------------------------------------------------------------------------------------


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    documents: _DocumentAccumulator | None = None
    for block in text_blocks(path, options.encoding, options.on_bad_bytes):
        for number, line in enumerate(block.data.tobytes().decode().split("\n"), block.first_line):
            if not line or line.isspace():
                continue
            record = _Record(_parse_line(line, path, number), path, number)
            if documents is None:
                documents = _DocumentAccumulator(record, options, folder)
            documents.add(record)
        if documents is not None:
            documents.flush()
    if documents is None:
        raise DataError(NO_DOCUMENTS, path)
    return documents.dataset()


def _parse_line(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON: {error}; {ONE_PER_LINE}", path, number) from None
    if not isinstance(record, dict):
        raise DataError(f"{ONE_PER_LINE}, got {_shown(record)}", path, number)
    return record


class _Record:
    """One line's object; a field of a wrong type is an error that names the line and the field."""

    def __init__(self, fields: dict[str, Any], path: Path, line: int) -> None:
        self.fields, self.path, self.line = fields, path, line

    def error(self, field: str, what: str) -> DataError:
        return DataError(f"the field '{field}' {what}", self.path, self.line)

    def text(self, field: str, numbers: bool = False) -> bytes | None:
        """A string in UTF-8, None if there is none; with `numbers` an integer is accepted too."""
        value = self.fields.get(field)
        if value is None:
            return None
        if numbers and type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            raise self.error(field, f"must be a string, got {_shown(value)}")
        return self.encoded(field, value)

    def encoded(self, field: str, value: str) -> bytes:
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise self.error(field, f"cannot be written as UTF-8: {error.reason}") from None

    def finite_number(self, field: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise self.error(field, f"needs finite numbers, got {_shown(value)}")
        return float(value)

    def joined_text(self, fields: list[str]) -> bytes | None:
        if len(fields) == 1:
            return self.text(fields[0])
        texts = [text for text in map(self.text, fields) if text is not None]
        return b" ".join(texts) if texts else None

    def labels(self, field: str, separator: str | None) -> tuple[Iterable[bytes], Iterable[float] | None]:
        """The labels without duplicates, and their relevances if the record has them."""
        value = self.fields.get(field)
        if type(value) is list:
            try:
                return dict.fromkeys([name.encode() for name in value]), None
            except (AttributeError, UnicodeEncodeError):
                pass  # not all are valid strings: converted or reported below
        if isinstance(value, dict):
            names = [self.encoded(field, name) for name in value]
            return names, [self.finite_number(field, relevance) for relevance in value.values()]
        if isinstance(value, str) and separator:
            value = [name for piece in value.split(separator) if (name := piece.strip(" \t"))]
        if value is None or value == "":
            value = []
        names = [self._label(field, name) for name in (value if isinstance(value, list) else [value])]
        return dict.fromkeys(names), None

    def _label(self, field: str, value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(field, f"contains {_shown(value)}; a label is a string or a number")
        return self.encoded(field, str(value))


class _DocumentAccumulator:
    """Collects records; texts and labels are added to accumulators after every block."""

    def __init__(self, first: _Record, options: ReadOptions, folder: Path | None) -> None:
        self.options = options
        self.path = first.path
        self.text_fields = options.text_column.split("+")
        self.cells: dict[str, list[bytes]] = {part: [] for part in self._cells(first)}
        self.accumulators = {part: TextAccumulator(folder=folder) for part in self.cells}
        given = first.fields.get(FEATURES)
        self.features = None if given is None else _DenseRows() if isinstance(given, list) else _SparseRows()
        if self.features is None and not self.cells.keys() & {"texts", "paths"}:
            raise self._missing_text(first)
        self.first = first
        self.labels = LabelAccumulator()
        self.names: list[bytes] = []
        self.counts: list[int] = []
        self.relevances: list[float] | None = None
        self.labelled = options.label_column == "" or not options.labels

    def _missing_text(self, record: _Record) -> DataError:
        field, label = self.options.text_column, self.options.label_column
        needed = "a document needs a text, a path or features; "
        if field in record.fields:
            return DataError(f"{needed}the field '{field}' is null", record.path, record.line)
        missing = [("text_column", field)]
        if label and self.options.labels and label not in record.fields:
            missing.append(("label_column", label))
        return missing_columns(missing, self.options, record.fields, record.path, record.line, "field", needed)

    def _cells(self, record: _Record) -> dict[str, bytes]:
        options = self.options
        cells: dict[str, bytes] = {}
        if (text := record.joined_text(self.text_fields)) is not None:
            cells["texts"] = text
        if (path := record.text(options.path_column)) is not None:
            cells["paths"] = path
        if (name := record.text(options.id_column, numbers=True)) is not None:
            cells["ids"] = name
        return cells

    def add(self, record: _Record) -> None:
        cells = self._cells(record)
        given = record.fields.get(FEATURES)
        if cells.keys() != self.cells.keys() or (given is None) != (self.features is None):
            raise DataError(self._difference_from_first(record, cells), record.path, record.line)
        for part, cell in cells.items():
            self.cells[part].append(cell)
        if self.features is not None:
            self.features.add(given, record)
        column = self.options.label_column
        self.labelled = self.labelled or column in record.fields
        names, relevances = record.labels(column, self.options.label_separator) if self.options.labels else ((), None)
        before = len(self.names)
        self.names += names
        self.counts.append(len(self.names) - before)
        if relevances is not None and self.relevances is None:
            self.relevances = [1.0] * before
        if self.relevances is not None:
            self.relevances += [1.0] * self.counts[-1] if relevances is None else relevances

    def _difference_from_first(self, record: _Record, cells: dict[str, bytes]) -> str:
        """Message that names the field only this document or only the first one has."""
        options = self.options
        fields = {"texts": options.text_column, "paths": options.path_column, "ids": options.id_column}
        here = {fields[part] for part in cells} | ({FEATURES} if record.fields.get(FEATURES) is not None else set())
        there = {fields[part] for part in self.cells} | ({FEATURES} if self.features is not None else set())
        first = f"the first document (line {self.first.line})"
        for field in sorted(there - here):
            lack = f"the field '{field}' is null" if field in record.fields else f"there is no field '{field}'"
            return f"{lack}, but {first} has one; all need the same fields"
        return f"there is a field '{sorted(here - there)[0]}', which {first} does not have; all need the same fields"

    def flush(self) -> None:
        for part, cells in self.cells.items():
            self.accumulators[part].add_encoded(cells)
            cells.clear()
        self.labels.add_encoded(self.names, self.counts, self.relevances)
        self.names, self.counts, self.relevances = [], [], None

    def dataset(self) -> Dataset:
        if not self.labelled:
            raise DataError(
                f"no document has the field '{self.options.label_column}'; the first one has "
                f"{_listed(self.first.fields)}; {near_miss(self.options.label_column, self.first.fields)}"
                f"{how_to_set('label_column')}, to '' if there are no labels",
                self.path,
            )
        matrix, names = self.labels.matrix()
        texts = {part: accumulator.columns()[0] for part, accumulator in self.accumulators.items()}
        features = None if self.features is None else self.features.matrix(len(matrix.indptr) - 1)
        return Dataset(
            matrix,
            names,
            texts.get("texts"),
            features,
            texts.get("paths"),
            ids=texts.get("ids"),
            name=str(self.path),
        )


class _SparseRows:
    def __init__(self) -> None:
        self.columns, self.values, self.first = array("q"), array("f"), array("q", [0])

    def add(self, given: Any, record: _Record) -> None:
        if not isinstance(given, dict):
            raise record.error(FEATURES, f"must be a mapping from column to value, got {_shown(given)}")
        for key, value in given.items():
            if not (key.isascii() and key.isdigit()) or len(key) > 10 or int(key) >= MAX_COLUMNS:
                raise record.error(FEATURES, f"has the column {_shown(key)}; columns are numbers from 0 to 2^31 - 1")
            self.columns.append(int(key))
            self.values.append(record.finite_number(FEATURES, value))
        self.first.append(len(self.columns))

    def matrix(self, rows: int) -> Features:
        columns = np.array(self.columns, np.int64)
        width = int(columns.max()) + 1 if len(columns) else 0
        return sparse.csr_array((np.array(self.values, np.float32), columns, np.array(self.first)), (rows, width))


class _DenseRows:
    def __init__(self) -> None:
        self.values, self.width = array("f"), -1

    def add(self, given: Any, record: _Record) -> None:
        if not isinstance(given, list):
            raise record.error(FEATURES, f"must be a list as in the first document, got {_shown(given)}")
        if self.width not in (-1, len(given)):
            raise record.error(FEATURES, f"has {len(given):,} values, but {self.width:,} in the first document")
        self.width = len(given)
        self.values.extend([record.finite_number(FEATURES, value) for value in given])

    def matrix(self, rows: int) -> Features:
        return np.array(self.values, np.float32).reshape(rows, self.width)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


# --- writing ----------------------------------------------------------------------------------------------


def write(dataset: Dataset, path: Path) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    with write_stream(path) as file:
        for record in _records(dataset):
            file.write(f"{encode(record)}\n".encode())


def _records(dataset: Dataset) -> Iterator[dict[str, Any]]:
    names, features = list(dataset.label_names), dataset.features
    first, columns, values = (
        part.tolist() for part in (dataset.labels.indptr, dataset.labels.indices, dataset.labels.data)
    )
    rated = bool((dataset.labels.data != 1).any())
    parts = {"id": dataset.ids, "text": dataset.texts, "path": dataset.paths}
    texts = {field: iter(strings) for field, strings in parts.items() if strings is not None}
    for row in range(len(dataset)):
        record: dict[str, Any] = {field: next(text) for field, text in texts.items()}
        here = slice(first[row], first[row + 1])
        labels = [names[column] for column in columns[here]]
        record["labels"] = dict(zip(labels, values[here], strict=True)) if rated else labels
        if isinstance(features, np.ndarray):
            record[FEATURES] = features[row].tolist()
        elif isinstance(features, sparse.csr_array):
            record[FEATURES] = _sparse_row(features, row)
        yield record


def _sparse_row(features: sparse.csr_array, row: int) -> dict[str, float]:
    here = slice(features.indptr[row], features.indptr[row + 1])
    cells = dict(zip(map(str, features.indices[here].tolist()), features.data[here].tolist(), strict=True))
    _, width = features.shape  # type: ignore[misc]
    if row == 0 and width:
        cells.setdefault(str(width - 1), 0.0)  # so that the number of columns is kept even if the last is not used
    return cells


FORMAT = Format(
    name=NAME,
    about="one JSON object per line: text, labels (list or label: relevance), id, path, features",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=".jsonl",
    other_extensions=(".ndjson", ".json"),
    read_mapped=read,
)
