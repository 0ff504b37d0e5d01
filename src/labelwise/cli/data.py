"""labelwise data stats|convert|shard|split|list|download|build"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.output import print_table
from labelwise.cli.terminal import echo, echo_json, echo_paragraph, terminal_width
from labelwise.errors import DataError
from labelwise.formatting import cut, number, percent, printable

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.data.describe import (
        DocumentNote,
        FigureComparison,
        LabelCount,
        SplitStatistics,
        Statistics,
    )
    from labelwise.data.options import ReadOptions


app = typer.Typer(help="Describe, convert and download data sets.", no_args_is_help=True)

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="File, folder, or name of a known data set.")]
FromOption = Annotated[str, typer.Option("--from", "--format", metavar="FORMAT", help="Format of the input.")]
ToOption = Annotated[str | None, typer.Option("--to", metavar="FORMAT", help="Format of the output.")]
PartOption = Annotated[str | None, typer.Option("--split", help="Only this part: train, valid or test.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReadOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="How to read, e.g. text_column=title. May be repeated."),
]
TextOption = Annotated[str | None, typer.Option("--text", help="Column with the text; title+abstract joins several.")]
LabelsOption = Annotated[str | None, typer.Option("--labels", help="Column with the labels.")]
IdOption = Annotated[str | None, typer.Option("--id", help="Column with the document's identifier.")]
DropOption = Annotated[
    list[str] | None, typer.Option("--drop", help="Leave out what the output format cannot store, e.g. ids.")
]


class Corpus(StrEnum):
    """Corpora that `data build` can build."""

    pydocs = "pydocs"


# --- showing -----------------------------------------------------------------------------------------------


@app.command("stats")
def stats_command(
    path: PathArgument,
    format: Annotated[str, typer.Option("--format", help="Format of the files.")] = "auto",
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Also show N documents of each part.")] = 0,
    sheet: Annotated[
        str | None, typer.Option(metavar="FILE.png", help="Of images: also draw some of each part, with labels.")
    ] = None,
    as_json: JsonOption = False,
    text: TextOption = None,
    labels: LabelsOption = None,
    id: IdOption = None,
    settings: ReadOption = None,
) -> None:
    """Count documents and labels.

    Also shows text lengths, the skew of label frequencies, the overlap of the parts, frequent and rare labels, and what
    looks like a mistake: labels that nearly all occur once or differ only by case or blanks, empty and
    duplicate texts.
    """
    from labelwise.cli.output import draw_curve, print_table
    from labelwise.data.describe import records, split_statistics

    options = _options(settings, text, labels, id)
    parts = _read_parts(path, format, options)
    statistics = split_statistics(parts)
    if sheet is not None:
        from labelwise.data.images import write_sheet

        write_sheet(parts, sheet)
    if as_json:
        curve = statistics.overall.frequency_curve()
        shown = {"records": records(parts, show)} if show else {}
        echo_json({**statistics.to_dict(), "frequency_curve": curve, **shown})
        return
    print_table(path, *stats_table(statistics))
    encoding = sys.stdout.encoding or "ascii"
    width = max(20, min(60, terminal_width() - 25))
    lines = draw_curve(statistics.overall.label_counts, width, braille=encoding.lower().startswith("utf"))
    echo("\n" + "\n".join(lines))
    show_highlights(statistics, options.chosen_label_column)
    show_records(records(parts, show))
    if sheet is not None:
        echo(f"\n{sheet}: some of the images")


@app.command("list")
def list_command(
    name: Annotated[str | None, typer.Argument(help="Show the details of this data set.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the known data sets, or show the details of one."""
    from labelwise.cli.output import print_table
    from labelwise.data.catalogue import entry, folder_of, names
    from labelwise.formatting import number

    if as_json:
        known = {one: entry(one).model_dump() for one in ([name] if name else names())}
        echo_json(known)
    elif name is None:
        rows = []
        for one in names():
            known, published = entry(one), entry(one).published
            figures = (published.train, published.test, published.labels)
            here = "yes" if folder_of(one).is_dir() else "no"
            rows.append([one, *map(number, figures), known.format, short_checksum(known.sources[0].sha256), here])
        columns = ["name", "train", "test", "labels", "format", "checksum", "downloaded"]
        print_table("known data sets", columns, rows)
        echo("\nlabelwise data list NAME shows more, labelwise data download NAME downloads one")
    else:
        show_entry(name)


