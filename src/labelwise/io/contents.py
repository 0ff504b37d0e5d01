"""What the files and folders hold that parameters name: results depend on that, and not on names, times or places."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from labelwise.errors import ModelFormatError
from labelwise.io.folder import CARD_FILE, MANIFEST, MODEL, Folder

HUB_SECONDS = 10.0
"""How long the Hugging Face hub may take to name the newest commit of a model."""


def content_of_path(name: str | Path) -> Any:
    """The hash of a file, or the hashes of all files below a folder; of a saved model those of its manifest, unread.

    None where nothing can be read: whoever needs it says so.
    """
    path = Path(name).expanduser()
    try:
        if not path.is_dir():
            return _hash_of_file(path)
        for saved in (path, path / MODEL):
            if (saved / MANIFEST).is_file():
                with suppress(ModelFormatError):
                    return files_of_model(Folder(saved, "model", verify=False))
        below = (Path(folder, file) for folder, _, files in os.walk(path) for file in files)
        return {file.relative_to(path).as_posix(): _hash_of_file(file) for file in below if file.is_file()}
    except OSError:
        return None


def files_of_model(folder: Folder) -> dict[str, str]:
    """The hashes of the files of a saved model, from its manifest; without cards, which change when models do not."""
    files = folder.manifest["files"].items()
    return {name: entry["sha256"] for name, entry in files if not name.endswith(CARD_FILE)}


def content_of_model(name: str) -> Any:
    """The same of a model for transformers: of a folder or, of a name on the Hugging Face hub, the commit of its files.

    It is the same before and after the files are downloaded.
    """
    if Path(name).expanduser().exists():
        return content_of_path(name)
    try:
        from huggingface_hub import model_info, try_to_load_from_cache
    except ImportError:
        return None
    downloaded = try_to_load_from_cache(name, "config.json")
    if isinstance(downloaded, str):
        return Path(downloaded).parent.name
    with suppress(Exception):  # no network, or no such model: whoever opens it says so
        return model_info(name, timeout=HUB_SECONDS).sha
    return None


def _hash_of_file(path: Path) -> str:
    status = path.stat()
    return _sha256(str(path.resolve()), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: str, _size: int, _modified: int) -> str:
    """Of a file; known for as long as this process lasts, unless its size or time have changed."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
