"""Vectors of texts on disk, so that an encoder reads no text again: after a kill, in other runs, in sweeps.

A cache folder has one folder per encoder, named by a fingerprint of everything that decides its vectors, with
safetensors files of some hundred texts each: the hash of every text and its vector. Files are written atomically, are
named by the texts in them and never change, so any number of processes can use a cache at the same time without locks.
A damaged file is ignored, and replaced once its texts are encoded again. The user's cache has a maximum size: the files
that were used least recently are removed.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelwise.errors import ConfigError, LabelwiseError
from labelwise.io.tensors import map_tensors, write_tensor_file
from labelwise.runtime.results import fingerprint

log = logging.getLogger("labelwise")

VARIABLE, OFF = "LABELWISE_VECTORS", "off"
LIMIT_VARIABLE, DEFAULT_LIMIT = "LABELWISE_VECTORS_GB", 20.0
"""The maximum size of the user's cache, in GB."""
KEPT = 0.9
"""Fraction of the maximum size to which a cache that exceeds it is reduced, so that not every new file removes one."""
MIN_TEXTS = 256
"""Fewer texts than this are not worth a look into the cache: reading the weights for the fingerprint takes longer."""
OUTDATED = 30 * 24 * 3600
"""Age in seconds after which the vectors of an encoder that was not used since are removed."""
HASHES, VECTORS, CHECKSUM = "hashes", "vectors", "checksum"
TYPES = ["uint64", "float32", "uint8"]
"""Of hashes, vectors and checksum."""
NAME = re.compile("[0-9a-f]{32}")
"""Names of the folders of encoders, and of files before their suffix."""


def cache_folder(count: int = MIN_TEXTS) -> Path | None:
    """The user's cache folder, for corpora of so many texts; None if they are too few, or if the cache is off.

    It is ~/.cache/labelwise/vectors, or what LABELWISE_VECTORS names; `LABELWISE_VECTORS=off` switches it off.
    """
    given = os.environ.get(VARIABLE)
    if given == OFF or count < MIN_TEXTS:
        return None
    return Path(given).expanduser() if given else Path.home() / ".cache" / "labelwise" / "vectors"


def size_limit(folder: Path) -> int | None:
    """The maximum bytes of a folder: that of the user's cache is limited, those of checkpoints are not (None)."""
    if folder != cache_folder():
        return None
    given = os.environ.get(LIMIT_VARIABLE, str(DEFAULT_LIMIT))
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < 1e9:
        raise ConfigError(f"{LIMIT_VARIABLE}: the size of the cache of vectors, a number of GB above 0, got '{given}'")
    return int(gigabytes * 1e9)


class _Block(NamedTuple):
    """The texts of one file."""

    path: Path
    hashes: np.ndarray
    vectors: np.ndarray
    checksum: np.ndarray


