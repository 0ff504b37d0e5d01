"""Writes predictions batch by batch: JSONL, tables (CSV, TSV) and npz.

A wide table has one row per document: the columns of the input as they were, and the predictions as further columns.
A long table has one row per prediction.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from labelwise.data.formats.csv import NAME as CSV
from labelwise.data.formats.csv import SEPARATOR, is_workbook, table_rows
from labelwise.data.options import ReadOptions
from labelwise.data.read import AUTO, PREFIX, detect
from labelwise.data.stream import first_bytes
from labelwise.errors import DataError
from labelwise.formatting import CONTROL, json_text, printable
from labelwise.model.method import Method
from labelwise.runs.data import Request, is_text
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

log = logging.getLogger("labelwise")

BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class InputTable:
    """Columns of the input, and how the table was written."""

    header: Sequence[str]
    delimiter: str = ","
    rows: Iterator[list[str]] = field(default_factory=lambda: iter(()))
    """The rows as they were, one per document."""


def input_table(request: Request) -> InputTable | None:
    """The table that the documents are read from; None unless it is a CSV file."""
    path = Path(request.documents)
    if is_text(request) or not path.is_file():
        return None
    if (detect(path, labels=False).name if request.format == AUTO else request.format) != CSV:
        return None
    delimiter, rows = table_rows(path, request.options)
    header = next(rows, (0, []))[1]
    return InputTable(header, delimiter, (row for _, row in rows))


def needs_mark(request: Request) -> bool:
    """Whether tables begin with a byte order mark, by which spreadsheet programs recognise UTF-8.

    They do if the input has one, is in another encoding, or is a workbook.
    """
    path = Path(request.documents)
    if request.is_the_text or request.documents == "-" or not path.is_file():
        return False
    utf8 = request.options.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return not utf8 or is_workbook(path) or first_bytes(path, 3) == BYTE_ORDER_MARK.encode()


class Suggestion(NamedTuple):
    """A predicted label."""

    label: str
    text: str | None
    score: float
    words: list[str] | None
    """The words that contributed most, if they were asked for."""


@dataclass(frozen=True)
class Predicted:
    """A batch of documents and their predictions."""

    ids: Sequence[str]
    texts: Strings | None
    rows: Sequence[Sequence[str]] | None
    """The rows of the input table, as they were."""
    top: TopK
    words: list[list[list[str]]] | None = None

    @property
    def columns(self) -> InputTable:
        """What is known about each document, for input that is not a table."""
        return InputTable(["id"] if self.texts is None else ["id", "text"])

    def suggestions(self, label_texts: Strings | None) -> Iterator[list[Suggestion]]:
        """For each document its predictions, best first."""
        for document, (row, ids) in enumerate(zip(self.top, self.top.ids, strict=True)):
            numbers = ids[ids != NO_LABEL].tolist()
            texts = [None if label_texts is None else label_texts[number] for number in numbers]
            words = [None] * len(row) if self.words is None else self.words[document]
            yield [
                Suggestion(label, text, score, some)
                for (label, score), text, some in zip(row, texts, words, strict=True)
            ]


def score_name(model: Method) -> str:
    """What the scores of a model are: `probability` if it is calibrated, else `score`."""
    return "score" if model.calibration_ is None else "probability"


def score_text(model: Method, score: float) -> str:
    """A probability with four decimals, any other score with four significant digits."""
    return f"{score:.4g}" if model.calibration_ is None else f"{score:.4f}"


def plain(one: Suggestion) -> dict[str, Any]:
    """A predicted label for JSON. Scores have six significant digits, about as many as they are computed with."""
    found: dict[str, Any] = {"label": one.label}
    if one.text is not None:
        found["text"] = one.text
    found["score"] = float(f"{one.score:.6g}")
    if one.words is not None:
        found["words"] = one.words
    return found


class JsonLines:
    """One object per document."""

    def __init__(self, model: Method) -> None:
        self.label_texts = model.label_texts_

    def begin(self, file: IO[str]) -> None:
        """There is no header."""

    def write(self, file: IO[str], batch: Predicted) -> None:
        """Write a batch."""
        for name, found in zip(batch.ids, batch.suggestions(self.label_texts), strict=True):
            file.write(json_text({"id": name, "labels": [plain(one) for one in found]}) + "\n")


class LongTable:
    """One row per prediction: as CSV with a rank, or as TSV, in which tabs and line ends become blanks."""

    def __init__(self, model: Method, words: bool, tabs: bool, to_terminal: bool) -> None:
        self.model, self.words, self.tabs = model, words, tabs
        self.clean = _without_tabs if tabs else _cleaner(to_terminal)

    def begin(self, file: IO[str]) -> None:
        """Write the header."""
        names = ["id", "rank", "label", "label_text", score_name(self.model), "words"]
        self._write_row(file, self._chosen(names))

    def write(self, file: IO[str], batch: Predicted) -> None:
        """Write a batch."""
        for name, found in zip(batch.ids, batch.suggestions(self.model.label_texts_), strict=True):
            for rank, one in enumerate(found, 1):
                cells = [name, str(rank), one.label, one.text or "", score_text(self.model, one.score)]
                self._write_row(file, self._chosen([*cells, ", ".join(one.words or ())]))

    def _chosen(self, cells: list[str]) -> list[str]:
        present = [True, not self.tabs, True, self.model.label_texts_ is not None, True, self.words]
        return [cell for cell, here in zip(cells, present, strict=True) if here]

    def _write_row(self, file: IO[str], cells: list[str]) -> None:
        cleaned = [self.clean(cell) for cell in cells]
        if self.tabs:
            file.write("\t".join(cleaned) + "\n")
        else:
            csv.writer(file, lineterminator="\n").writerow(cleaned)


class WideTable:
    """One CSV row per document: the input's columns and one each for labels, label texts, scores and words."""

    def __init__(
        self, model: Method, table: InputTable, options: ReadOptions, words: bool, to_terminal: bool, where: str
    ) -> None:
        self.model, self.table, self.words = model, table, words
        self.clean = _cleaner(to_terminal)
        self.separator = options.label_separator or f"{SEPARATOR} "
        _refuse_separator(model.label_names_, options.label_separator or SEPARATOR, where)
        self.columns = self._new_columns(where)

    def _new_columns(self, where: str) -> list[str]:
        scores = {"score": "scores", "probability": "probabilities"}[score_name(self.model)]
        texts = ["label_texts"] if self.model.label_texts_ is not None else []
        names = ["labels", *texts, scores, *(["words"] if self.words else [])]
        if not set(names) & set(self.table.header):
            return names
        prefixed = [PREFIX + name for name in names]
        both = [name for name in prefixed if name in self.table.header]
        if both:
            raise DataError(
                f"the input has the columns {names[0]} and {both[0]} already; rename one, or give --layout long",
                where,
            )
        log.info(
            "%s: the input has a column %s, so the new columns are %s", where,
            " and ".join(name for name in names if name in self.table.header), ", ".join(prefixed),
        )  # fmt: skip
        return prefixed

    def begin(self, file: IO[str]) -> None:
        """Write the header."""
        self._write_rows(file, [[*self.table.header, *self.columns]])

    def write(self, file: IO[str], batch: Predicted) -> None:
        """Write a batch."""
        if batch.rows is not None:
            rows = batch.rows
        elif batch.texts is not None:
            rows = list(zip(batch.ids, batch.texts, strict=True))
        else:
            rows = [(name,) for name in batch.ids]
        found = batch.suggestions(self.model.label_texts_)
        self._write_rows(file, ([*row, *self._cells(some)] for row, some in zip(rows, found, strict=True)))

    def _cells(self, found: list[Suggestion]) -> list[str]:
        columns = [[one.label for one in found]]
        if self.model.label_texts_ is not None:
            columns.append([one.text or "" for one in found])
        columns.append([score_text(self.model, one.score) for one in found])
        if self.words:
            columns.append([", ".join(one.words or ()) for one in found])
        return [self.separator.join(column) for column in columns]

    def _write_rows(self, file: IO[str], rows: Iterable[Iterable[str]]) -> None:
        writer = csv.writer(file, delimiter=self.table.delimiter, lineterminator="\n")
        writer.writerows([self.clean(cell) for cell in row] for row in rows)


