"""Finished chunks of an unfinished training on disk, from which a killed training resumes.

Chunks are collected and written together as a *shard*, a small folder that is written atomically. A shard has the
fingerprint of the training (parameters and data); those of other trainings, or damaged ones, are ignored. Writing takes
a small fraction of the time: the interval between shards grows with the time a shard takes.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelwise import store
from labelwise.checks import all_finite, are_sizes, in_range, is_increasing
from labelwise.codes.tree import LabelTree
from labelwise.errors import DataError, ModelFormatError
from labelwise.finished import find_finished, keep_finished
from labelwise.linear.weights import ChunkPart

log = logging.getLogger("labelwise")

MIN_INTERVAL = 1.0
"""Seconds between shards, if writing is fast; a kill loses the work of one interval."""
WRITE_FRACTION = 0.01
"""Fraction of the time that may be spent on writing."""
MAX_BYTES = 64 << 20
"""Maximum bytes collected before they are written."""
CHUNKS, TREE = KINDS = ("chunks", "tree")
"""Types of finished work, and the beginnings of its folders' names."""
CHUNKS_FILE, TREE_FILE = "chunks.safetensors", "tree.safetensors"
_ARRAYS = {"features": "i", "row_counts": "i", "lanes": "u", "values": "f", "bias": "f"}  # and the kind of each dtype

Key = tuple[int, int, int]
"""Index of the tree, level in it, and the chunk's first child."""


