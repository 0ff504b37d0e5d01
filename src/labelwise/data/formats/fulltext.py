"""`fulltext`: a folder with one text file per document, and its labels in a file of the same name. Only read.

`report.txt` has its labels in `report.tsv` (a label, or `<label><TAB>label text`, per line) or in `report.key` (a label
per line). This is the layout of Annif's full-text corpora. Names without extension are the documents' ids.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from labelwise.data.dataset import Dataset, labels_from_lists
from labelwise.data.formats.base import Format
from labelwise.data.options import (
    LABEL_NAMES,
    ReadOptions,
    canonical_split,
    files_in,
    named_parts,
    natural_order,
    split_of,
    stem_and_extension,
)
from labelwise.data.stream import (
    decoded_line,
    first_bytes,
    open_stream,
    text_codec,
    warn_replaced,
)
from labelwise.data.tables import refuse_empty
from labelwise.strings import Strings

NAME = "fulltext"
LABEL_FILES = (".tsv", ".key")
_IDENTIFIER = re.compile(rb"<[^>\t]+>|[a-zA-Z][a-zA-Z0-9+.\-]*://\S+")
"""What the first line of a .tsv file with labels begins with; other .tsv files are tables of documents."""


def recognises(path: Path) -> bool:
    """Whether a folder has a text file with a file of labels, other than files that are named like a split."""
    if not path.is_dir():
        return False
    files = files_in(path)
    stems = {stem_and_extension(file)[0] for file in files if _is_document(file)}
    return any(stem_and_extension(file)[0] in stems and _holds_labels(file) for file in files)


def recognises_unlabelled(path: Path) -> bool:
    return path.is_dir() and any(map(_is_document, files_in(path)))


def _is_document(file: Path) -> bool:
    stem, extension = stem_and_extension(file)
    return extension == ".txt" and split_of(stem) is None and not stem.endswith(LABEL_NAMES)


def _holds_labels(file: Path) -> bool:
    extension = file.suffix.lower()
    return extension == ".key" or (extension == ".tsv" and bool(_IDENTIFIER.match(first_bytes(file, 4096).lstrip())))


def parts(folder: Path) -> dict[str, Path]:
    """The folder itself, or its sub-folders whose names contain a split."""
    if recognises(folder):
        return {canonical_split(folder.name): folder}
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and split_of(path.name))
    except OSError:
        return {}
    return named_parts({path: path.name for path in inside if recognises(path)})


def read(path: Path, options: ReadOptions) -> Dataset:
    files = sorted((file for file in files_in(path) if stem_and_extension(file)[1] == ".txt"), key=natural_order)
    refuse_empty(len(files), path)
    texts: list[str] = []
    lists: list[list[str]] = []
    label_texts: dict[str, str] = {}
    replaced = 0
    for file in files:
        lines, bad = _lines(file, options)
        texts.append("\n".join(lines).rstrip())
        replaced += bad
        labels = _labels_of(file, options, label_texts) if options.labels else []
        lists.append(labels)
    warn_replaced(path, replaced, options.encoding)
    matrix, names = labels_from_lists(lists)
    known = Strings.of(label_texts.get(name, name) for name in names) if label_texts else None
    ids = Strings.of(stem_and_extension(file)[0] for file in files)
    return Dataset(matrix, names, texts=Strings.of(texts), ids=ids, label_texts=known, name=str(path))


def _lines(file: Path, options: ReadOptions) -> tuple[list[str], int]:
    """The lines of a file, and in how many of them bytes were replaced."""
    with open_stream(file) as stream:
        raw = stream.read().removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode(text_codec(options.encoding))
        text.encode()
        return text.replace("\r\n", "\n").split("\n"), 0
    except UnicodeError:
        lines = [
            decoded_line(line.removesuffix(b"\r"), file, number, options.encoding, options.on_bad_bytes)
            for number, line in enumerate(raw.split(b"\n"), 1)
        ]
        return [text for text, _ in lines], sum(bad for _, bad in lines)


def _labels_of(file: Path, options: ReadOptions, label_texts: dict[str, str]) -> list[str]:
    """The labels of a document, none without a file of labels; their texts are added to `label_texts`."""
    stem = stem_and_extension(file)[0]
    found = next((path for end in LABEL_FILES if (path := file.with_name(stem + end)).is_file()), None)
    if found is None:
        return []
    labels = []
    for line in _lines(found, options)[0]:
        name, _, text = (line, "", "") if found.suffix == ".key" else line.partition("\t")
        name = name.strip()
        if name.startswith("<") and name.endswith(">"):
            name = name[1:-1]
        if name:
            labels.append(name)
            if text.strip():
                label_texts.setdefault(name, text.strip())
    return labels


FORMAT = Format(
    name=NAME,
    about="a folder with one .txt file per document and its labels in .tsv or .key beside it; only read",
    recognises=recognises,
    read=read,
    write=None,
    parts=parts,
    extension="",
    recognises_unlabelled=recognises_unlabelled,
)
