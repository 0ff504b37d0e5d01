"""Vectors of documents into a .npy file: in batches, through memory mapping, and going on after a kill.

Until it is done the file has a hidden name, with a small JSON file beside it that tells how many rows are written and
of which model and documents they are. Batches begin at the same rows whether a run was stopped or not, so the result is
the same to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.atomic import replacing
from labelwise.data.blocks import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.stream import warn_replaced
from labelwise.errors import ConfigError, DataError
from labelwise.finished import fingerprint
from labelwise.progress import progress
from labelwise.runs.documents import Request, decoded, is_text, opened
from labelwise.runs.load_data import read_part
from labelwise.store import MANIFEST
from labelwise.strings import Strings

log = logging.getLogger("labelwise")

BATCH = 2048
TYPES = ("float32", "float16")


@dataclass(frozen=True)
class DocumentEncoder:
    """Something that makes vectors, and a name that changes when the vectors would."""

    encode: Callable[[Any], np.ndarray]
    identity: str


def trained_encoder(folder: Path) -> DocumentEncoder:
    """The encoder in a model folder."""
    from labelwise.methods.base import load

    model = load(folder)
    return DocumentEncoder(model.encode, hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest())


def plain_encoder(config: Any) -> DocumentEncoder:
    """A pretrained encoder as it comes, from an `EncoderConfig`."""
    try:
        from labelwise.encoders.embed import encode_texts
        from labelwise.encoders.transformer import open_encoder
    except ModuleNotFoundError as error:
        from labelwise.errors import MissingDependencyError

        raise MissingDependencyError(str(error.name), "nn", "encode") from None
    from labelwise.device import computing_device, torch_threads

    encoder = open_encoder(config, Strings.of(()), seed=0).to(computing_device())
    folder = Path(config.model).expanduser()
    files = (
        sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in folder.iterdir()) if folder.is_dir() else []
    )

    def encode(documents: Any) -> np.ndarray:
        texts = documents.texts if isinstance(documents, Dataset) else documents
        if texts is None:
            raise DataError("the data has no texts to encode")
        with torch_threads():
            return encode_texts(encoder, texts)

    return DocumentEncoder(encode, json.dumps([config.model_dump(mode="json"), files]))


def encode_file(encoder: DocumentEncoder, request: Request, output: str, kind: str, force: bool) -> None:
    """Write one row for each document to a .npy file."""
    target = Path(output)
    if target.suffix != ".npy":
        raise ConfigError(f"{output}: vectors are written as .npy; give a name that ends so")
    if kind not in TYPES:
        raise ConfigError(f"dtype: {' or '.join(TYPES)}, got '{kind}'")
    if target.exists() and not force:
        raise DataError(f"{target} exists already; --force replaces it")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: there is no such folder")
    documents = _documents(request)
    work = _Unfinished(target, fingerprint(encoder.identity, kind, BATCH, *_content(documents)))
    with progress("encoding", len(documents)) as step:
        step(work.done)
        for begin in range(work.done, max(len(documents), 1), BATCH):
            rows = slice(begin, begin + BATCH)
            vectors = encoder.encode(documents.take(rows) if isinstance(documents, Dataset) else documents[rows])
            work.write(begin, vectors, len(documents), kind)
            step(len(vectors))
    work.finish()


def _documents(request: Request) -> Strings | Dataset:
    """All documents; they are small beside their vectors."""
    if not is_text(request):
        return read_part(request.documents, request.format, request.split, request.options, labels=False)
    name = "stdin" if request.documents == "-" else request.documents
    with opened(request.documents) as stream:
        lines = stream.read().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    texts, replaced = decoded(lines, name, 1, request.options)
    warn_replaced(name, replaced, request.options.encoding)
    return Strings.of(texts)


def _content(value: Any) -> Iterator[Any]:
    """The content of some documents, of whatever kind, for a fingerprint."""
    if isinstance(value, Dataset):
        for part in ("texts", "features", "paths", "arrays"):
            if getattr(value, part) is not None:
                yield part
                yield from _content(getattr(value, part))
    elif isinstance(value, Blocks):
        for block in (value.sparse, value.dense):
            if block is not None:
                yield from _content(block)
    elif isinstance(value, Strings):
        packed = value.compact()
        yield from (packed.buffer, packed.ends)
    elif isinstance(value, np.ndarray):
        yield value
    else:
        yield list(map(int, value.shape))
        yield from (value.indptr, value.indices, value.data)


class _Unfinished:
    """The rows written so far, under a hidden name beside the target."""

    def __init__(self, target: Path, own: str) -> None:
        self.target, self.fingerprint = target, own
        self.rows = target.with_name(f".{target.name}.part")
        self.note = target.with_name(f".{target.name}.part.json")
        self.mapped: np.ndarray | None = None
        self.done = self._found()
        if self.done:
            log.info("%s: resuming after %s rows", target, f"{self.done:,}")

    def _found(self) -> int:
        """Rows of an earlier try that are whole and of the same model and documents."""
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            mapped = np.load(self.rows, mmap_mode="r+")
            if note["fingerprint"] == self.fingerprint and 0 < note["done"] <= len(mapped):
                self.mapped = mapped
                return int(note["done"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0

    def write(self, begin: int, vectors: np.ndarray, total: int, kind: str) -> None:
        """Rows from `begin` on; what is written is on the disk before the note says so."""
        if self.mapped is None:
            self.mapped = self._created(total, vectors.shape[1], kind)
        self.mapped[begin : begin + len(vectors)] = vectors
        if isinstance(self.mapped, np.memmap):
            self.mapped.flush()
        self.done = begin + len(vectors)
        with replacing(self.note) as file:
            json.dump({"fingerprint": self.fingerprint, "done": self.done}, file)

    def _created(self, total: int, width: int, kind: str) -> np.ndarray:
        self.note.unlink(missing_ok=True)
        if total == 0:  # nothing can be mapped
            empty = np.empty((0, width), kind)
            with self.rows.open("wb") as file:
                np.save(file, empty)
            return empty
        mapped = np.lib.format.open_memmap(self.rows, "w+", np.dtype(kind), (total, width))
        if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash while writing to the mapping
            with self.rows.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, self.rows.stat().st_size)
        return mapped

    def finish(self) -> None:
        """Put the file in its place."""
        os.replace(self.rows, self.target)
        self.note.unlink(missing_ok=True)
