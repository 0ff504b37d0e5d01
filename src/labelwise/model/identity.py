"""The identity of a fit: one hash of everything that decides its result, so that no unfinished work is used wrongly.

It is computed once per fit: of the method, the settings that decide a trained part, the contents of files and folders
that they name, all of the training data and, where a method reads them, the held-out documents.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from labelwise.config import PART, Config, deciding_fields, without_fields
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import KINDS, dataset_hash, document_hashes, text_hashes
from labelwise.errors import ModelFormatError
from labelwise.io.folder import MANIFEST, Folder
from labelwise.runtime.results import fingerprint

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def fit_identity(method: Any, config: Config, train: Dataset | None, valid: Dataset | None = None) -> str:
    """The identity of one fit of a method, or of its class, with this config.

    Without the fields that are `elsewhere` by the config, such as a folder with one lookup table per repetition.
    """
    parameters = without_fields(deciding_fields(config, PART), dict(config.elsewhere))
    reads_valid = valid is not None and method.validates and "valid" not in config.elsewhere
    held_out = content_of(valid) if reads_valid and valid is not None else None
    return fingerprint(
        method.name,
        parameters,
        dict(named_contents(parameters)),
        None if train is None else content_of(train),
        held_out,
    )


def content_of(data: Dataset) -> list[Any]:
    """All of a data set that a method can learn from, as JSON values.

    Documents of every kind that it has, the number of columns of features, which may be larger than any that occurs,
    types of numbers, labels with their values and names, and the texts of labels.
    """
    kinds = [kind for kind in KINDS if getattr(data, kind) is not None]
    hashes = {kind: document_hashes(data, kind) for kind in kinds}
    shapes = {kind: _shapes(getattr(data, kind)) for kind in ("features", "arrays") if kind in kinds}
    labels = [dataset_hash(data, hashes[kinds[0]]) if kinds else "", list(data.labels.shape), data.open_columns]
    texts = None if data.label_texts is None else fingerprint(text_hashes(data.label_texts))
    return [{kind: fingerprint(of_kind) for kind, of_kind in hashes.items()}, shapes, labels, texts]


def _shapes(values: Any) -> list[Any]:
    """Shapes and types of a matrix, or of each block; the first axis is the documents."""
    blocks = (values.sparse, values.dense) if isinstance(values, Blocks) else (values,)
    return [None if block is None else [list(map(int, block.shape)), str(block.dtype)] for block in blocks]


def named_contents(values: Any) -> Iterator[tuple[str, Any]]:
    """What the files and folders hold that are named among plain values, by name; other texts name none."""
    if isinstance(values, Mapping | list | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from named_contents(value)
    elif isinstance(values, str) and values:
        try:
            path = Path(values).expanduser()
            exists = path.exists()
        except (OSError, ValueError, RuntimeError):  # a text that is too long for a path, or has no home
            return
        if not exists and HUB_NAME.fullmatch(values):
            path = _downloaded(values)
        if path is not None and path.is_file():
            yield values, _file_hash(path)
        elif path is not None and path.is_dir():
            yield values, _folder_content(path)


def _folder_content(folder: Path) -> Any:
    """The hashes of all files below a folder, by name; of a model, or a run, those of the model's manifest, unread."""
    for saved in (folder, folder / "model"):
        if (saved / MANIFEST).is_file():
            with suppress(ModelFormatError):
                return Folder(saved, "model", verify=False).manifest["files"]
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix(): _file_hash(path) for path in paths if path.is_file()}


def _file_hash(path: Path) -> str:
    """SHA-256 of a file; of one that may not be read its size and time, because not every text names a file."""
    status = path.stat()
    try:
        return _hash_of(str(path.resolve()), status.st_size, status.st_mtime_ns)
    except OSError:
        return f"unread {status.st_size} {status.st_mtime_ns}"


@lru_cache(maxsize=4096)
def _hash_of(path: str, _size: int, _modified: int) -> str:
    """SHA-256 of a file; known for as long as this process lasts, unless its size or time have changed."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _downloaded(name: str) -> Path | None:
    """The folder of a model of the Hugging Face hub that is on this machine; None without it."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    config = try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None