class ChunkShards:
    """The finished chunks and trees of one training. Use it in a `with` block, which writes them after an error too."""

    def __init__(self, folder: Path, fingerprint: str, n_labels: int | None = None) -> None:
        self.folder, self.fingerprint, self.n_labels = folder, fingerprint, n_labels
        self.number = 0
        self._parts: dict[Key, ChunkPart] = {}
        self._trees: dict[int, LabelTree] = {}
        self._waiting: dict[Key, ChunkPart] = {}
        self._bytes = 0
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._due = time.monotonic() + MIN_INTERVAL
        self._failed = False

    def __enter__(self) -> ChunkShards:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".*.new-*"):
            shutil.rmtree(path, ignore_errors=True)  # left half written by a kill
        for path in sorted(self.folder.iterdir()):
            kind, _, number = path.name.partition("-")
            if kind in KINDS and number.isdigit():  # other stages of a method keep their work in the same folder
                self.number = max(self.number, int(number) + 1)
                self._read(path, kind)
        if self._parts or self._trees:
            log.info("resuming after %s finished chunks", f"{len(self._parts):,}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        if kind is not None:  # otherwise the whole model is saved next
            with self._writing:
                self._write()

    def tree(self, number: int) -> LabelTree | None:
        """A tree of these labels that was built before, if any."""
        tree = self._trees.get(number)
        if tree is not None and self.n_labels not in (None, tree.n_labels):
            log.warning(
                "%s: not used: tree %d has %d labels, not %d", self.folder, number, tree.n_labels, self.n_labels
            )
            return None
        return tree

    def keep_tree(self, number: int, tree: LabelTree) -> None:
        """Write a new tree immediately: all its chunks depend on it."""
        self._new_folder(TREE, {"tree": number}, TREE_FILE, tree.to_tensors())

    def level(
        self,
        tree: int,
        depth: int,
        widths: Mapping[int, int],
        n_features: int,
        parts: Mapping[Key, ChunkPart] | None = None,
    ) -> dict[int, ChunkPart]:
        """The level's finished chunks by first child; `widths` has the number of children of each possible chunk.

        They are those of an earlier attempt, unless `parts` are given.
        """
        finished = {}
        for (of_tree, of_level, first), part in (self._parts if parts is None else parts).items():
            if (of_tree, of_level) != (tree, depth):
                continue
            if first in widths and _is_valid(part, widths[first], n_features):
                finished[first] = part
            else:
                log.warning("%s: a chunk of level %d does not fit and is trained again", self.folder, depth + 1)
        return finished

    def add(self, key: Key, part: ChunkPart) -> None:
        """Add a finished chunk. Thread-safe; when a shard is due, one thread writes it and the others continue."""
        with self._lock:
            self._waiting[key] = part
            self._bytes += sum(getattr(part, name).nbytes for name in _ARRAYS)
            due = self._bytes >= MAX_BYTES or time.monotonic() >= self._due
        if due and self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def _write(self) -> None:
        with self._lock:
            parts, self._waiting, self._bytes = self._waiting, {}, 0
        if not parts:
            return
        begin = time.monotonic()
        self._new_folder(CHUNKS, {}, CHUNKS_FILE, _to_tensors(parts))
        end = time.monotonic()
        self._due = end + max(MIN_INTERVAL, (end - begin) / WRITE_FRACTION)

    def _new_folder(self, kind: str, about: Mapping[str, Any], name: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Write a shard under the next free number. If one cannot be written, no others are tried."""
        if self._failed:
            return
        self._failed = not keep_finished(self.new_path(kind), kind, self.fingerprint, name, tensors, about)

    def new_path(self, kind: str = CHUNKS) -> Path:
        """The path of a new shard, for somebody else to write."""
        with self._lock:
            self.number += 1
            return self.folder / f"{kind}-{self.number - 1:06d}"

    def _read(self, path: Path, kind: str) -> None:
        if kind == CHUNKS:
            self._parts |= read_shard(path, self.fingerprint) or {}
            return
        folder = find_finished(path, kind, self.fingerprint)
        if folder is None:
            return
        try:
            tree = LabelTree.from_tensors("tree", folder.tensors(TREE_FILE), path)
            self._trees[int(folder.manifest.get("tree", -1))] = tree
        except ModelFormatError as error:
            log.warning("%s: not used: %s", path, error)


def write_shard(path: Path, fingerprint: str, parts: Mapping[Key, ChunkPart]) -> None:
    """Write finished chunks, unless another process has written the same ones in the meantime."""
    written = keep_finished(path, CHUNKS, fingerprint, CHUNKS_FILE, _to_tensors(parts))
    if not written and read_shard(path, fingerprint) is None:
        raise DataError("finished chunks cannot be written", path)


def read_shard(path: Path, fingerprint: str) -> dict[Key, ChunkPart] | None:
    """The chunks of a shard, with checksums compared; None if it is missing or damaged."""
    folder = find_finished(path, CHUNKS, fingerprint)
    if folder is None:
        return None
    try:
        return _from_tensors(folder.tensors(CHUNKS_FILE), path)
    except ModelFormatError as error:
        log.warning("%s: not used: %s", path, error)
        return None


def _to_tensors(parts: Mapping[Key, ChunkPart]) -> dict[str, np.ndarray]:
    """All parts concatenated, with the sizes of each."""
    tensors = {"keys": np.array(list(parts), np.int64)}
    for name in _ARRAYS:
        arrays = [getattr(part, name) for part in parts.values()]
        tensors[name] = np.concatenate(arrays)
        tensors[f"{name}.sizes"] = np.array([len(array) for array in arrays], np.int64)
    return tensors


def _from_tensors(tensors: Mapping[str, np.ndarray], path: Path) -> dict[Key, ChunkPart]:
    keys = store.get_tensor(tensors, "keys", path)
    arrays_by_name = []
    for name in _ARRAYS:
        array, sizes = store.get_tensor(tensors, name, path), store.get_tensor(tensors, f"{name}.sizes", path)
        if array.ndim != 1 or sizes.shape != (len(keys),) or not are_sizes(sizes, len(array)):
            raise ModelFormatError(f"{path}: the sizes of {name} are damaged")
        arrays_by_name.append(np.split(array, np.cumsum(sizes)[:-1]))
    if keys.ndim != 2 or keys.shape[1] != 3:
        raise ModelFormatError(f"{path}: the keys are damaged")
    parts = zip(keys.tolist(), zip(*arrays_by_name, strict=True), strict=True)
    return {(tree, level, first): ChunkPart(*arrays) for (tree, level, first), arrays in parts}


def _is_valid(part: ChunkPart, width: int, n_features: int) -> bool:
    """Whether a part is consistent: kernels read it without checks."""
    return bool(
        all(getattr(part, name).dtype.kind == kind for name, kind in _ARRAYS.items())
        and len(part.features) == len(part.row_counts)
        and len(part.lanes) == len(part.values)
        and are_sizes(part.row_counts, len(part.lanes))
        and len(part.bias) == width
        and (part.row_counts > 0).all()
        and is_increasing(part.features)
        and in_range(part.features, n_features)
        and in_range(part.lanes, width)
        and all_finite(part.values)
        and all_finite(part.bias)
    )
