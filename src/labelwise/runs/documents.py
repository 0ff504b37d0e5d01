"""Documents that are given to a command: a file of texts, one per line, standard input, or a data set."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelwise.data.options import ReadOptions
from labelwise.data.read import FORMATS, format_named
from labelwise.data.splits import stem_and_extension
from labelwise.data.stream import decoded_line, open_stream
from labelwise.errors import ConfigError, DataError

PIECE = 1 << 20
"""Bytes read at a time."""


@dataclass(frozen=True)
class Request:
    """What to predict for and how much of it to tell."""

    documents: str
    """A file, a folder, the name of a known data set, or `-` for standard input."""
    format: str = "auto"
    """`text` for one text (or path, if the model reads files) per line, a data format, or `auto`: a data format if the
    name says so, text otherwise."""
    split: str = "test"
    options: ReadOptions = field(default_factory=ReadOptions)
    k: int = 10
    threshold: float | None = None
    labels: str | None = None
    """File of the only labels to choose from, one a line."""
    label_weights: str | None = None
    """File of label<TAB>factor lines: what scores are multiplied by."""


def is_text(request: Request) -> bool:
    """Whether the documents are plain text, one a line."""
    if request.documents == "-":
        if request.format not in ("auto", "text"):
            raise ConfigError("standard input is read as texts, one a line; other formats need a file")
        return True
    if request.format != "auto":
        return request.format == "text"
    path = Path(request.documents)
    return path.is_file() and stem_and_extension(path)[1] not in _data_extensions()


def _data_extensions() -> set[str]:
    """Extensions that say which data format a file has; .txt may be anything."""
    formats = [format_named(name) for name in FORMATS]
    return {extension for one in formats for extension in (one.extension, *one.other_extensions)} - {"", ".txt"}


def opened(documents: str) -> Any:
    """The bytes of a file, unpacked, or of standard input."""
    if documents == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed: give a file", "stdin")
        return nullcontext(sys.stdin.buffer)
    return io.BufferedReader(open_stream(documents), PIECE)


def decoded(lines: Iterable[bytes], name: str, first: int, options: ReadOptions) -> tuple[list[str], int]:
    """Lines as texts, the first one's number being `first`; and in how many of them bytes had to be replaced."""
    found = [
        decoded_line(line.removesuffix(b"\r"), name, number, options.encoding, options.on_bad_bytes)
        for number, line in enumerate(lines, first)
    ]
    return [text for text, _ in found], sum(replaced for _, replaced in found)
