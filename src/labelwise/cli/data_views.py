"""What the data commands show: statistics, what is known of a set, and published figures beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from labelwise.cli.tables import print_table
from labelwise.errors import DataError

if TYPE_CHECKING:
    from labelwise.data.published import Comparison
    from labelwise.data.stats import SplitStatistics, Statistics


def number(value: float | None) -> str:
    """Whole numbers in full, others with two digits, a dash for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def share(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.1f} %"


_FACTS: list[tuple[str, Callable[[Statistics], Any]]] = [
    ("documents", lambda s: s.documents),
    ("  without labels", lambda s: s.documents_without_labels),
    ("labels that occur", lambda s: s.labels_used),
    ("labels a document, mean", lambda s: s.mean_labels),
    ("  median", lambda s: s.median_labels),
    ("  most", lambda s: s.max_labels),
    ("documents a label, mean", lambda s: s.mean_documents),
    ("  median", lambda s: s.median_documents),
    ("  most", lambda s: s.max_documents),
    ("labels with 1 document", lambda s: share(s.share_labels_1)),
    ("  with at most 5", lambda s: share(s.share_labels_5)),
    ("  with at most 10", lambda s: share(s.share_labels_10)),
    ("covered by the top 1 % of labels", lambda s: share(s.top_1_percent)),
    ("  by the top 10 %", lambda s: share(s.top_10_percent)),
    ("words a text, mean", lambda s: s.mean_words),
    ("  median", lambda s: s.median_words),
    ("  most", lambda s: s.max_words),
    ("texts without words", lambda s: s.texts_without_words),
    ("texts that repeat another", lambda s: s.repeated_texts),
    ("features", lambda s: s.features),
    ("features a document, mean", lambda s: s.mean_nonzeros),
]


def stats_table(found: SplitStatistics) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: a fact a row, a part a column, and all parts together where there are several."""
    columns: dict[str, Statistics] = dict(found.parts)
    if len(columns) > 1:
        columns["all"] = found.overall
    rows = []
    for name, fact in _FACTS:
        values = [fact(column) for column in columns.values()]
        if any(value is not None for value in values):
            rows.append([name, *(value if isinstance(value, str) else number(value) for value in values)])
    if len(found.parts) > 1:
        for name, shared in (
            ("labels that train lacks", found.labels_not_in_train),
            ("texts that train has too", found.texts_in_train),
        ):
            rows.append([name, *(number(shared.get(column)) for column in columns)])
    return ["", *columns], rows


def sum_of(sha256: str | None) -> str:
    """The begin of a checksum."""
    return "not known" if sha256 is None else f"{sha256[:12]}..."


def show_entry(name: str) -> None:
    """All that is known of a data set."""
    from labelwise.data.catalogue import entry, folder_of

    known = entry(name)
    published = {key.replace("_", " "): value for key, value in known.published if value is not None}
    typer.echo(f"{name}: {known.title}")
    typer.echo(f"version: {known.notes}")
    typer.echo("published: " + ", ".join(f"{key} {number(value)}" for key, value in published.items()))
    typer.echo(f"propensity: A={known.propensity[0]}, B={known.propensity[1]}")
    typer.echo(f"licence: {known.licence}")
    typer.echo(f"cite: {known.citation}")
    typer.echo(f"format: {known.format}")
    for source in known.sources:
        typer.echo(f"file: {source.file}, SHA-256 {source.sha256 or 'not known'}")
        for address in source.addresses:
            typer.echo(f"  {address}")
    here = folder_of(name)
    typer.echo(f"folder: {here} ({'downloaded' if here.is_dir() else 'not downloaded'})")


def show_check(name: str, folder: Path, rows: list[Comparison]) -> None:
    """The comparison with published figures; DataError at the end if one differs."""
    said = {True: "ok", False: "differs", None: "not compared"}
    cells = [[row.what, number(row.expected), number(row.found), said[row.ok]] for row in rows]
    print_table("published figures and those of the data", ["", "published", "found", ""], cells)
    if any(row.ok is False for row in rows):
        raise DataError(
            f"{name} is not what was published under that name: see the table. It may be another version. "
            f"The data is kept and can be read: labelwise.dataset('{name}') or the path {folder}"
        )
