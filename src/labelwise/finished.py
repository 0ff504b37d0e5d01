"""Finished parts of an interrupted training, kept in store folders that are identified by a fingerprint.

The fingerprint is a hash of everything that decides the result. Folders of another training, or damaged ones, are
ignored with a warning, and the work is done again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import LabelwiseError
from labelwise.mapped import in_pieces
from labelwise.store import Folder, FolderWriter, new_folder

log = logging.getLogger("labelwise")

RESULT_VERSION = 1
"""Increased when a new version of labelwise computes other results from the same settings and data: older work is then
ignored. 1 is not hashed, so that work from before versions existed is still used."""
KEY = "fingerprint"


def fingerprint(*parts: Any) -> str:
    """A hash of texts, JSON values, arrays and tensors; trainings with different fingerprints are different."""
    digest = hashlib.sha256()
    for part in parts if RESULT_VERSION == 1 else (RESULT_VERSION, *parts):
        plain = _plain(part)
        if isinstance(plain, np.ndarray):
            about = f"array {plain.dtype} {plain.shape}"
            digest.update(f"{len(about)} {about}".encode())
            for piece in in_pieces(np.ascontiguousarray(plain).reshape(-1).view(np.uint8)):
                digest.update(piece.data)
        else:
            text = json.dumps(plain, sort_keys=True)
            digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()


def _plain(part: Any) -> Any:
    """A tensor as an array of its bytes, because NumPy lacks some dtypes; a scalar tensor as a number."""
    if not hasattr(part, "detach"):
        return part
    import torch

    return part.detach().cpu().contiguous().view(torch.uint8).numpy() if part.ndim else part.item()


def find_finished(path: Path, kind: str, expected: str) -> Folder | None:
    """Finished work with this fingerprint, all files verified; None if it is missing or cannot be used."""
    if not path.exists():
        return None
    try:
        folder = Folder(path, kind)
        if folder.manifest.get(KEY) != expected:
            log.warning("%s: not used: it belongs to another training, with other settings, parameters or data", path)
            return None
        for name in folder.manifest["files"]:
            _ = folder.tensors(name) if name.endswith(".safetensors") else folder.read_json(name)
    except (LabelwiseError, OSError) as error:
        log.warning("%s: not used: %s", path, error)
        return None
    folder.verify = False  # all hashes have been compared
    return folder


@contextmanager
def keep_finished(path: Path, kind: str, own: str, about: Mapping[str, Any] | None = None) -> Iterator[FolderWriter]:
    """Write finished work with this fingerprint to a folder, atomically."""
    with new_folder(path, kind, {KEY: own, **(about or {})}, force=True) as folder:
        yield folder


def fingerprint_in(path: Path, kind: str) -> str | None:
    """The fingerprint of the work in a folder; None if the folder is missing or of another type."""
    try:
        return Folder(path, kind).manifest.get(KEY)
    except LabelwiseError:
        return None
