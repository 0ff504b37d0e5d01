"""labelwise data stats|convert|shard|split|list|download|build"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.terminal import echo, echo_json, terminal_width

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
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
    from labelwise.cli.curve import draw_curve
    from labelwise.cli.data_views import show_highlights, show_records, stats_table
    from labelwise.cli.tables import print_table
    from labelwise.data.highlights import records
    from labelwise.data.stats import split_statistics

    options = _options(settings, text, labels, id)
    parts = _read_parts(path, format, options)
    statistics = split_statistics(parts)
    if sheet is not None:
        from labelwise.data.thumbnails import write_sheet

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
    from labelwise.cli.data_views import short_checksum, show_entry
    from labelwise.cli.tables import print_table
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
    from labelwise.data.convert import convert

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
    from labelwise.cli.data_views import show_check
    from labelwise.data.catalogue import entry
    from labelwise.data.download import download
    from labelwise.data.published import check as compare_published

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
    from labelwise.cli.from_data import COLUMN_OPTIONS
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
