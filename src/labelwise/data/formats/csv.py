"""`csv`: a table with a header line; one column contains the texts, one the labels separated by `;`.

Fields in double quotes may contain delimiters and line ends. The delimiter (comma, semicolon or tab) is detected from
the header, unless it is given. Excel workbooks (.xlsx) are read in the same way, see `workbook`.
"""

from __future__ import annotations

import csv
import logging
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.lines import label_lines
from labelwise.data.options import (
    LABEL_NAMES,
    ReadOptions,
    how_to_set,
    split_files,
    stem_and_extension,
)
from labelwise.data.stream import first_bytes, text_blocks, write_stream
from labelwise.data.tables import (
    NO_DOCUMENTS,
    LabelAccumulator,
    TextAccumulator,
    concatenated,
    missing_columns,
    refuse_label_names,
    used_label_names,
)
from labelwise.errors import ConfigError, DataError, import_required

# --- workbook ---
# Rows of Excel workbooks (.xlsx), which the format `csv` reads like those of a CSV file.
#
# The package openpyxl parses them, row by row; formulas are not computed, their last values are read. Nothing in a
# workbook is executed. Sizes are checked before anything is unpacked.

log = logging.getLogger(__name__)

EXTENSION = ".xlsx"
OTHER_SPREADSHEETS = (".xls", ".xlsb", ".ods", ".numbers")
MAX_UNPACKED = 1 << 31
"""Bytes of a workbook after unpacking: a small archive may contain gigabytes."""
TEXT_OPTIONS = ("encoding", "on_bad_bytes", "delimiter")
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, SyntaxError, KeyError, ValueError, TypeError, AttributeError,
    IndexError, RuntimeError, NotImplementedError,
)  # fmt: skip
"""What openpyxl and the standard library raise for damaged workbooks; errors of XML are SyntaxErrors."""


def is_workbook(path: Path) -> bool:
    """Whether a file is an .xlsx workbook by its name."""
    return path.suffix.lower() == EXTENSION


def refuse_spreadsheet(path: Path) -> None:
    """Refuse a spreadsheet of another type, with what to do."""
    extension = stem_and_extension(path)[1]
    if extension in OTHER_SPREADSHEETS:
        raise DataError(f"spreadsheets of the type {extension} are not read; save it as CSV (UTF-8) or .xlsx", path)


def workbook_rows(path: Path, options: ReadOptions) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, with their numbers; the header comes first, and no row is shorter than it."""
    unused = [option for option in TEXT_OPTIONS if option in options.chosen]
    if unused:
        raise ConfigError(f"{path}: {unused[0]} is for text files and has no effect for a workbook; leave it out")
    import_required(f"reading {path.name}", "xlsx", "openpyxl")
    width = None
    for number, row in _rows(path):
        cells = [_text(cell) for cell in row]
        while cells and not cells[-1] and len(cells) != width:
            cells.pop()  # empty cells after the last column
        if any(cells):
            width = width or len(cells)
            yield number, cells + [""] * (width - len(cells))


def _rows(path: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
    from openpyxl import load_workbook

    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_UNPACKED:
            raise DataError(f"the workbook unpacks to {unpacked:,} bytes, more than {MAX_UNPACKED:,}; use CSV", path)
        book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
        try:
            sheet = book.worksheets[0]
            if len(book.worksheets) > 1:
                log.warning("%s: %s sheets; the first is read, '%s'", path, len(book.worksheets), sheet.title)
            sheet.reset_dimensions()  # some programs write wrong ones
            yield from enumerate(sheet.iter_rows(values_only=True), 1)
        finally:
            book.close()
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(f"the workbook cannot be read: {error or type(error).__name__}; save it as CSV", path) from None


def _text(cell: Any) -> str:
    """The text of a cell; a whole number without decimals, a date as 2024-12-31."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    if isinstance(cell, datetime | date | time | timedelta):
        return cell.isoformat() if not isinstance(cell, timedelta) else str(cell)
    return str(cell).encode("utf-8", "replace").decode()


NAME = "csv"
SEPARATOR = ";"
DELIMITERS = ",;\t"
MAX_FIELD = 1 << 26
FLUSH_ROWS = 1 << 14


def recognises(path: Path) -> bool:
    stem, extension = stem_and_extension(path)
    if not path.is_file() or stem.endswith(LABEL_NAMES):
        return False
    if extension == ".csv" or is_workbook(path):
        return True
    line = first_bytes(path).removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].decode("latin-1").rstrip("\r")
    tables = [set(_cells(line, delimiter)) for delimiter in DELIMITERS]
    return any({document, "labels"} <= table for table in tables for document in ("text", "path"))


def parts(folder: Path) -> dict[str, Path]:
    return split_files(folder, recognises, (".csv", ".tsv", EXTENSION))


