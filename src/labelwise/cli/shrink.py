"""labelwise shrink MODEL --precision int8"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import ForceOption, ReadSetOption
from labelwise.cli.terminal import echo

if TYPE_CHECKING:
    from labelwise.config import ConfigSource
    from labelwise.data.dataset import Dataset
    from labelwise.runs.shrink import Size

log = logging.getLogger("labelwise")


def shrink_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    precision: Annotated[str | None, typer.Option(help="Store the weights as float16 or int8.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Drop weights with an absolute value below this.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder of the smaller model. Not given: MODEL-small.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled documents to compare both models on. Not given: those of the run.")
    ] = None,
    split: Annotated[str, typer.Option(help="Part to use when DATA is a folder.")] = "test",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Make a trained model smaller, without training.

    Prints sizes before and after. With --data, or if MODEL is a run whose data is still there, also metrics and
    documents per second of both. MODEL itself stays as it is, unless it is named with -o and --force.
    """
    from labelwise.cli.tables import print_table, show_remarks
    from labelwise.config import ConfigSource, validated
    from labelwise.errors import ConfigError
    from labelwise.methods.base import load
    from labelwise.run_schema import model_folder
    from labelwise.runs.config import EvaluateSection
    from labelwise.runs.open_model import section_of_run
    from labelwise.runs.shrink import shrink_model

    source = ConfigSource({}, "shrink").override(overrides or [])
    if precision is None and threshold is None:
        raise ConfigError("give --threshold 0.2, --precision int8 (or float16) for weights of more bits, or both")
    target = Path(output) if output is not None else _beside(model)
    if target.exists() and not force:
        raise ConfigError(f"{target} exists already; --force replaces it, -o names another folder")
    section = validated(EvaluateSection, section_of_run(model, "evaluate"), source)
    documents = _documents(model, data, split, format, source)
    before, after = shrink_model(model, target, precision, threshold, documents, section, force)
    on = "" if documents is None else f", on {len(documents):,} documents of {documents.name}"
    print_table(f"{model_folder(model)} and {target}{on}", ["", "before", "after"], _rows(before, after))
    show_remarks(after.remarks)
    echo(f"model: {target}")
    if load(target, verify=False).calibration_ is not None:
        echo(
            "the calibration was kept, although scores differ slightly; "
            f"labelwise calibrate {target} DATA --force fits it again"
        )


def _beside(model: str) -> Path:
    path = Path(model).resolve() if Path(model).name in ("", ".", "..") else Path(model)
    return path.with_name(f"{path.name}-small")


def _documents(model: str, data: str | None, split: str, format: str, source: ConfigSource) -> Dataset | None:
    from labelwise.errors import LabelwiseError
    from labelwise.runs.load_data import read_part
    from labelwise.runs.open_model import read_options
    from labelwise.runs.shrink import data_of_run

    if data is not None:
        return read_part(data, format, split, read_options(model, data, source.values, source))
    try:
        documents = data_of_run(model)
    except LabelwiseError as error:
        log.warning("only sizes are compared, because the data of the run cannot be read: %s", error)
        return None
    if documents is None:
        log.info("only sizes are compared; --data gives documents to compare both models on")
    return documents


def _rows(before: Size, after: Size) -> list[list[str]]:
    from labelwise.formatting import number, percent, size

    smaller = f"{size(after.bytes)} ({after.bytes / before.bytes:.0%})"
    rows = [["size", size(before.bytes), smaller]]
    rows += [[f"{name}, %", percent(value), percent(after.values.get(name))] for name, value in before.values.items()]
    if before.documents_per_second is not None:
        rates = (before.documents_per_second, after.documents_per_second)
        rows.append(["documents per second", *(number(rate, 0) for rate in rates)])
    return rows
