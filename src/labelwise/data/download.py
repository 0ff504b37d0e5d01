"""Downloading a named data set: fetched, unpacked, made ready, and compared with what is published of it.

Below the data home lie `NAME/` (the data, ready to be read), `NAME.lock.json` (what each address gave at the
first download) and `downloads/NAME/` (files on their way, gone when all is done). A sum that the catalogue
does not know is taken from the lock file, so that a file which changes between two downloads does not go
unnoticed.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import shutil
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.data import archives
from labelwise.data.catalogue import Entry, Published, Source, data_home, dataset, entry
from labelwise.data.fetch import Fetched, Patience, fetch
from labelwise.data.place import alone, check_free, data_folder
from labelwise.errors import DataError

if TYPE_CHECKING:
    from labelwise.data.stats import SplitStatistics

log = logging.getLogger(__name__)

MEAN_TOLERANCE = 0.01
"""Published means are rounded, and some are of train and others of all documents."""


@dataclass(frozen=True)
class Comparison:
    """A published figure beside the one found; `ok` is None where nothing can be compared."""

    what: str
    expected: float | None
    found: float | None

    @property
    def ok(self) -> bool | None:
        if self.expected is None or self.found is None:
            return None
        if isinstance(self.expected, int):
            return self.expected == self.found
        return abs(self.found - self.expected) <= MEAN_TOLERANCE * self.expected


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
    patience: Patience | None = None,
    max_unpacked_bytes: int = archives.MAX_BYTES,
) -> Downloaded:
    """Download a named data set, unless it is there already.

    Parameters
    ----------
    name
        One of `labelwise.data.catalogue.names()`.
    home
        Where named data sets are kept; not given: `data_home()`.
    force
        Download it again and replace what is there.
    base_url
        A mirror: the files are taken from `BASE_URL/FILE` instead of the catalogue's addresses.
    patience
        Time-outs and tries.
    max_unpacked_bytes
        Archives that unpack to more are refused.
    """
    known = entry(name)
    home = Path(home).expanduser() if home is not None else data_home()
    folder = home / name
    if folder.is_dir() and any(folder.iterdir()) and not force:
        return Downloaded(name, folder, [], True)
    check_free(folder, force)
    waiting = home / "downloads" / name
    with alone(waiting):
        fetched = _download(known, folder, waiting, force, base_url, patience, max_unpacked_bytes)
        shutil.rmtree(waiting, ignore_errors=True)
    return Downloaded(name, folder, fetched, False)


def _download(
    known: Entry,
    folder: Path,
    waiting: Path,
    force: bool,
    base_url: str | None,
    patience: Patience | None,
    max_unpacked_bytes: int,
) -> list[Fetched]:
    lock = _Lock(folder.with_name(f"{folder.name}.lock.json"))
    fetched = {}
    for source in known.sources:
        found = _fetch(source, waiting, lock, base_url, patience)
        if found is not None:
            fetched[source.file] = found
    about: dict[str, Any] = {"name": folder.name, "licence": known.licence, "citation": known.citation}
    about["files"] = {
        file: {"address": found.address, "sha256": found.sha256, "bytes": found.bytes}
        for file, found in fetched.items()
    }
    try:
        with data_folder(folder, about, force) as hidden:
            _make_ready(known, fetched, hidden, max_unpacked_bytes)
    except archives.DamagedArchiveError as error:
        Path(str(error.path)).unlink(missing_ok=True)  # or the next run would find it and fail again
        raise
    lock.record(fetched.values())
    return list(fetched.values())


def _fetch(
    source: Source, waiting: Path, lock: _Lock, base_url: str | None, patience: Patience | None
) -> Fetched | None:
    addresses = source.addresses
    if base_url is not None:
        addresses = [f"{base_url.rstrip('/')}/{urllib.parse.quote(source.file)}"]
    try:
        found = fetch(addresses, waiting / source.file, source.sha256, patience)
    except DataError as error:
        if not source.optional:
            raise
        log.warning("%s is left out: %s", source.file, error)
        return None
    lock.compare(found)
    return found


class _Lock:
    """What each address gave at the first download."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def compare(self, found: Fetched) -> None:
        """Refuse a file that is not what its address gave before."""
        before = self._read().get(found.address)
        if before is not None and before.get("sha256") != found.sha256:
            found.path.unlink(missing_ok=True)
            raise DataError(
                f"{found.address}: the file has changed and was removed: SHA-256 {found.sha256}, but it was "
                f"{before.get('sha256')} on {before.get('first_seen')}. If that is right, delete {self.path}"
            )

    def record(self, files: Iterable[Fetched]) -> None:
        """Remember what has proved usable; files put there by hand come from who knows where."""
        seen = self._read()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        for found in files:
            if not found.address.startswith("file:"):
                news = {"sha256": found.sha256, "bytes": found.bytes, "first_seen": today}
                seen.setdefault(found.address, news)
        self._write(seen)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            seen = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read ({error}); delete it to begin anew", self.path) from None
        if not isinstance(seen, dict) or not all(isinstance(value, dict) for value in seen.values()):
            raise DataError("is damaged; delete it to begin anew", self.path)
        return seen

    def _write(self, seen: dict[str, dict[str, Any]]) -> None:
        from labelwise.data.files import write_stream

        with write_stream(self.path) as file:
            file.write((json.dumps(seen, indent=1) + "\n").encode())


