"""Converts the JSON documents of EURLEX57K to line files.

The collection exists in two forms: a folder with one JSON file per document (`train/31958R0001.json`, labels under
`concepts`) and a file with one JSON document per line (`train.jsonl`, labels under `eurovoc_concepts`). Both contain
`celex_id`, `title`, `header`, `recitals` and `main_body`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labelwise.data.options import ALIASES
from labelwise.errors import DataError

CONCEPTS = "eurovoc_concepts.jsonl"
_ZONES = ("title", "header", "recitals", "main_body")
_LABELS = ("concepts", "eurovoc_concepts")
_MISSING = object()


def prepare(unpacked: Path, ready: Path) -> None:
    """Write `train_texts.txt`, `train_labels.txt` and so on, and label texts if the source has them."""
    from labelwise.data.csr import labels_from_lists
    from labelwise.data.dataset import Dataset
    from labelwise.data.write import write_splits
    from labelwise.strings import Strings

    parts: dict[str, Dataset] = {}
    for split, aliases in ALIASES.items():
        texts: list[str] = []
        labels: list[list[str]] = []
        for where, document in _split(unpacked, aliases):
            texts.append(text_of(document, where))
            labels.append(labels_of(document, where))
        if texts:
            matrix, names = labels_from_lists(labels)
            parts[split] = Dataset(matrix, names, texts=Strings.of(texts), name=split)
    if not parts:
        expected = "folders train, dev and test with .json files, or train.jsonl and so on"
        raise DataError(f"no documents were found; expected {expected}", unpacked)
    write_splits(parts, ready, "lines")
    _write_label_names(unpacked, ready)


def _split(folder: Path, aliases: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The documents of one part in the order of their names or lines, each with its file and line."""
    for name in aliases:
        for match in sorted(folder.rglob(name)):
            for path in sorted(match.glob("*.json")) if match.is_dir() else ():
                yield str(path), _load(path.read_bytes(), str(path))
        for path in sorted(folder.rglob(f"{name}.jsonl")):
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield f"{path}:{number}", _load(line, f"{path}:{number}")


def _load(content: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON document: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{where}: a JSON object is needed, this is a {type(document).__name__}")
    return document


def text_of(document: dict[str, Any], where: str) -> str:
    """Title, header, recitals and main body in one line."""
    pieces: list[str] = []
    for zone in _ZONES:
        value = document.get(zone)
        for piece in value if isinstance(value, list) else [value]:
            if piece is not None and not isinstance(piece, str):
                raise DataError(f"{where}: '{zone}' contains a {type(piece).__name__}, a string is needed")
            pieces.append(piece or "")
    text = " ".join(" ".join(pieces).split())
    if not text:
        raise DataError(f"{where}: all of {', '.join(_ZONES)} are empty")
    return text


def labels_of(document: dict[str, Any], where: str) -> list[str]:
    """The concepts' ids."""
    ids = next((document[key] for key in _LABELS if key in document), _MISSING)
    if not isinstance(ids, list) or not all(isinstance(label, str | int) for label in ids):
        raise DataError(f"{where}: a list of ids is needed under 'concepts' or 'eurovoc_concepts'")
    return [str(label).strip() for label in ids]


def _write_label_names(unpacked: Path, ready: Path) -> None:
    from labelwise.data.stream import write_stream

    source = unpacked / CONCEPTS
    if not source.is_file():
        return
    with source.open("rb") as lines, write_stream(ready / "label_names.tsv") as file:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            concept = _load(line, f"{source}:{number}")
            name, text = (" ".join(str(concept.get(key, "")).split()) for key in ("id", "title"))
            if name and text:
                file.write(f"{name}\t{text}\n".encode())
