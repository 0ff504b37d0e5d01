"""labelwise explain MODEL [TEXT]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.options import ReadSetOption
from labelwise.cli.terminal import echo, echo_json

if TYPE_CHECKING:
    from labelwise.config import ConfigSource
    from labelwise.data.dataset import Dataset


def explain_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    text: Annotated[str | None, typer.Argument(help="The text itself; - reads it from stdin.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="Explain this label, predicted or not. May be repeated.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of best labels to explain.")] = 3,
    terms: Annotated[
        int | None, typer.Option(help="Words to show per label, 10; of images: parts per side that are covered, 8.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.png", help="Of an image: also draw the maps.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Take the document from this data file, folder or data set.")] = None,
    document: Annotated[str, typer.Option(help="With --data: the document's id, or its index from 0.")] = "0",
    split: Annotated[str, typer.Option(help="Part to use when the data is a folder.")] = "test",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: ReadSetOption = None,
) -> None:
    """Explain predicted labels: words and tree paths, or parts of an image.

    Shows for each label the words with the largest contributions for and against it, and its path in each tree. For an
    image (TEXT is its path): how much the score depends on each part, by covering it.
    """
    from labelwise.cli.explanations import show_explanation
    from labelwise.cli.sources import stdin_text
    from labelwise.config import ConfigSource
    from labelwise.errors import ConfigError
    from labelwise.methods.base import load

    if text is not None and data is not None:
        raise ConfigError("give a TEXT or a document of --data, not both")
    nothing = "no text given: explain MODEL 'some text', - for standard input, or --data FILE --document 17"
    if data is None and not (text or "").strip():
        raise ConfigError(nothing)
    source = ConfigSource({}, "explain").override(overrides or [])
    fitted = load(model)
    given: Any = text
    if data is not None:
        given = _document(model, data, document, split, format, source)
    elif text == "-":
        given = stdin_text("the text")
        if not given.strip():
            raise ConfigError(nothing)
    count = {"terms": terms if terms is not None or fitted.shows_pixels else 10}
    explanations = fitted.explain(given, label or None, k=k, **count)
    if output is not None:
        from labelwise.methods.pixel_map import write_maps

        write_maps(explanations, output)
    if json_output:
        echo_json([one.to_dict() for one in explanations])
        return
    for index, one in enumerate(explanations):
        if index:
            echo("")
        show_explanation(one)


def _document(model: str, data: str, document: str, split: str, format: str, source: ConfigSource) -> Dataset:
    from labelwise.errors import DataError
    from labelwise.runs.load_data import read_part
    from labelwise.runs.open_model import read_options

    options = read_options(model, data, source.values, source)
    part = read_part(data, format, split, options, labels=False)
    row = part.ids.positions.get(document) if part.ids is not None else None
    if row is None and document.isdecimal() and int(document) < len(part):
        row = int(document)
    if row is None:
        raise DataError(f"{part.name}: there is no document '{document}'; indices go from 0 to {len(part) - 1:,}")
    return part.take(slice(row, row + 1))
