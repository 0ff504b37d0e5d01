"""Writes document vectors to a .npy file: in batches, memory-mapped, resumable after a kill.

An unfinished file has a hidden name, with a small JSON file beside it that records how many rows are written and a
fingerprint of model and documents. Batches begin at the same rows whether a run was interrupted or not, so the result
is the same to the last bit.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.stream import warn_replaced
from labelwise.errors import ConfigError, DataError
from labelwise.formatting import size
from labelwise.io.atomic import lock_output, replacing
from labelwise.runs.data import (
    Request,
    decode_lines,
    is_text,
    open_documents,
    read_part,
    warn_empty,
)
from labelwise.runs.train import manifest_hash, to_send
from labelwise.runtime.job import fingerprint
from labelwise.runtime.progress import Progress, progress
from labelwise.runtime.tasks import HERE, Tasks
from labelwise.strings import Strings

log = logging.getLogger("labelwise")

BATCH = 2048
TYPES = ("float32", "float16")


@dataclass(frozen=True)
class DocumentEncoder:
    """A function from documents to vectors, and an identity that changes when the vectors would."""

    encode: Callable[[Any], np.ndarray]
    identity: str
    opened: tuple[Callable[[Any], DocumentEncoder], Any] | None = None
    """How it was opened: a function and its argument, for tasks in other processes; None: it stays in this one."""

    def __reduce__(self) -> tuple:
        if self.opened is None:
            raise TypeError("this encoder cannot be opened in another process")
        return _reopened, (*self.opened, self.identity)


_opened: dict[str, DocumentEncoder] = {}
"""In a worker: encoders by their identity. Each is opened for the first task, and not while that is received."""


def _reopened(opening: Callable[[Any], DocumentEncoder], given: Any, identity: str) -> DocumentEncoder:
    def encode(documents: Any) -> np.ndarray:
        if identity not in _opened:
            encoder = opening(given)
            if encoder.identity != identity:
                raise ConfigError(
                    f"{given}: a worker sees another encoder than this process: it must be on a file system that all "
                    "nodes share, under the same path"
                )
            _opened[identity] = encoder
        return _opened[identity].encode(documents)

    return DocumentEncoder(encode, identity, (opening, given))


def trained_encoder(folder: Path) -> DocumentEncoder:
    """The encoder in a model folder."""
    from labelwise.model.method import load

    folder = folder.absolute()
    return DocumentEncoder(load(folder).encode, manifest_hash(folder), (trained_encoder, folder))


def pretrained_encoder(config: Any) -> DocumentEncoder:
    """A pretrained encoder without further training, from an `EncoderConfig`."""
    try:
        from labelwise.nn.encode import encode_corpus, open_cache
        from labelwise.nn.text.transformer import open_encoder
    except ModuleNotFoundError as error:
        from labelwise.errors import MissingDependencyError

        raise MissingDependencyError(str(error.name), "nn", "encode") from None
    from labelwise.nn.encode import cache_folder
    from labelwise.runtime.device import computing_device, torch_threads

    encoder = open_encoder(config, Strings.of(()), seed=0).to(computing_device())
    folder = Path(config.model).expanduser()
    files = sorted(
        (str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in (folder.rglob("*") if folder.is_dir() else ())
        if path.is_file() and path.suffix != ".npy"  # vectors may be written into the folder
    )

    cache = None

    def encode(documents: Any) -> np.ndarray:
        nonlocal cache
        texts = documents.texts if isinstance(documents, Dataset) else documents
        if texts is None:
            raise DataError("the data has no texts to encode")
        kept_in = cache_folder(len(texts))
        if cache is None and kept_in is not None:
            cache = open_cache(encoder, kept_in)  # once: the fingerprint reads all weights
        with torch_threads():
            return encode_corpus(encoder, texts, folder=cache)

    return DocumentEncoder(encode, json.dumps([config.model_dump(mode="json"), files]), (pretrained_encoder, config))


def encode_some(encoder: DocumentEncoder, documents: Strings | Dataset) -> np.ndarray:
    """A task: the vectors of some documents."""
    return encoder.encode(documents)


def encode_file(
    encoder: DocumentEncoder,
    request: Request,
    output: str,
    dtype: str,
    force: bool,
    batch_size: int | None = None,
    tasks: Tasks = HERE,
) -> None:
    """Write one row per document to a .npy file, `batch_size` of them at a time (2,048 if None)."""
    target = Path(output)
    if target.suffix != ".npy":
        raise ConfigError(f"{output}: vectors are written as .npy; give a name that ends in .npy")
    if dtype not in TYPES:
        raise ConfigError(f"dtype: {' or '.join(TYPES)}, got '{dtype}'")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: there is no such folder")
    with lock_output(target):
        if target.exists() and not force:
            raise DataError(f"{target} exists already; --force replaces it")
        _write_vectors(encoder, _documents(request), target, dtype, batch_size or BATCH, tasks)


def _write_vectors(
    encoder: DocumentEncoder, documents: Strings | Dataset, target: Path, dtype: str, size_of_batch: int, tasks: Tasks
) -> None:
    work = _Unfinished(target, fingerprint(encoder.identity, dtype, size_of_batch, *_content(documents)))
    with progress("encoding", len(documents)) as step, tasks.share(encoder) as shared:
        step.start_at(work.done)
        begins = range(work.done, max(len(documents), 1), size_of_batch)
        batches = _batches(documents, begins, step, tasks)
        encoded = tasks.map(encode_some, batches, shared, ordered=True)
        for begin, (_, vectors) in zip(begins, encoded, strict=True):
            work.write(begin, vectors, len(documents), dtype)
    work.finish()
    vectors = np.load(target, mmap_mode="r")
    log.info("%s: %s vectors of %s numbers, %s, %s", target, f"{len(vectors):,}", f"{vectors.shape[1]:,}",
             vectors.dtype, size(vectors.nbytes))  # fmt: skip


def _batches(documents: Strings | Dataset, begins: range, step: Progress, tasks: Tasks) -> Iterator[Strings | Dataset]:
    for begin in begins:
        rows = slice(begin, begin + begins.step)
        some = documents.take(rows) if isinstance(documents, Dataset) else documents[rows]
        with step.part(len(some)):
            yield some if tasks.shares_memory else to_send(some)


def _documents(request: Request) -> Strings | Dataset:
    """Read all documents; they are small compared with their vectors."""
    if not is_text(request):
        return read_part(request.documents, request.format, request.split, request.options, labels=False)
    name = "stdin" if request.documents == "-" else request.documents
    with open_documents(request.documents) as stream:
        lines = stream.read().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        warn_empty(name)
    texts, replaced = decode_lines(lines, name, 1, request.options)
    warn_replaced(name, replaced, request.options.encoding)
    return Strings.of(texts)


def _content(value: Any) -> Iterator[Any]:
    """The contents of documents of any type, for a fingerprint."""
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
        self.progress_file = target.with_name(f".{target.name}.part.json")
        self.mapped: np.ndarray | None = None
        self.done = self._resume()
        if self.done:
            log.info("%s: resuming after %s rows", target, f"{self.done:,}")

    def _resume(self) -> int:
        """Map the rows of an earlier attempt with the same model and documents; returns how many are complete."""
        try:
            written = json.loads(self.progress_file.read_text(encoding="utf-8"))
            mapped = np.load(self.rows, mmap_mode="r+")
            if written["fingerprint"] == self.fingerprint and 0 < written["done"] <= len(mapped):
                self.mapped = mapped
                return int(written["done"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0

    def write(self, begin: int, vectors: np.ndarray, total: int, dtype: str) -> None:
        """Write rows from `begin` on; they are flushed to disk before the progress file counts them."""
        if self.mapped is None:
            self.mapped = self._create(total, vectors.shape[1], dtype)
        self.mapped[begin : begin + len(vectors)] = vectors
        if isinstance(self.mapped, np.memmap):
            self.mapped.flush()
        self.done = begin + len(vectors)
        with replacing(self.progress_file) as file:
            json.dump({"fingerprint": self.fingerprint, "done": self.done}, file)

    def _create(self, total: int, width: int, dtype: str) -> np.ndarray:
        self.progress_file.unlink(missing_ok=True)
        if total == 0:  # nothing can be mapped
            empty = np.empty((0, width), dtype)
            with self.rows.open("wb") as file:
                np.save(file, empty)
            return empty
        mapped = np.lib.format.open_memmap(self.rows, "w+", np.dtype(dtype), (total, width))
        if hasattr(
            os, "posix_fallocate"
        ):  # a full disk raises an error here instead of SIGBUS while writing to the mapping
            with self.rows.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, self.rows.stat().st_size)
        return mapped

    def finish(self) -> None:
        """Rename the file to its final name."""
        os.replace(self.rows, self.target)
        self.progress_file.unlink(missing_ok=True)
