"""labelwise data stats|convert|split|list|download|build"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.terminal import echo, echo_json

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.data.options import ReadOptions

app = typer.Typer(help="Look at data sets, convert them, get them.", no_args_is_help=True)

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="File, folder, or name of a known data set.")]
FromOption = Annotated[str, typer.Option("--from", "--format", metavar="FORMAT", help="Format of the input.")]
ToOption = Annotated[str | None, typer.Option("--to", metavar="FORMAT", help="Format of the output.")]
PartOption = Annotated[str | None, typer.Option("--split", help="Only this part: train, valid or test.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReadOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="How to read, e.g. text_column=title. May be repeated."),
]
DropOption = Annotated[
    list[str] | None, typer.Option("--drop", help="Leave out what the output has no place for, e.g. ids.")
]


class Corpus(StrEnum):
    """What `data build` can build."""

    pydocs = "pydocs"


# --- looking -----------------------------------------------------------------------------------------------


@app.command("stats")
def stats_command(
    path: PathArgument,
    format: Annotated[str, typer.Option("--format", help="Format of the files.")] = "auto",
    as_json: JsonOption = False,
    settings: ReadOption = None,
) -> None:
    """Count documents and labels.

    Also shows how long texts are, how skewed the labels are and what the parts share.
    """
    from labelwise.cli.curve import draw_curve
    from labelwise.cli.data_views import stats_table
    from labelwise.cli.tables import print_table
    from labelwise.data.stats import split_statistics

    parts = _read_parts(path, format, _options(settings))
    found = split_statistics(parts)
    if as_json:
        curve = found.overall.frequency_curve()
        echo_json({**found.to_dict(), "frequency_curve": curve})
        return
    print_table(path, *stats_table(found))
    encoding = sys.stdout.encoding or "ascii"
    lines = draw_curve(found.overall.label_counts, braille=encoding.lower().startswith("utf"))
    echo("\n" + "\n".join(lines))


@app.command("list")
def list_command(
    name: Annotated[str | None, typer.Argument(help="Show all that is known of this one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the known data sets, or all that is known of one."""
    from labelwise.cli.data_views import show_entry, sum_of
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
            rows.append([one, *map(number, figures), known.format, sum_of(known.sources[0].sha256), here])
        columns = ["name", "train", "test", "labels", "format", "checksum", "downloaded"]
        print_table("known data sets", columns, rows)
        echo("\nlabelwise data list NAME tells more, labelwise data download NAME gets one")
    else:
        show_entry(name)


# --- changing ----------------------------------------------------------------------------------------------


@app.command("convert")
def convert_command(
    path: PathArgument,
    output: Annotated[str, typer.Argument(metavar="OUT", help="File, or folder for all parts.")],
    from_format: FromOption = "auto",
    to_format: ToOption = None,
    split: PartOption = None,
    force: ForceOption = False,
    settings: ReadOption = None,
    drop: DropOption = None,
) -> None:
    """Write a data set in another format.

    A folder is written with all its parts, with --split one of them. Without --to the output's extension
    decides, and a folder is written in our own format, which keeps everything. xc, vowpal and tfrecord may be
    larger than memory: their rows go over files beside OUT.
    Formats: native, pecos, lines, tfrecord, jsonl, fasttext, xc, csv, tsv, vowpal.
    """
    from labelwise.data.convert import convert

    place, found_format = _place(path, from_format)
    documents = convert(place, output, found_format, to_format, split, _options(settings), force, drop or [])
    echo(f"{output}: {documents:,} documents")


@app.command("split")
def split_command(
    path: PathArgument,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Folder for the two parts.")],
    fraction: Annotated[float, typer.Option(help="Share of the documents that go to test.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Another seed draws other documents.")] = 0,
    from_format: FromOption = "auto",
    to_format: ToOption = None,
    split: PartOption = None,
    force: ForceOption = False,
    settings: ReadOption = None,
    drop: DropOption = None,
) -> None:
    """Draw a test set at random.

    OUT gets a train part and a test part, in the input's format unless --to says otherwise.
    """
    from labelwise.data.read import detect, read
    from labelwise.data.write import write_splits

    place, found_format = _place(path, from_format)
    data = read(place, found_format, split, _options(settings))
    train, test = data.split(fraction, seed)
    chosen = to_format or (detect(place).name if found_format == "auto" else found_format)
    write_splits({"train": train, "test": test}, output, chosen, force, drop or [])
    echo(f"{output}: {len(train):,} documents in train, {len(test):,} in test")


# --- getting -----------------------------------------------------------------------------------------------


@app.command("download")
def download_command(
    name: Annotated[str, typer.Argument(help="Name of a known data set; labelwise data list shows them.")],
    folder: Annotated[
        str | None,
        typer.Option(help="Where data sets are kept. [$LABELWISE_DATA or ~/.cache/labelwise/data]"),
    ] = None,
    force: ForceOption = False,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="Take the files from URL/FILE.")] = None,
    check: Annotated[bool, typer.Option(help="Read the data and compare it with the published figures.")] = True,
) -> None:
    """Download a known data set and check it.

    Goes on where an earlier try was cut. Exits with 2 if the figures differ from the published ones; the data
    is kept all the same and can be used.
    """
    from labelwise.cli.data_views import show_check
    from labelwise.data.catalogue import entry
    from labelwise.data.download import download
    from labelwise.data.published import check as compared

    echo(f"{name}: {entry(name).title}. Licence: {entry(name).licence}.")
    found = download(name, folder, force, mirror)
    for file in found.files:
        echo(f"{file.path.name}: {file.bytes:,} bytes, SHA-256 {file.sha256}")
    echo(f"{found.folder}: {'was there already' if found.was_there else 'ready'}")
    if check and not found.was_there:
        show_check(name, found.folder, compared(name, folder))


@app.command("build")
def build_command(
    corpus: Annotated[Corpus, typer.Argument(help="pydocs: docstrings of installed packages.")],
    output: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write.")],
    package: Annotated[
        list[str] | None, typer.Option(help="An installed package; `all` for all. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws another test set.")] = 0,
    limit: Annotated[int | None, typer.Option(min=10, help="Keep so many documents at most.")] = None,
    min_label_count: Annotated[int, typer.Option(min=1, help="Drop labels with fewer documents.")] = 1,
    force: ForceOption = False,
) -> None:
    """Build a real corpus from the documentation of installed packages."""
    from labelwise.data.builders.pydocs import build_pydocs

    del corpus  # there is one
    built = build_pydocs(output, package, seed, limit, min_label_count, force)
    echo(
        f"{output}: {built.train:,} documents in train, {built.test:,} in test, {built.labels:,} labels, "
        f"{built.mean_labels:.2f} labels a document"
    )


# --- reading -----------------------------------------------------------------------------------------------


def _options(settings: list[str] | None) -> ReadOptions:
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions

    source = ConfigSource({}, "--set").override(settings or [])
    return validated(ReadOptions, source.values, source)


def _place(path: str, format: str) -> tuple[Path, str]:
    """Where the data lies and in which format: a path that exists, else a known data set's folder."""
    from labelwise.data.catalogue import downloaded_folder, entry, names

    if Path(path).exists() or path not in names():
        return Path(path), format

    return downloaded_folder(path), entry(path).format if format == "auto" else format


def _read_parts(path: str, format: str, options: ReadOptions) -> dict[str, Dataset]:
    from labelwise.data.read import read, read_splits

    place, format = _place(path, format)
    if place.is_dir():
        return read_splits(place, format, options)
    return {"data": read(place, format, None, options)}
