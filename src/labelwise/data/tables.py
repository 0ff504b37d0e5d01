"""Accumulate what readers parse block by block: texts in one buffer, labels as ids until all names are known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.csr import ArrayOnDisk, sorted_label_names
from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions, how_to_set
from labelwise.errors import DataError, did_you_mean
from labelwise.strings import Strings

Bounds = tuple[np.ndarray, np.ndarray]


class TextAccumulator:
    """Texts of one or more columns that are slices of the same blocks of bytes; the blocks are kept, not copied.

    With a folder the blocks are written to a file in it, which is mapped at the end.
    """

    def __init__(self, columns: int = 1, folder: Path | None = None) -> None:
        self._blocks: list[np.ndarray] = []
        self._file = None if folder is None else ArrayOnDisk(np.uint8, folder)
        self._size = 0
        self._bounds: list[list[Bounds]] = [[] for _ in range(columns)]

    def add(self, data: np.ndarray, *columns: Bounds) -> None:
        """Add a block of valid UTF-8 and, for each column, where its texts begin and end in it."""
        for pieces, (starts, ends) in zip(self._bounds, columns, strict=True):
            pieces.append((starts + self._size, ends + self._size))
        if self._file is None:
            self._blocks.append(data)
        else:
            self._file.add(data)
        self._size += len(data)

    def add_encoded(self, texts: Sequence[bytes]) -> None:
        """Add texts of the only column, in UTF-8."""
        data, starts, ends = concatenated(texts)
        self.add(data, (starts, ends))

    def columns(self) -> list[Strings]:
        """All texts so far, one Strings per column over the same buffer. Nothing can be added afterwards."""
        buffer = _join(self._blocks) if self._file is None else self._file.map()
        return [
            Strings(buffer, _join([s for s, _ in pieces], np.int64), _join([e for _, e in pieces], np.int64))
            for pieces in self._bounds
        ]


class LabelAccumulator:
    """Labels of documents, row by row."""

    def __init__(self) -> None:
        from labelwise.kernels.fields import Interner

        self._interner = Interner()
        self._ids: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._rated = False

    def add_tokens(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, first: np.ndarray) -> None:
        """Add rows whose labels are ``data[starts[i]:ends[i]]``; those of row r are first[r] to first[r + 1]."""
        self._ids.append(self._interner.add(data, starts, ends))
        self._counts.append(np.diff(first))
        self._values.append(np.broadcast_to(np.float32(1), len(starts)))

    def add_fields(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, separator: bytes = b"") -> None:
        """Add rows whose labels are in ``data[starts[r]:ends[r]]``, separated by blanks or by the separator."""
        from labelwise.kernels.fields import split_fields

        self.add_tokens(data, *split_fields(data, starts, ends, separator))

    def add_encoded(self, names: Sequence[bytes], counts: Sequence[int], values: Sequence[float] | None = None) -> None:
        """Add rows with `counts` labels each; `names` are those of all rows, `values` their relevances if not 1."""
        self._ids.append(self._interner.add(*concatenated(names)))
        self._counts.append(np.asarray(counts, np.int64))
        if values is None:
            self._values.append(np.broadcast_to(np.float32(1), len(names)))
        else:
            self._values.append(np.asarray(values, np.float32))
            self._rated = True

    def matrix(self) -> tuple[sparse.csr_array, Strings]:
        """The label matrix without duplicates, and the names in label order. Nothing can be added afterwards."""
        interned = list(self._interner.names())
        names = sorted_label_names(interned)
        column_of = names.positions
        columns = np.fromiter((column_of[name] for name in interned), np.int32, len(interned))
        indices = columns[_join(self._ids, np.int32)]
        counts = _join(self._counts, np.int64)
        first = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=first[1:])
        values = _join(self._values, np.float32) if self._rated else np.ones(len(indices), np.float32)
        matrix = sparse.csr_array((values, indices, first), shape=(len(counts), len(names)))
        matrix.sum_duplicates()
        if not self._rated:
            matrix.data[:] = 1
        return matrix, names


def no_labels(documents: int) -> sparse.csr_array:
    """The label matrix of documents that are read without labels."""
    shape = (documents, 0)
    return sparse.csr_array(shape, dtype=np.float32)


def concatenated(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts concatenated, and where each begins and ends."""
    ends = np.fromiter(accumulate(map(len, texts)), np.int64, len(texts))
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return np.frombuffer(b"".join(texts), np.uint8), starts, ends


