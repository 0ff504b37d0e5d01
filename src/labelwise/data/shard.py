"""Writes a data set as native shards of bounded size, also if it is larger than memory.

Documents are parsed once, into temporary files beside the output, and each shard is written from there: memory holds
labels, offsets of documents and a few megabytes of the documents themselves. All shards of a part have the same labels
in the same order, which are known only at the end of the input. The folder gets its name when it is complete; an
interrupted call leaves nothing behind that would be read, and is started again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.formats import native
from labelwise.data.options import ReadOptions, split_of, stem_and_extension
from labelwise.data.out_of_core import (
    MOST_SHARDS,
    SHARDS,
    SHARDS_OF,
    packed_on_disk,
    scratch_beside,
    shard_name,
    take_mapped,
)
from labelwise.data.read import (
    AUTO,
    DataPath,
    has_parts,
    read,
    read_splits,
)
from labelwise.errors import ConfigError
from labelwise.io.atomic import check_free, data_folder
from labelwise.io.tensors import release_pages
from labelwise.runtime.progress import progress

DEFAULT_SIZE = "512MB"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)B", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
LEAST_BYTES = 1000
DOCUMENT_BYTES, ENTRY_BYTES = 16, 8
"""What a document takes beside its text, and what each of its labels and features takes."""


def shard(
    path: DataPath,
    output: str | Path,
    size: str = DEFAULT_SIZE,
    documents: int | None = None,
    from_format: str = AUTO,
    split: str | None = None,
    options: ReadOptions | Mapping[str, Any] | None = None,
    force: bool = False,
) -> dict[str, int]:
    """Write folders such as train-00000, train-00001 ...; returns the number of shards of each part.

    Parameters
    ----------
    path
        A file, a folder with all its parts, or several, or a pattern, which become one part.
    output
        The folder to write. `labelwise.read` and `data.path` of a config take it.
    size
        Bytes per shard, such as 512MB; a document is never divided.
    documents
        Documents per shard, instead of bytes.
    split
        Of a folder only this part. Of files: the part that they are, unless their name says it; train by default.
    options, force
        As those of `labelwise.read` and `labelwise.write`.
    """
    output, most = Path(output), parse_size(size)
    if documents is not None and documents < 1:
        raise ConfigError(f"documents: 1 or more documents per shard are needed, got {documents}")
    check_free(output, force)
    counts: dict[str, int] = {}
    with scratch_beside(output) as scratch:
        parts = _read_parts(path, from_format, split, options, scratch)
        bounds = {name: list(_bounds(data, most, documents)) for name, data in parts.items()}
        for name, found in bounds.items():
            if len(found) > MOST_SHARDS:
                raise ConfigError(
                    f"{name} would have {len(found):,} shards, and a part has {MOST_SHARDS:,} at most; use a larger "
                    f"{'--size' if documents is None else '--documents'}"
                )
        source = {SHARDS_OF: [str(one) for one in ([path] if isinstance(path, str | Path) else path)], SHARDS: counts}
        with data_folder(output, source, force) as folder:
            for name, data in parts.items():
                counts[name] = _write_shards(data, name, folder, bounds[name], scratch)
    return counts


def parse_size(given: str) -> int:
    """Bytes of a size such as 512MB or 1.5 GB, in decimal units."""
    match = _SIZE.fullmatch(given.strip())
    count = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if count < LEAST_BYTES:
        raise ConfigError(f"size: a number of bytes such as 512MB or 2GB is needed, at least 1kB, got '{given}'")
    return count


def _read_parts(
    path: DataPath, format: str, split: str | None, options: ReadOptions | Mapping[str, Any] | None, scratch: Path
) -> dict[str, Dataset]:
    single = path if isinstance(path, str | Path) else path[0] if len(path) == 1 else None
    if single is not None and has_parts(single):
        if split is None:
            return read_splits(single, format, options, scratch)
        return {split_of(split) or split: read(single, format, split, options, scratch=scratch)}
    data = read(path if single is None else single, format, None, options, scratch=scratch)
    named = None if single is None else split_of(stem_and_extension(Path(single))[0])
    chosen = "train" if split is None else split_of(split)
    if chosen is None:
        raise ConfigError(f"split: train, valid or test is needed, got '{split}'")
    return {chosen if split is not None or named is None else named: data}


def _write_shards(data: Dataset, name: str, folder: Path, bounds: list[tuple[int, int]], scratch: Path) -> int:
    packed: dict[str, Any] = {part: packed_on_disk(texts, scratch) for part, texts in _texts_of(data).items()}
    with progress(f"writing {name}", float(len(bounds)), "shards") as step:
        for number, (first, last) in enumerate(bounds):
            part = take_mapped(replace(data, **packed), slice(first, last), scratch)
            if isinstance(part.features, Blocks):  # no format stores two blocks
                part = replace(part, features=part.features.to_csr())
            native.write(part, folder / shard_name(name, number))
            for texts in packed.values():
                release_pages(texts.buffer)
            step(1.0)
    return len(bounds)


def _texts_of(data: Dataset) -> dict[str, Any]:
    return {part: getattr(data, part) for part in ("texts", "paths", "ids") if getattr(data, part) is not None}


def _bounds(data: Dataset, most: int, documents: int | None) -> Iterator[tuple[int, int]]:
    """The first document of each shard, and the one after its last."""
    if documents is not None:
        sizes, most = np.ones(len(data), np.int64), documents
    else:
        sizes = DOCUMENT_BYTES + ENTRY_BYTES * np.diff(data.labels.indptr).astype(np.int64)
        for texts in _texts_of(data).values():
            sizes += texts.ends - texts.starts
        for block in _blocks_of(data.features):
            sizes += 4 * block.shape[1] if isinstance(block, np.ndarray) else ENTRY_BYTES * np.diff(block.indptr)
        if data.arrays is not None:
            sizes += data.arrays[:1].nbytes
    ends, first = np.cumsum(sizes), 0
    while first < len(data):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        yield first, last
        first = last


def _blocks_of(features: Any) -> list[Any]:
    blocks = (features.sparse, features.dense) if isinstance(features, Blocks) else (features,)
    return [block for block in blocks if block is not None]
