"""Output of the data commands: statistics, details of a known data set, comparison with published figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.cli.tables import print_table
from labelwise.cli.terminal import echo, echo_paragraph
from labelwise.errors import DataError
from labelwise.formatting import cut, number, percent, printable

if TYPE_CHECKING:
    from labelwise.data.highlights import DocumentNote, LabelCount
    from labelwise.data.published import FigureComparison
    from labelwise.data.stats import SplitStatistics, Statistics

LABEL, TEXT, GROUPS = 60, 40, 5
"""Characters of a label and of a text, and groups of similar labels, that are printed."""

_STATISTICS: list[tuple[str, Callable[[Statistics], Any]]] = [
    ("documents", lambda s: s.documents),
    ("  without labels", lambda s: s.documents_without_labels),
    ("labels that occur", lambda s: s.labels_used),
    ("labels per document, mean", lambda s: s.mean_labels),
    ("  median", lambda s: s.median_labels),
    ("  max", lambda s: s.max_labels),
    ("documents per label, mean", lambda s: s.mean_documents),
    ("  median", lambda s: s.median_documents),
    ("  max", lambda s: s.max_documents),
    ("labels with 1 document", lambda s: f"{percent(s.share_labels_1, 1)} %"),
    ("  with at most 5", lambda s: f"{percent(s.share_labels_5, 1)} %"),
    ("  with at most 10", lambda s: f"{percent(s.share_labels_10, 1)} %"),
    ("covered by the top 1 % of labels", lambda s: f"{percent(s.top_1_percent, 1)} %"),
    ("  by the top 10 %", lambda s: f"{percent(s.top_10_percent, 1)} %"),
    ("words per text, mean", lambda s: s.mean_words),
    ("  median", lambda s: s.median_words),
    ("  max", lambda s: s.max_words),
    ("texts without words", lambda s: s.texts_without_words),
    ("duplicate texts", lambda s: s.repeated_texts),
    ("features", lambda s: s.features),
    ("features per document, mean", lambda s: s.mean_nonzeros),
]


def stats_table(statistics: SplitStatistics) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one row per statistic, one column per part, and one for all parts if there are several."""
    columns: dict[str, Statistics] = dict(statistics.parts)
    if len(columns) > 1:
        columns["all"] = statistics.overall
    rows = []
    for name, statistic in _STATISTICS:
        values = [statistic(column) for column in columns.values()]
        if any(value is not None for value in values):
            rows.append([name, *(number(value, 2) for value in values)])
    if len(statistics.parts) > 1:
        for name, shared in (
            ("labels not in train", statistics.labels_not_in_train),
            ("texts also in train", statistics.texts_in_train),
        ):
            rows.append([name, *(number(shared.get(column), 2) for column in columns)])
    return ["", *columns], rows


def show_highlights(statistics: SplitStatistics, label_column: str | None) -> None:
    """Print frequent and rare labels, then what looks like a mistake; `label_column` if one was named."""
    found = statistics.highlights
    if found.most_frequent:
        rows = [_label_row(one) for one in found.most_frequent]
        if found.least_frequent:
            between = statistics.overall.labels_used - len(found.most_frequent) - len(found.least_frequent)
            rows += [[f"... {between:,} others", ""]] * (between > 0)
            rows += [_label_row(one) for one in found.least_frequent]
        echo("")
        print_table("most and least frequent labels", ["label", "documents"], rows)
    notes = _notes(statistics, label_column)
    if notes:
        echo("\nworth a look")
        for note in notes:
            echo_paragraph(note)


def _label_row(one: LabelCount) -> list[str]:
    return [_shown_label(one.label, one.text, LABEL), f"{one.documents:,}"]


def _shown_label(label: str, text: str | None, length: int) -> str:
    return cut(printable(f"{text} ({label})" if text and text != label else label), length)


def _notes(statistics: SplitStatistics, label_column: str | None) -> list[str]:
    from labelwise.data.highlights import doubt_about_labels

    found, several = statistics.highlights, len(statistics.parts) > 1

    def place(note: DocumentNote) -> str:
        return f"{note.part} document {note.document}" if several else f"document {note.document}"

    overall = statistics.overall
    doubt = doubt_about_labels(overall.label_counts, overall.documents, label_column)
    notes = [] if doubt is None else [doubt]
    if found.n_alike:
        groups = [", ".join(f"{one.label!r} ({one.documents:,})" for one in group) for group in found.alike[:GROUPS]]
        more = f"; {found.n_alike - GROUPS:,} more in --json" if found.n_alike > GROUPS else ""
        notes.append(f"labels that differ only by case or blanks: {'; '.join(groups)}{more}")
    if found.most_labels is not None:
        notes.append(f"most labels: {place(found.most_labels)} has {found.most_labels.amount:,}")
    empty = statistics.overall.texts_without_words
    if found.without_words is not None:
        notes.append(f"texts without words: {number(empty)}, the first is {place(found.without_words)}")
    repeated = found.most_repeated
    if repeated is not None:
        begin = cut(printable(repeated.text or ""), TEXT)
        notes.append(
            f"duplicate texts: {number(statistics.overall.repeated_texts)} ({percent(found.repeated_fraction, 1)} %); "
            f"most often, {repeated.amount:,} times: {place(repeated)}, '{begin}'"
        )
    return notes


def show_records(records: list[dict[str, Any]]) -> None:
    """Print some documents with their labels."""
    for record in records:
        echo(f"\n{record['part']} document {record['document']}")
        if record["text"] is not None:
            echo_paragraph(record["text"])
        labels = [_shown_label(one["label"], one.get("text"), LABEL) for one in record["labels"]]
        echo_paragraph(f"labels: {'; '.join(labels) or 'none'}")


def short_checksum(sha256: str | None) -> str:
    """The first digits of a checksum."""
    return "not known" if sha256 is None else f"{sha256[:12]}..."


def show_entry(name: str) -> None:
    """Print the catalogue entry of a data set."""
    from labelwise.data.catalogue import entry, folder_of

    known = entry(name)
    published = {key.replace("_", " "): value for key, value in known.published if value is not None}
    echo(f"{name}: {known.title}")
    echo(f"version: {known.notes}")
    echo("published: " + ", ".join(f"{key} {number(value, 2)}" for key, value in published.items()))
    echo(f"propensity: A={known.propensity[0]}, B={known.propensity[1]}")
    echo(f"licence: {known.licence}")
    echo(f"cite: {known.citation}")
    echo(f"format: {known.format}")
    for source in known.sources:
        echo(f"file: {source.file}, SHA-256 {source.sha256 or 'not known'}")
        for address in source.addresses:
            echo(f"  {address}")
    here = folder_of(name)
    echo(f"folder: {here} ({'downloaded' if here.is_dir() else 'not downloaded'})")


def show_check(name: str, folder: Path, rows: list[FigureComparison]) -> None:
    """Print the comparison with published figures; raises a DataError if one differs."""
    verdicts = {True: "ok", False: "differs", None: "not compared"}
    cells = [[row.what, number(row.expected, 2), number(row.actual, 2), verdicts[row.ok]] for row in rows]
    print_table("published figures and those of the data", ["", "published", "actual", ""], cells)
    if any(row.ok is False for row in rows):
        raise DataError(
            f"{name} differs from the published data set, see the table; it may be another version. "
            f"The data is kept and can be read: labelwise.dataset('{name}') or the path {folder}"
        )