class VectorCache:
    """The vectors that one encoder has computed before, by the hash of their texts."""

    def __init__(self, folder: Path, encoder: str, width: int, limit: int | None = None) -> None:
        """Open the cache of an encoder, given by its fingerprint; the folder need not exist.

        `limit` is the maximum number of bytes in the folder, of all encoders together.
        """
        self.folder, self.width, self.limit = folder / encoder[:32], width, limit
        self._failed = False
        _remove_outdated(folder, self.folder)
        self._space = 0 if limit is None else _reduce(folder, limit)
        with suppress(OSError):
            os.utime(self.folder)
        # only hashes are held: every mapped file would keep a file descriptor, and there may be thousands
        files = (self._opened(path) for path in sorted(self.folder.glob("*.safetensors")))
        self._known = [(block.path, np.array(block.hashes)) for block in files if block is not None]

    def fill(self, hashes: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Write the vectors that are known into the rows of their texts; returns the rows that are not known.

        `hashes` must be distinct.
        """
        order = np.argsort(hashes)
        ordered = hashes[order]
        missing = np.ones(len(hashes), bool)
        for path, known in self._known:
            at = np.minimum(np.searchsorted(ordered, known), max(len(hashes) - 1, 0))
            here = np.flatnonzero(ordered[at] == known) if len(hashes) else at
            rows = order[at[here]]
            new = missing[rows]
            block = self._opened(path) if new.any() else None
            if block is not None and np.array_equal(block.hashes, known) and self._is_whole(block):
                vectors[rows[new]] = block.vectors[here[new]]
                missing[rows] = False
                with suppress(OSError):
                    os.utime(path)  # it is in use
        return np.flatnonzero(missing)

    def known(self, hashes: np.ndarray) -> np.ndarray | None:
        """The vectors of exactly these texts, if another process has stored them since this cache was opened."""
        path = self._path(hashes)
        block = self._opened(path) if path.exists() else None
        if block is None or not np.array_equal(block.hashes, hashes) or not self._is_whole(block):
            return None
        return block.vectors

    def keep(self, hashes: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors. If that is not possible, a warning is logged once: they are then not known next time."""
        if self._failed or len(hashes) == 0:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checksum = np.frombuffer(fingerprint(hashes, vectors).encode(), np.uint8)
            path = self._path(hashes)
            write_tensor_file(path, {HASHES: hashes, VECTORS: vectors, CHECKSUM: checksum})
            self._known.append((path, np.array(hashes)))
            if self.limit is not None:
                self._space -= path.stat().st_size
                if self._space < 0:
                    self._space = _reduce(self.folder.parent, self.limit)
        except (LabelwiseError, OSError) as error:
            self._failed = True
            log.warning("vectors are not kept for the next time: %s", error)

    def _path(self, hashes: np.ndarray) -> Path:
        return self.folder / f"{fingerprint(hashes)[:32]}.safetensors"

    def _opened(self, path: Path) -> _Block | None:
        try:
            tensors = map_tensors(path)
            block = _Block(path, tensors[HASHES], tensors[VECTORS], tensors[CHECKSUM])
            shapes = [(len(block.hashes),), (len(block.hashes), self.width), (64,)]
            if [part.shape for part in block[1:]] == shapes and [part.dtype.name for part in block[1:]] == TYPES:
                return block
            log.warning("%s: not used: it does not hold hashes and vectors of width %s", path, self.width)
        except FileNotFoundError:  # removed by the user in this moment
            pass
        except (LabelwiseError, OSError, KeyError) as error:
            log.warning("%s: not used: %s", path, error)
        return None

    def _is_whole(self, block: _Block) -> bool:
        whole = fingerprint(block.hashes, block.vectors) == block.checksum.tobytes().decode("ascii", "replace")
        if not whole:
            log.warning("%s: not used: its contents are damaged", block.path)
        return whole


def _remove_outdated(folder: Path, own: Path) -> None:
    """Remove the vectors of encoders that have not been used for a month, and nothing else that is in the folder."""
    with suppress(OSError):
        for other in _encoders(folder):
            if other != own and other.stat().st_mtime < time.time() - OUTDATED:
                with suppress(OSError):
                    for path in _blocks(other):
                        path.unlink()
                    other.rmdir()  # refused by the system if there is anything else in it


def _reduce(folder: Path, limit: int) -> int:
    """Remove the files that were used least recently from a cache above its limit; returns the bytes that are free."""
    found = []
    with suppress(OSError):
        for path in (path for encoder in _encoders(folder) for path in _blocks(encoder)):
            with suppress(OSError):  # removed by another process
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
    total = sum(size for _, _, size in found)
    if total > limit:
        for _, path, size in sorted(found):
            with suppress(OSError):
                path.unlink()
                total -= size
            if total <= KEPT * limit:
                break
        log.info("%s: the vectors used least recently are removed, to stay below %s GB (%s)", folder,
                 f"{limit / 1e9:g}", LIMIT_VARIABLE)  # fmt: skip
    return limit - total


def _encoders(folder: Path) -> Iterator[Path]:
    """The folders of encoders in a cache folder, and nothing else that is in it."""
    return (path for path in folder.iterdir() if NAME.fullmatch(path.name) and not path.is_symlink())


def _blocks(folder: Path) -> Iterator[Path]:
    """The files of vectors in the folder of an encoder."""
    return (path for path in folder.iterdir() if path.suffix == ".safetensors" and NAME.fullmatch(path.stem))
