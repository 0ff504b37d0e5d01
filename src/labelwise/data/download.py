"""Downloads a named data set: fetch, unpack and convert its files.

The data home contains `NAME/` (the data, ready to be read), `NAME.lock.json` (the hash of each file at the first
download) and `downloads/NAME/` (incomplete downloads, removed at the end). Where the catalogue has no hash, the one of
the first download is compared, so that a file that changes later is detected.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import shutil
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from labelwise.atomic import replacing
from labelwise.data import archives
from labelwise.data.atomic_folder import check_free, data_folder, exclusive
from labelwise.data.catalogue import Entry, Source, data_home, entry
from labelwise.data.fetch import DownloadLimits, FetchedFile, fetch
from labelwise.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadResult:
    """A data set that is ready to be read."""

    name: str
    folder: Path
    files: list[FetchedFile]
    was_there: bool
    """Whether it had been downloaded before; nothing was done then."""


def download(
    name: str,
    home: str | Path | None = None,
    force: bool = False,
    base_url: str | None = None,
    limits: DownloadLimits | None = None,
    max_unpacked_bytes: int = archives.MAX_BYTES,
) -> DownloadResult:
    """Download a named data set, unless it exists already.

    Parameters
    ----------
    name
        One of `labelwise.data.catalogue.names()`.
    home
        Where named data sets are kept; default: `data_home()`.
    force
        Download it again and replace the existing folder.
    base_url
        A mirror: the files are taken from `BASE_URL/FILE` instead of the catalogue's addresses.
    limits
        Time-outs and attempts.
    max_unpacked_bytes
        Archives that unpack to more are refused.
    """
    known = entry(name)
    home = Path(home).expanduser() if home is not None else data_home()
    folder, incomplete, hashes = home / name, home / "downloads" / name, home / f"{name}.lock.json"
    if folder.is_dir() and any(folder.iterdir()) and not force:
        return DownloadResult(name, folder, [], True)
    check_free(folder, force)
    with exclusive(incomplete):
        fetched = {
            source.file: file
            for source in known.sources
            if (file := _fetch(source, incomplete, hashes, base_url, limits)) is not None
        }
        files = {
            name: {"address": file.address, "sha256": file.sha256, "bytes": file.bytes}
            for name, file in fetched.items()
        }
        about = {"name": name, "licence": known.licence, "citation": known.citation, "files": files}
        try:
            with data_folder(folder, about, force) as hidden:
                _prepare(known, fetched, hidden, max_unpacked_bytes)
        except archives.DamagedArchiveError as error:
            Path(str(error.path)).unlink(missing_ok=True)  # or the next run would find it and fail again
            raise
        _record(fetched.values(), hashes)
        shutil.rmtree(incomplete, ignore_errors=True)
    return DownloadResult(name, folder, list(fetched.values()), False)


def _fetch(
    source: Source, incomplete: Path, hashes: Path, base_url: str | None, limits: DownloadLimits | None
) -> FetchedFile | None:
    """Download one file of a data set; None if it is optional and not available."""
    addresses = source.addresses
    if base_url is not None:
        addresses = [f"{base_url.rstrip('/')}/{urllib.parse.quote(source.file)}"]
    try:
        file = fetch(addresses, incomplete / source.file, source.sha256, limits)
    except DataError as error:
        if not source.optional:
            raise
        log.warning("%s is left out: %s", source.file, error)
        return None
    before = _read_hashes(hashes).get(file.address)
    if before is not None and before.get("sha256") != file.sha256:
        file.path.unlink(missing_ok=True)
        raise DataError(
            f"{file.address}: the file has changed and was removed: SHA-256 {file.sha256}, but it was "
            f"{before.get('sha256')} on {before.get('first_seen')}. If that is right, delete {hashes}"
        )
    return file


def _read_hashes(path: Path) -> dict[str, dict[str, Any]]:
    """Hash, size and date of the first download, by address."""
    try:
        recorded = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error}); delete it to start again", path) from None
    if not isinstance(recorded, dict) or not all(isinstance(value, dict) for value in recorded.values()):
        raise DataError("is damaged; delete it to start again", path)
    return recorded


def _record(files: Iterable[FetchedFile], path: Path) -> None:
    """Record the hashes of usable files that were downloaded and not copied here by hand."""
    recorded = _read_hashes(path)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for file in files:
        if not file.address.startswith("file:"):
            recorded.setdefault(file.address, {"sha256": file.sha256, "bytes": file.bytes, "first_seen": today})
    with replacing(path) as target:
        target.write(json.dumps(recorded, indent=1) + "\n")


def _prepare(known: Entry, fetched: dict[str, FetchedFile], ready: Path, max_bytes: int) -> None:
    """Unpack the files, convert them if the catalogue names a converter, and keep only the files that readers use."""
    unpacked = ready / ".unpacked"
    unpacked.mkdir()
    for source in known.sources:
        if source.file in fetched and source.unpack:
            archives.unpack(fetched[source.file].path, unpacked, max_bytes)
        elif source.file in fetched:
            _link(fetched[source.file].path, unpacked / source.file)
    if known.prepare is not None:
        import_module(f"labelwise.data.builders.{known.prepare}").prepare(unpacked, ready)
    else:
        for path in _innermost(unpacked).iterdir():
            os.replace(path, ready / path.name)
    shutil.rmtree(unpacked)


def _link(path: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system does not support links."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _innermost(folder: Path) -> Path:
    """The first folder below with more than one entry or with a file, as in `xmc-base/NAME/...`."""
    inner = list(folder.iterdir())
    return _innermost(inner[0]) if len(inner) == 1 and inner[0].is_dir() else folder