def _join(pieces: list[np.ndarray], dtype: type = np.uint8) -> np.ndarray:
    """Concatenate the pieces. The list is emptied meanwhile, so that memory holds each piece only once."""
    if len(pieces) == 1:
        return np.asarray(pieces.pop(), dtype)
    whole = np.empty(sum(map(len, pieces)), dtype)
    start = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        whole[start : start + len(piece)] = piece
        start += len(piece)
    return whole


# --- checks ---
# Checks of what a format cannot store, made before anything is written.

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


# --- columns ---
# Which columns of a table, or fields of a record, hold text, labels and ids, if the options name none that exist.
#
# Nothing is guessed while reading: the error names all columns that are missing at once and proposes likely ones.

TITLES = ("title", "name", "heading", "headline")
BODIES = ("abstract", "description", "summary", "body", "content", "fulltext", "full_text", "text")
LABELS = (
    "labels", "label", "subjects", "subject", "keywords", "keyword", "tags", "tag", "categories", "category", "topics",
    "topic", "descriptors", "classes", "class", "terms", "codes",
)  # fmt: skip
IDS = ("id", "identifier", "doc_id", "document_id", "record_id", "uri", "key", "number")


class MissingColumnsError(DataError):
    """Columns that the options name do not exist; `proposed` has a column per option, or None where none is likely."""

    def __init__(
        self, problem: str, proposed: Mapping[str, str | None], remedy: str, path: Path, line: int | None
    ) -> None:
        super().__init__(f"{problem}; {remedy}", path, line)
        self.problem, self.proposed, self.remedy = problem, dict(proposed), remedy

    def __reduce__(self) -> tuple:
        return type(self), (self.problem, self.proposed, self.remedy, self.path, self.line)


def missing_columns(
    missing: Sequence[tuple[str, str]],
    options: ReadOptions,
    names: Iterable[str],
    path: Path,
    line: int | None,
    what: str = "column",
    before: str = "",
) -> MissingColumnsError:
    """The error for (option, column) pairs that are not among the names of the columns."""
    names = list(names)
    lacking = " and ".join(f"no {what} '{column}'" for column in dict.fromkeys(column for _, column in missing))
    problem = f"{before}there is {lacking} among {', '.join(names) or 'nothing'}"
    proposed: dict[str, str | None] = {}
    for option, _ in missing:
        proposed[option] = _similar(getattr(options, option), names) or _likely(option, names)
    if len(proposed) == 1:
        option, column = next(iter(proposed.items()))
        asked = "".join(near_miss(lacking, names) for _, lacking in missing)
        shown = "..." if asked or column is None else column
        return MissingColumnsError(problem, proposed, asked + how_to_set(option, shown), path, line)
    settings = " ".join(f"--set {option}={column or '...'}" for option, column in proposed.items())
    keys = ", ".join(f"data.options.{option}" for option in proposed)
    remedy = f"set the options {' and '.join(proposed)} ({settings}, in a config {keys})"
    return MissingColumnsError(problem, proposed, remedy, path, line)


def _similar(given: str, names: Sequence[str]) -> str | None:
    """The given columns with small mistakes corrected; None if one is like no column."""
    by_word = {name.casefold(): name for name in reversed(names)}
    corrected: list[str] = []
    for part in given.split("+"):
        near = difflib.get_close_matches(part.strip().casefold(), by_word, n=1)
        if part not in names and not near:
            return None
        corrected.append(part if part in names else by_word[near[0]])
    return "+".join(corrected)


def _likely(option: str, names: Sequence[str]) -> str | None:
    """A column whose name says that it holds what the option is for."""
    if option == "text_column":
        title, body = _first(TITLES, names), _first(BODIES, names)
        found = [column for column in (title, body) if column is not None]
        return "+".join(found) or None
    words = {"label_column": LABELS, "id_column": IDS}.get(option, ())
    return _first(words, names)


def _first(words: Sequence[str], names: Sequence[str]) -> str | None:
    by_word = {re.sub(r"[\s-]+", "_", name.strip().casefold()): name for name in reversed(names)}
    return next((by_word[word] for word in words if word in by_word), None)