# --- converting ----------------------------------------------------------------------------------------------


@app.command("convert")
def convert_command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="File, folder, or name of a known data set; several are joined."),
    ],
    output: Annotated[str, typer.Argument(metavar="OUT", help="File, or folder for all parts.")],
    from_format: FromOption = "auto",
    to_format: ToOption = None,
    split: PartOption = None,
    force: ForceOption = False,
    text: TextOption = None,
    labels: LabelsOption = None,
    id: IdOption = None,
    settings: ReadOption = None,
    drop: DropOption = None,
) -> None:
    """Write a data set in another format.

    A folder is converted with all its parts, with --split only one; several files become one. Without --to the
    output's extension decides, and a folder is written in the native format, which keeps everything. Texts and sparse
    features may be larger than memory: they are kept in temporary files beside OUT.
    Formats: native, pecos, lines, fulltext (only read), tfrecord, jsonl, fasttext, xc, csv, tsv, vowpal;
    of images, only read: cifar, idx, image_folder.
    """
    from labelwise.data.write import convert

    source, source_format = _resolve(paths[0], from_format) if len(paths) == 1 else (paths, from_format)
    documents = convert(
        source, output, source_format, to_format, split, _options(settings, text, labels, id), force, drop or []
    )
    echo(f"{output}: {documents:,} documents")


@app.command("shard")
def shard_command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="File, folder, or name of a known data set; several are joined."),
    ],
    output: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write.")],
    size: Annotated[str, typer.Option(metavar="BYTES", help="Size of a shard.")] = "512MB",
    documents: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Documents per shard, instead of a size.")
    ] = None,
    from_format: FromOption = "auto",
    split: Annotated[
        str | None, typer.Option("--split", help="Of a folder: only this part. Of files: the part they are. [train]")
    ] = None,
    force: ForceOption = False,
    text: TextOption = None,
    labels: LabelsOption = None,
    id: IdOption = None,
    settings: ReadOption = None,
) -> None:
    """Write native shards, for data larger than memory.

    Reads texts or sparse features, plain or compressed, once, in bounded memory, and writes OUT/train-00000,
    OUT/train-00001 ... (valid and test too, if the source has them). A config reads them with data.path=OUT and
    data.mapped=true. The documents are kept in temporary files beside OUT until it is complete; OUT gets its name at
    the end, so an interrupted command is simply started again.
    """
    from labelwise.data.shard import shard

    source, source_format = _resolve(paths[0], from_format) if len(paths) == 1 else (paths, from_format)
    counts = shard(source, output, size, documents, source_format, split, _options(settings, text, labels, id), force)
    echo(
        f"{output}: "
        + ", ".join(f"{count:,} {'shard' if count == 1 else 'shards'} of {name}" for name, count in counts.items())
    )


@app.command("split")
def split_command(
    path: PathArgument,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Folder for the two parts.")],
    fraction: Annotated[float, typer.Option(help="Fraction of the documents that go to test.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Another seed draws other documents.")] = 0,
    by: Annotated[
        str, typer.Option(help="random, or hash: a document is in the same part when the data grows.")
    ] = "random",
    from_format: FromOption = "auto",
    to_format: ToOption = None,
    split: PartOption = None,
    force: ForceOption = False,
    text: TextOption = None,
    labels: LabelsOption = None,
    id: IdOption = None,
    settings: ReadOption = None,
    drop: DropOption = None,
) -> None:
    """Draw a test set, at random or by a hash of each document.

    Writes a train part and a test part to OUT, in the input's format unless --to is given (native if that is only
    read).
    """
    from labelwise.data.read import detect, format_named, read
    from labelwise.data.write import write_splits

    source, source_format = _resolve(path, from_format)
    data = read(source, source_format, split, _options(settings, text, labels, id))
    train, test = data.split(fraction, seed, by)
    found = detect(source) if source_format == "auto" else format_named(source_format)
    chosen = to_format or (found.name if found.write is not None else "native")
    write_splits({"train": train, "test": test}, output, chosen, force, drop or [])
    echo(f"{output}: {len(train):,} documents in train, {len(test):,} in test")


