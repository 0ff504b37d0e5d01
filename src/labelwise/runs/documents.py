"""Input documents of a command: a file of texts, one per line, standard input, or a data set."""

from __future__ import annotations

import io
import logging
import shlex
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelwise.data.catalogue import names as named_sets
from labelwise.data.catalogue import near_sets
from labelwise.data.formats.workbook import OTHER_SPREADSHEETS
from labelwise.data.image_files import is_image_name
from labelwise.data.options import ReadOptions
from labelwise.data.read import FORMATS, format_named
from labelwise.data.splits import stem_and_extension
from labelwise.data.stream import decoded_line, open_stream
from labelwise.errors import ConfigError, DataError

log = logging.getLogger("labelwise")

PIECE = 1 << 20
"""Bytes read at a time."""


@dataclass(frozen=True)
class Request:
    """Which documents to predict for, and which predictions to output."""

    documents: str
    """A file, a folder, the name of a known data set, `-` for standard input, or a text."""
    format: str = "auto"
    """`text` for one text (or path, if the model reads files) per line, a data format, or `auto`: a data format if the
    name says so, text otherwise."""
    split: str = "test"
    options: ReadOptions = field(default_factory=ReadOptions)
    k: int | None = None
    """Maximum number of labels per document. None: 10, or as many as reach the threshold."""
    threshold: float | None = None
    labels: str | None = None
    """File of allowed labels, one per line."""
    label_weights: str | None = None
    """File of label<TAB>factor lines; scores are multiplied by the factors."""
    explain: int | None = None
    """Words to list per predicted label: those that contributed most."""
    is_the_text: bool = False
    """Whether `documents` is a text itself."""
    features: str | None = None
    """File of vectors next to the documents."""


def is_text_argument(argument: str, format: str, model: str) -> bool:
    """Whether an argument is a text and not the name of documents: there is no such file, and it has a blank.

    Raises an error that names both readings, and the command for a text with this model, if it can be neither.
    """
    if argument == "-" or format not in ("auto", "text"):
        return False
    if not argument.strip():
        raise ConfigError("no text given: the argument is empty; give a text, a file, or - for standard input")
    try:
        if Path(argument).exists() or argument in named_sets():
            return False
    except (OSError, ValueError):
        return True  # no path at all: too long, or with a NUL byte
    file_name = stem_and_extension(Path(argument))[1] in {*_data_extensions(), ".txt"}
    if len(argument.split()) > 1 and not file_name:
        return True
    question = near_sets(argument)
    hint = f" ({question})" if question else ""
    reading = "it looks like the name of a file" if file_name else "a text has more than one word"
    if is_image_name(argument):
        raise DataError(f"there is no file '{argument}'{hint}")
    raise DataError(
        f"there is no file, folder or known data set '{argument}'{hint}, and as a text it is not read, because "
        f"{reading}; to read it as a text: echo {shlex.quote(argument)} | "
        f"labelwise predict {shlex.quote(model)}"
    )


def is_text(request: Request) -> bool:
    """Whether the documents are plain text, one per line."""
    if request.is_the_text:
        return True
    if request.documents == "-":
        if request.format not in ("auto", "text"):
            raise ConfigError("standard input is read as texts, one per line; other formats need a file")
        return True
    if request.format != "auto":
        return request.format == "text"
    path = Path(request.documents)
    return path.is_file() and stem_and_extension(path)[1] not in {*_data_extensions(), *OTHER_SPREADSHEETS}


def _data_extensions() -> set[str]:
    """Extensions of data formats, without .txt, which may be anything."""
    formats = [format_named(name) for name in FORMATS]
    return {extension for one in formats for extension in (one.extension, *one.other_extensions)} - {"", ".txt"}


def open_documents(documents: str) -> Any:
    """Open a file (decompressed) or standard input, in binary mode."""
    if documents == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed: give a file", "stdin")
        return nullcontext(sys.stdin.buffer)
    return io.BufferedReader(open_stream(documents), PIECE)


def warn_empty(name: str) -> None:
    """Warn of a file or stream of lines without any: a stream may be empty, a file is more likely the wrong one."""
    log.warning("%s: there are no documents, it is empty; one per line is expected", name)


def decode_lines(lines: Iterable[bytes], name: str, first: int, options: ReadOptions) -> tuple[list[str], int]:
    """Decode lines, numbered from `first`; also returns in how many lines invalid bytes were replaced."""
    lines_and_flags = [
        decoded_line(line.removesuffix(b"\r"), name, number, options.encoding, options.on_bad_bytes)
        for number, line in enumerate(lines, first)
    ]
    return [text for text, _ in lines_and_flags], sum(replaced for _, replaced in lines_and_flags)
