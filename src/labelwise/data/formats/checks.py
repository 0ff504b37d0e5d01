"""Checks of what a format cannot store, made before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.errors import DataError, did_you_mean
from labelwise.strings import Strings

BLANKS = b" \t"
LINE_ENDS = b"\n\r"
NO_DOCUMENTS = "the file is empty: no documents"
_SHOWN = {10: "a line end", 13: "a carriage return", 9: "a tab", 32: "a blank", 59: "a semicolon"}


def refuse_empty(count: int, path: Path) -> None:
    """Refuse a file without documents, or without bytes: usually an earlier step has failed."""
    if not count:
        raise DataError(NO_DOCUMENTS, path)


def near_miss(given: str, names: Iterable[str]) -> str:
    """A "did you mean" question if a similar name exists, else an empty string."""
    names = list(names)
    alike = [name for name in names if name.casefold() == given.casefold()]
    question = did_you_mean(alike[0], alike) if alike else did_you_mean(given, names)
    return f"{question} If not, " if question.startswith("did you mean") else ""


def texts_of(dataset: Dataset, path: Path, format_name: str) -> Strings:
    """The texts to write; DataError if documents have none."""
    if dataset.texts is None and len(dataset):
        raise DataError(f"the format {format_name} needs texts, which {dataset.name} does not have", path)
    return Strings.of([]) if dataset.texts is None else dataset.texts


def refuse_bytes(strings: Strings, forbidden: bytes, what: str, path: Path, format_name: str) -> None:
    """Refuse texts or names that contain a byte which the format uses as a separator."""
    packed = strings.compact()
    table = np.zeros(256, bool)
    table[list(forbidden)] = True
    bad = np.flatnonzero(table[packed.buffer])
    if len(bad):
        index = int(np.searchsorted(packed.ends, bad[0], "right"))
        byte = int(packed.buffer[bad[0]])
        raise DataError(
            f"{what} {index} ({_short(packed[index])}) contains {_SHOWN.get(byte, f'the byte 0x{byte:02X}')}, "
            f"which the format {format_name} cannot store; jsonl or native can",
            path,
        )


def refuse_line_ends(texts: Strings, what: str, path: Path, format_name: str) -> None:
    """Refuse texts that would not be read back as one line: with a newline, or a carriage return at the end."""
    refuse_bytes(texts, b"\n", what, path, format_name)
    filled = np.flatnonzero(texts.ends > texts.starts)
    returned = filled[texts.buffer[texts.ends[filled] - 1] == 13]
    if len(returned):
        raise DataError(
            f"{what} {returned[0]} ends in a carriage return, which the format {format_name} reads as part "
            "of the line end; jsonl or native can store it",
            path,
        )


def refuse_mark(first: str, path: Path, format_name: str) -> None:
    """Refuse a first line that begins with U+FEFF: readers drop it as a byte order mark."""
    if first.startswith("\ufeff"):
        raise DataError(
            f"the first text begins with U+FEFF, which the format {format_name} drops as a byte order mark",
            path,
        )


def refuse_label_names(names: Strings, separators: bytes, path: Path, format_name: str) -> None:
    """Refuse label names that are empty or that a reader would split or trim."""
    empty = np.flatnonzero(names.ends == names.starts)
    if len(empty):
        raise DataError(f"label {empty[0]} has an empty name, which the format {format_name} cannot store", path)
    refuse_bytes(names, separators, "label", path, format_name)


def used_label_names(dataset: Dataset) -> Strings:
    """The names of labels that occur: the only ones written by a format without a list of labels."""
    return dataset.label_names[np.flatnonzero(dataset.label_counts())]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