# --- downloading and building ------------------------------------------------------------------------------


@app.command("download")
def download_command(
    name: Annotated[str, typer.Argument(help="Name of a known data set; labelwise data list shows them.")],
    folder: Annotated[
        str | None,
        typer.Option(help="Folder of downloaded data sets. [$LABELWISE_DATA or ~/.cache/labelwise/data]"),
    ] = None,
    force: ForceOption = False,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="Download the files from URL/FILE.")] = None,
    check: Annotated[bool, typer.Option(help="Read the data and compare it with the published figures.")] = True,
) -> None:
    """Download a known data set and check it.

    Resumes an interrupted download. Exits with 2 if the figures differ from the published ones; the data is kept
    and can be used anyway.
    """
    from labelwise.data.catalogue import download, entry
    from labelwise.data.describe import check as compare_published

    echo(f"{name}: {entry(name).title}. Licence: {entry(name).licence}.")
    downloaded = download(name, folder, force, mirror)
    for file in downloaded.files:
        echo(f"{file.path.name}: {file.bytes:,} bytes, SHA-256 {file.sha256}")
    echo(f"{downloaded.folder}: {'already downloaded' if downloaded.was_there else 'ready'}")
    if check and not downloaded.was_there:
        show_check(name, downloaded.folder, compare_published(name, folder))


@app.command("build")
def build_command(
    corpus: Annotated[Corpus, typer.Argument(help="pydocs: docstrings of installed packages.")],
    output: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write.")],
    package: Annotated[
        list[str] | None, typer.Option(help="An installed package; `all` for all. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws another test set.")] = 0,
    limit: Annotated[int | None, typer.Option(min=10, help="Keep at most this many documents.")] = None,
    min_label_count: Annotated[int, typer.Option(min=1, help="Drop labels with fewer documents.")] = 1,
    force: ForceOption = False,
) -> None:
    """Build a real corpus from the documentation of installed packages."""
    from labelwise.data.builders.pydocs import build_pydocs

    del corpus  # there is one
    built = build_pydocs(output, package, seed, limit, min_label_count, force)
    echo(
        f"{output}: {built.train:,} documents in train, {built.test:,} in test, {built.labels:,} labels, "
        f"{built.mean_labels:.2f} labels per document"
    )


# --- reading -----------------------------------------------------------------------------------------------


def _options(settings: list[str] | None, text: str | None, labels: str | None, id: str | None) -> ReadOptions:
    from labelwise.cli.train import COLUMN_OPTIONS
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions
    from labelwise.errors import ConfigError

    source = ConfigSource({}, "--set").override(settings or [])
    for option, column in {"text": text, "labels": labels, "id": id}.items():
        key = COLUMN_OPTIONS[option]
        if column is not None and source.values.setdefault(key, column) != column:
            raise ConfigError(f"--{option} {column} and --set {key}={source.values[key]} contradict each other")
    return validated(ReadOptions, source.values, source)


def _resolve(path: str, format: str) -> tuple[Path, str]:
    """Path and format of the data: an existing path, else the folder of a known data set."""
    from labelwise.data.catalogue import downloaded_folder, entry, names, near_sets
    from labelwise.errors import DataError

    if Path(path).exists() or path not in names():
        if not Path(path).exists() and (question := near_sets(path)):
            raise DataError(f"there is no such file or folder; {question}", path)
        return Path(path), format

    return downloaded_folder(path), entry(path).format if format == "auto" else format


def _read_parts(path: str, format: str, options: ReadOptions) -> dict[str, Dataset]:
    from labelwise.data.read import has_parts, read, read_splits

    source, format = _resolve(path, format)
    if has_parts(source):
        return read_splits(source, format, options)
    return {"data": read(source, format, None, options)}


# --- data views ---
# Output of the data commands: statistics, details of a known data set, comparison with published figures.

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
    from labelwise.data.describe import doubt_about_labels

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
