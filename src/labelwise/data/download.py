"""Downloads a named data set: fetch, unpack and convert its files.

The data home holds `NAME/` (the data, ready to be read), `NAME.lock.json` (the hash each address gave at the first
download) and `downloads/NAME/` (incomplete downloads, removed at the end). Where the catalogue has no hash, the one of
the first download is compared, so that a file that changes later is noticed.
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
from labelwise.data.atomic_folder import alone, check_free, data_folder
from labelwise.data.catalogue import Entry, Source, data_home, entry
from labelwise.data.fetch import DownloadLimits, Fetched, fetch
from labelwise.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Downloaded:
    """A data set that is ready to be read."""

    name: str
    folder: Path
    files: list[Fetched]
    was_there: bool
    """It had been downloaded before, and nothing was done."""


def download(
    name: str,
    home: str | Path | None = None,
    force: bool = False,
    base_url: str | None = None,
    limits: DownloadLimits | None = None,
    max_unpacked_bytes: int = archives.MAX_BYTES,
) -> Downloaded:
    """Download a named data set, unless it is there already.

    Parameters
    ----------
    name
        One of `labelwise.data.catalogue.names()`.
    home
        Where named data sets are kept; default: `data_home()`.
    force
        Download it again and replace what is there.
    base_url
        A mirror: the files are taken from `BASE_URL/FILE` instead of the catalogue's addresses.
    limits
        Time-outs and attempts.
    max_unpacked_bytes
        Archives that unpack to more are refused.
    """
    known = entry(name)
    home = Path(home).expanduser() if home is not None else data_home()
    folder, waiting, sums = home / name, home / "downloads" / name, home / f"{name}.lock.json"
    if folder.is_dir() and any(folder.iterdir()) and not force:
        return Downloaded(name, folder, [], True)
    check_free(folder, force)
    with alone(waiting):
        fetched = {
            source.file: found
            for source in known.sources
            if (found := _fetch(source, waiting, sums, base_url, limits)) is not None
        }
        files = {
            file: {"address": found.address, "sha256": found.sha256, "bytes": found.bytes}
            for file, found in fetched.items()
        }
        about = {"name": name, "licence": known.licence, "citation": known.citation, "files": files}
        try:
            with data_folder(folder, about, force) as hidden:
                _make_ready(known, fetched, hidden, max_unpacked_bytes)
        except archives.DamagedArchiveError as error:
            Path(str(error.path)).unlink(missing_ok=True)  # or the next run would find it and fail again
            raise
        _record(fetched.values(), sums)
        shutil.rmtree(waiting, ignore_errors=True)
    return Downloaded(name, folder, list(fetched.values()), False)


def _fetch(
    source: Source, waiting: Path, sums: Path, base_url: str | None, limits: DownloadLimits | None
) -> Fetched | None:
    """One file of a data set; None if it is optional and cannot be had."""
    addresses = source.addresses
    if base_url is not None:
        addresses = [f"{base_url.rstrip('/')}/{urllib.parse.quote(source.file)}"]
    try:
        found = fetch(addresses, waiting / source.file, source.sha256, limits)
    except DataError as error:
        if not source.optional:
            raise
        log.warning("%s is left out: %s", source.file, error)
        return None
    before = _recorded(sums).get(found.address)
    if before is not None and before.get("sha256") != found.sha256:
        found.path.unlink(missing_ok=True)
        raise DataError(
            f"{found.address}: the file has changed and was removed: SHA-256 {found.sha256}, but it was "
            f"{before.get('sha256')} on {before.get('first_seen')}. If that is right, delete {sums}"
        )
    return found


def _recorded(sums: Path) -> dict[str, dict[str, Any]]:
    """What each address gave at the first download."""
    try:
        recorded = json.loads(sums.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error}); delete it to start again", sums) from None
    if not isinstance(recorded, dict) or not all(isinstance(value, dict) for value in recorded.values()):
        raise DataError("is damaged; delete it to start again", sums)
    return recorded


def _record(files: Iterable[Fetched], sums: Path) -> None:
    """Record files that were downloaded, not copied here by hand, and have proved usable."""
    recorded = _recorded(sums)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for found in files:
        if not found.address.startswith("file:"):
            recorded.setdefault(found.address, {"sha256": found.sha256, "bytes": found.bytes, "first_seen": today})
    with replacing(sums) as file:
        file.write(json.dumps(recorded, indent=1) + "\n")


def _make_ready(known: Entry, fetched: dict[str, Fetched], ready: Path, max_bytes: int) -> None:
    """Unpack the files, convert them if the catalogue says so, and keep only what is read."""
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
    """The same file under a second name, without a copy where the file system supports it."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _innermost(folder: Path) -> Path:
    """The first folder below that holds more than one other folder, as in `xmc-base/NAME/...`."""
    inner = list(folder.iterdir())
    return _innermost(inner[0]) if len(inner) == 1 and inner[0].is_dir() else folder