# --- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """The index of each column that is read."""

    count: int
    texts: list[int]
    labels: int | None
    paths: int | None
    ids: int | None


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    rows = table_rows(path, options)[1]
    first = next(rows, None)
    if first is None:
        raise DataError(f"{NO_DOCUMENTS}; a header line with the names of the columns is needed", path)
    columns = _columns(first[1], path, options)
    chosen = {"texts": columns.texts, "paths": columns.paths, "ids": columns.ids}
    accumulators = {
        part: TextAccumulator(folder=folder) for part, indices in chosen.items() if indices not in (None, [])
    }
    cells: dict[str, list[bytes]] = {part: [] for part in (*accumulators, "labels")}
    labels = LabelAccumulator()
    separator = (options.label_separator or SEPARATOR).encode()

    def flush() -> None:
        for part, accumulator in accumulators.items():
            accumulator.add_encoded(cells[part])
        labels.add_fields(*concatenated(cells["labels"]), separator)
        for pending in cells.values():
            pending.clear()

    for line, row in rows:
        if len(row) != columns.count:
            what = f"the row has {len(row):,} fields, but the header {columns.count:,}"
            raise DataError(f"{what}; fields with delimiters or line ends need double quotes", path, line)
        for part in accumulators:
            indices = chosen[part]
            text = row[indices] if isinstance(indices, int) else " ".join(row[index] for index in indices or ())
            cells[part].append(text.encode())
        cells["labels"].append(b"" if columns.labels is None else row[columns.labels].encode())
        if len(cells["labels"]) == FLUSH_ROWS:
            flush()
    flush()
    matrix, names = labels.matrix()
    texts = {part: accumulator.columns()[0] for part, accumulator in accumulators.items()}
    return Dataset(matrix, names, texts.get("texts"), paths=texts.get("paths"), ids=texts.get("ids"), name=str(path))


def table_rows(path: Path, options: ReadOptions) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """The delimiter, and the rows that are not empty with the line each begins at; the header comes first."""
    if is_workbook(path):
        return DELIMITERS[0], workbook_rows(path, options)
    if csv.field_size_limit() < MAX_FIELD:
        csv.field_size_limit(MAX_FIELD)
    lines = _lines(path, options)
    skipped = 0
    header = next(lines, None)
    while header is not None and not header.strip("\r\n"):
        skipped, header = skipped + 1, next(lines, None)
    if header is None:
        return DELIMITERS[0], iter(())
    delimiter = _delimiter(header, options)
    return delimiter, _parsed(_chain(header, lines), delimiter, skipped, path)


def _parsed(lines: Iterator[str], delimiter: str, skipped: int, path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    begin = skipped + 1
    try:
        for row in reader:
            if row:
                yield begin, row
            begin = skipped + reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"not valid CSV in the row that begins here: {error}", path, begin) from None


def _lines(path: Path, options: ReadOptions) -> Iterator[str]:
    for block in text_blocks(path, options.encoding, options.on_bad_bytes):
        for line in block.data.tobytes()[:-1].decode().split("\n"):
            yield line + "\n"


def _chain(first: str, others: Iterator[str]) -> Iterator[str]:
    yield first
    yield from others


def _delimiter(header: str, options: ReadOptions) -> str:
    given = options.delimiter
    if given is not None:
        if len(given) != 1 or given in '"\r\n\0':
            raise ConfigError(f"delimiter: one character other than a quote or line end is needed, got {given!r}")
        return given
    expected = {*options.text_column.split("+"), options.label_column, options.path_column}
    cells = {delimiter: _cells(header.rstrip("\r\n"), delimiter) for delimiter in DELIMITERS}
    return max(DELIMITERS, key=lambda delimiter: (len(expected.intersection(cells[delimiter])), len(cells[delimiter])))


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _columns(header: list[str], path: Path, options: ReadOptions) -> _Columns:
    missing: list[tuple[str, str]] = []

    def index_of(column: str, option: str, needed: bool) -> int | None:
        if header.count(column) > 1:
            raise DataError(f"duplicate column '{column}' in the header", path, 1)
        if column in header:
            return header.index(column)
        if needed:
            missing.append((option, column))
        return None

    given = options.chosen
    paths = index_of(options.path_column, "path_column", "path_column" in given)
    text_columns = [options.text_column] if options.text_column in header else options.text_column.split("+")
    needed = paths is None or "text_column" in given
    texts = [index_of(column, "text_column", needed) for column in text_columns]
    labels = index_of(options.label_column, "label_column", True) if options.label_column and options.labels else None
    ids = index_of(options.id_column, "id_column", "id_column" in given)
    if missing:
        raise _missing(missing, options, header, path)
    return _Columns(len(header), [text for text in texts if text is not None], labels, paths, ids)


def _missing(missing: list[tuple[str, str]], options: ReadOptions, header: list[str], path: Path) -> DataError:
    marks = [mark for mark in "|;\t," if len(header) == 1 and mark in header[0]]
    if marks:
        remedy = f"if columns are separated by {marks[0]!r}, " + how_to_set("delimiter", repr(marks[0])[1:-1])
        return DataError(f"there is no column '{missing[0][1]}' among {header[0]}; {remedy}", path, 1)
    return missing_columns(missing, options, header, path, 1)


# --- writing ----------------------------------------------------------------------------------------------


def write(dataset: Dataset, path: Path) -> None:
    names = used_label_names(dataset)
    refuse_label_names(names, SEPARATOR.encode(), path, NAME)
    for name in names:
        if name != name.strip(" \t"):
            raise DataError(f"the label {name!r} begins or ends with a blank, which the format {NAME} strips", path)
    parts = {"id": dataset.ids, "path": dataset.paths, "text": dataset.texts}
    columns: dict[str, Sequence[str]] = {header: strings for header, strings in parts.items() if strings is not None}
    if not columns.keys() & {"path", "text"}:
        columns["text"] = []
    columns["labels"] = label_lines(dataset, SEPARATOR)
    with write_stream(path) as file:
        file.write((",".join(columns) + "\n").encode())
        for row in zip(*columns.values(), strict=True):
            file.write((",".join(map(_quoted, row)) + "\n").encode())


def _quoted(text: str) -> str:
    special = any(character in text for character in '",\n\r')
    return '"' + text.replace('"', '""') + '"' if special else text


FORMAT = Format(
    name=NAME,
    about="a table with a header: columns text and labels (separated by ;), optionally id and path",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=".csv",
    other_extensions=(EXTENSION,),
    read_mapped=read,
)