def _make_ready(known: Entry, fetched: Mapping[str, Fetched], ready: Path, max_bytes: int) -> None:
    """Unpack the files below `ready`, convert them if need be, and leave only what is read."""
    unpacked = ready / ".unpacked"
    unpacked.mkdir()
    for source in known.sources:
        if source.file not in fetched:
            continue
        path = fetched[source.file].path
        if source.unpack:
            archives.unpack(path, unpacked, max_bytes)
        else:
            _link(path, unpacked / source.file)
    if known.prepare is not None:
        import_module(f"labelwise.data.builders.{known.prepare}").prepare(unpacked, ready)
    else:
        for path in _inmost(unpacked).iterdir():
            os.replace(path, ready / path.name)
    shutil.rmtree(unpacked)


def _link(path: Path, target: Path) -> None:
    """The same file in a second place, without a copy where the file system can do it."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _inmost(folder: Path) -> Path:
    """The first folder on the way down that holds more than another folder, as in `xmc-base/NAME/...`."""
    inner = list(folder.iterdir())
    return _inmost(inner[0]) if len(inner) == 1 and inner[0].is_dir() else folder


# --- is it what it should be? ---------------------------------------------------------------------------


def check(name: str, home: str | Path | None = None) -> list[Comparison]:
    """Read a downloaded data set whole and compare its figures with the published ones."""
    from labelwise.data.stats import split_statistics

    return compare(entry(name).published, split_statistics(dataset(name, folder=home)))


def compare(published: Published, found: SplitStatistics) -> list[Comparison]:
    """Published figures beside those of the data."""
    rows = []
    for split in ("train", "valid", "test"):
        part = found.parts.get(split)
        documents = part.documents if part is not None else None
        rows.append(Comparison(f"{split} documents", getattr(published, split), documents))
    rows.append(Comparison("features", published.features, found.overall.features))
    # a count of labels may mean the label space or the labels that occur
    spaces = (found.overall.labels, found.overall.labels_used)
    labels = published.labels if published.labels in spaces else found.overall.labels
    rows.append(Comparison("labels", published.labels, labels))
    means = [found.overall.mean_labels, *(p.mean_labels for s, p in found.parts.items() if s == "train")]
    wanted = published.mean_labels
    nearest = means[0] if wanted is None else min(means, key=lambda mean: abs(mean - wanted))
    rows.append(Comparison("labels a document", None if wanted is None else float(wanted), nearest))
    return [row for row in rows if row.expected is not None or row.found is not None]