Writer = JsonLines | LongTable | WideTable


def write_npz(file: IO[bytes], batches: Iterable[Predicted], n_labels: int) -> None:
    """Write all predictions as one CSR matrix, with the scores as they are."""
    from scipy import sparse

    parts = [batch.top.to_csr(n_labels) for batch in batches] or [sparse.csr_array((0, n_labels))]
    sparse.save_npz(file, sparse.csr_matrix(sparse.vstack(parts, format="csr")))


def _cleaner(to_terminal: bool) -> Any:
    """Escapes control characters for a terminal; a file keeps the texts as they are."""
    return printable if to_terminal else str


def _without_tabs(text: str) -> str:
    return CONTROL.sub(" ", text.replace("\t", " ").replace("\n", " "))


def _refuse_separator(names: Strings, separator: str, where: str) -> None:
    """Refuse labels that could not be separated again."""
    packed, mark = names.compact(), separator.encode()
    content = packed.buffer.tobytes()
    found = content.find(mark)
    while found >= 0:
        name = packed[int(packed.ends.searchsorted(found, "right"))]
        if separator in name:
            raise DataError(
                f"the label {name!r} contains {separator!r}, which separates labels here; choose another separator, "
                "such as --set 'label_separator=|', or --layout long",
                where,
            )
        found = content.find(mark, found + 1)
