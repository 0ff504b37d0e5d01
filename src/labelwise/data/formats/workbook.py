"""Rows of Excel workbooks (.xlsx), which the format `csv` reads like those of a CSV file.

The package openpyxl parses them, row by row; formulas are not computed, their last values are read. Nothing in a
workbook is executed. Sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from labelwise.data.options import ReadOptions
from labelwise.data.splits import stem_and_extension
from labelwise.errors import ConfigError, DataError, import_required

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
