"""Named data sets: their metadata (catalogue.yml), their folder on this machine, and how to read them.

Nothing here uses the network: a data set that is not there is an error that names the command to download it.
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

from pydantic import Field

from labelwise import __version__
from labelwise.config import Config, ConfigSource, validated
from labelwise.data import archives
from labelwise.errors import DataError, did_you_mean
from labelwise.io.atomic import check_free, data_folder, exclusive, replacing
from labelwise.runtime.progress import progress

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset


HOME_VARIABLE = "LABELWISE_DATA"
CATALOGUE = Path(__file__).with_name("catalogue.yml")

Count = Annotated[int, Field(ge=1)]


class Source(Config):
    """One file of a data set on the web."""

    file: str
    """Name of the downloaded file."""
    addresses: Annotated[list[str], Field(min_length=1)]
    """URLs, tried in this order."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Expected hash; not given: not known."""
    unpack: bool = True
    """Whether it is an archive to be unpacked."""
    optional: bool = False
    """Whether the data can be used without it."""


class PublishedFigures(Config):
    """Published statistics of a data set; None if not known."""

    train: Count | None = None
    valid: Count | None = None
    test: Count | None = None
    features: Count | None = None
    labels: Count | None = None
    mean_labels: Annotated[float, Field(gt=0)] | None = None


class Entry(Config):
    """Metadata of a named data set."""

    title: str
    format: Literal["native", "pecos", "lines", "xc", "vowpal"]
    """Format of the files after download and conversion."""
    sources: Annotated[list[Source], Field(min_length=1)]
    prepare: Literal["eurlex57k"] | None = None
    """The converter to run after unpacking; not given: none."""
    licence: str
    citation: str
    propensity: tuple[float, float]
    """A and B of the propensity-scored metrics."""
    published: PublishedFigures
    notes: str
    """Which of several versions in circulation this is."""


class _Catalogue(Config):
    sets: dict[str, Entry]


@lru_cache(maxsize=1)
def _entries() -> dict[str, Entry]:
    source = ConfigSource.from_file(CATALOGUE)
    return validated(_Catalogue, {"sets": source.values}, source).sets


def names() -> list[str]:
    """The names of all known data sets."""
    return list(_entries())


def near_sets(name: str) -> str:
    """A question that names the known data sets whose names begin like this, or the nearest; empty if none is near."""
    beginning = [known for known in names() if known.startswith(name)][:3] if len(name) > 2 else []
    near = [f"'{known}'" for known in beginning or difflib.get_close_matches(name, names(), n=1)]
    several = f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else "".join(near)
    return f"did you mean the data set {several}?" if near else ""


def entry(name: str) -> Entry:
    """Metadata of a data set; DataError with the nearest name if there is none of that name."""
    known = _entries().get(name)
    if known is None:
        raise DataError(f"there is no known data set '{name}'; {did_you_mean(name, names())}")
    return known


def data_home() -> Path:
    """The folder named data sets are kept in: $LABELWISE_DATA, or ~/.cache/labelwise/data."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "labelwise" / "data"


def folder_of(name: str, folder: str | Path | None = None) -> Path:
    """The folder of a named data set, which need not exist, below `folder` (not given: the data home)."""
    entry(name)
    return (Path(folder).expanduser() if folder is not None else data_home()) / name


def downloaded_folder(name: str, folder: str | Path | None = None) -> Path:
    """The folder of a downloaded data set; DataError with the download command if it does not exist."""
    path = folder_of(name, folder)
    if not path.is_dir():
        option = f" --folder {folder}" if folder is not None else ""
        raise DataError(
            f"the data set '{name}' is not in {path.parent}; get it with: labelwise data download {name}{option}"
        )
    return path


@overload
def dataset(
    name: str, split: None = None, folder: str | Path | None = None, scratch: Path | None = None
) -> dict[str, Dataset]: ...
@overload
def dataset(name: str, split: str, folder: str | Path | None = None, scratch: Path | None = None) -> Dataset: ...
def dataset(
    name: str, split: str | None = None, folder: str | Path | None = None, scratch: Path | None = None
) -> Dataset | dict[str, Dataset]:
    """Read a named data set that has been downloaded before.

    Parameters
    ----------
    name
        One of `names()`.
    split
        `train`, `valid` or `test` for that part only; not given: a dict of all parts, in the label space of
        train.
    folder
        Where named data sets are kept; not given: `data_home()`.
    scratch
        As that of `labelwise.read`.
    """
    from labelwise.data.read import read, read_splits

    known, path = entry(name), downloaded_folder(name, folder)
    if split is None:
        return read_splits(path, known.format, scratch=scratch)
    return read(path, known.format, split, scratch=scratch)


# --- google drive ---
# Google Drive answers a request for a large file with a warning page; its form contains the address of the file.

TRUSTED_DOMAINS = (".google.com", ".googleusercontent.com")


class _WarningPage(HTMLParser):
    """The title, and the action and hidden fields of the download form."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.title, self.action, self.fields = "", "", dict[str, str]()
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "title" or (tag == "form" and values.get("id") == "download-form"):
            self._inside, self.action = tag, values.get("action", self.action)
        elif tag == "input" and self._inside == "form" and values.get("type") == "hidden":
            self.fields[values.get("name", "")] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        self.title += data if self._inside == "title" else ""


def confirmed_address(page: str, page_address: str) -> str:
    """The address that the page's form requests: on the same host or on Google's, never from https to http."""
    parsed = _WarningPage(page)
    if not parsed.action:
        quota = "; its download quota is exceeded, try again tomorrow" if "quota" in page.lower() else ""
        title = " ".join(parsed.title.split()) or "without a title"
        raise DataError(f"{page_address}: the server sent a web page ({title}) instead of the file{quota}")
    here, there = map(urllib.parse.urlsplit, (page_address, urllib.parse.urljoin(page_address, parsed.action)))
    host = there.hostname or ""
    schemes = ("https",) if here.scheme == "https" else ("http", "https")
    if there.scheme not in schemes or (host != here.hostname and not host.endswith(TRUSTED_DOMAINS)):
        raise DataError(f"{page_address}: the page leads to {there.geturl()}, which is refused")
    query = dict(urllib.parse.parse_qsl(there.query, keep_blank_values=True)) | parsed.fields
    return there._replace(query=urllib.parse.urlencode(query)).geturl()


# --- fetch ---
# Downloads one file over HTTP; interrupted downloads are resumed, the result is verified and moved atomically.
#
# Bytes are written to `NAME.part`; `NAME.part.json` records the address, size and validator they belong to, so that a
# later run can resume. Only http and https are used, also after redirects, and never http after https.

log = logging.getLogger(__name__)

CHUNK = 1 << 20
MIN_BYTES_PER_TIMEOUT = 1024
"""A connection that delivers less than this within the time-out counts as dead."""
RETRY_STATUS_CODES = (408, 416, 425, 429, 500, 502, 503, 504)
REASONS = {404: "there is no such file; the publisher may have moved it", 403: "the server denies access to the file"}


@dataclass(frozen=True)
class DownloadLimits:
    """Time-outs and limits of a download."""

    timeout: float = 60.0
    attempts: int = 5
    """Consecutive attempts that deliver less than a megabyte before it is an error."""
    pause: float = 1.0
    """Seconds before the second attempt; doubled before each further one, up to a minute."""
    max_bytes: int = 200 << 30


@dataclass(frozen=True)
class FetchedFile:
    """A downloaded file."""

    path: Path
    sha256: str
    bytes: int
    address: str


class _RetryableError(Exception):
    """A failure after which another attempt may succeed."""


def fetch(
    addresses: Sequence[str], target: str | Path, sha256: str | None = None, limits: DownloadLimits | None = None
) -> FetchedFile:
    """Download a file from the first address that has it; a file that exists already is only verified."""
    target = Path(target)
    if target.is_file():
        actual = _sha256(target)
        if sha256 not in (None, actual):
            raise DataError(f"SHA-256 {actual}, expected {sha256}; remove the file to download it again", target)
        return FetchedFile(target, actual, target.stat().st_size, target.absolute().as_uri())
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in addresses:
        partial = _PartialFile(address, target, limits or DownloadLimits())
        try:
            partial.complete()
        except DataError as error:
            failures.append(str(error))
            if partial.size:  # another address would discard these bytes
                break
            continue
        actual = _sha256(partial.path)
        if sha256 not in (None, actual):
            partial.discard()
            raise DataError(f"{address}: SHA-256 {actual}, expected {sha256}: not the expected file, removed")
        os.replace(partial.path, target)
        partial.discard()
        return FetchedFile(target, actual, target.stat().st_size, address)
    raise DataError("\n".join([*failures, f"if you have the file, copy it to {target} and run the command again"]))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _PartialFile:
    """The bytes of a file received so far."""

    def __init__(self, address: str, target: Path, limits: DownloadLimits) -> None:
        self.address, self.name, self.limits = address, target.name, limits
        self.path, self.note_path = (target.with_name(target.name + end) for end in (".part", ".part.json"))
        try:
            self.size, self.note = self.path.stat().st_size, json.loads(self.note_path.read_bytes())
            usable = self.note["address"] == address and (self.note["total"] or self.note["validator"])
        except (OSError, ValueError, TypeError, KeyError):
            usable = False
        if not usable:
            self.discard()

    def discard(self) -> None:
        """Remove the files; the next request starts from the beginning."""
        self.size, self.note = 0, dict[str, Any]()
        self.path.unlink(missing_ok=True)
        self.note_path.unlink(missing_ok=True)

    def complete(self) -> None:
        """Download the missing bytes, with several attempts if necessary."""
        failures = 0
        while not self.size or self.size != self.note["total"]:
            before = self.size
            try:
                with self._open() as response:
                    return self._receive(response)
            except _RetryableError as why:
                failures = 1 if self.size - before >= CHUNK else failures + 1
                if failures >= self.limits.attempts:
                    kept = f"; {self.size:,} bytes are kept in {self.path} for the next run" if self.size else ""
                    raise DataError(f"{self.address}: gave up after {failures} attempts: {why}{kept}") from None
                log.info("%s: %s; trying again", self.address, why)
                time.sleep(min(self.limits.pause * 2 ** (failures - 1), 60))
            except OSError as error:
                raise DataError(f"cannot be written: {error.strerror or error}", self.path) from None

    def _open(self) -> Any:
        """The server's response with the file, also where Google Drive asks for a confirmation first."""
        response = self._request(self.address)
        if response.headers.get_content_type() == "text/html":
            with response:
                page = _read_chunk(response.read).decode("utf-8", "replace")
            response = self._request(confirmed_address(page, response.url))
            if response.headers.get_content_type() == "text/html":
                raise DataError(f"{self.address}: the server sent a web page instead of the file, twice")
        return response

    def _request(self, address: str) -> Any:
        headers = {"User-Agent": f"labelwise/{__version__}"}
        if self.size:
            headers["Range"] = f"bytes={self.size}-"
            if self.note["validator"]:
                headers["If-Range"] = self.note["validator"]
        try:
            if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
                raise DataError(f"{address}: only http and https addresses are downloaded")
            request = urllib.request.Request(address, headers=headers)
            return _OPENER.open(request, timeout=self.limits.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # the file is now shorter than the bytes received
                self.discard()
            if error.code in RETRY_STATUS_CODES:
                raise _RetryableError(f"the server returned {error.code} {error.reason}") from None
            why = REASONS.get(error.code, "the server refuses")
            raise DataError(f"{self.address}: {why} ({error.code} {error.reason})") from None
        except (OSError, http.client.HTTPException) as error:
            raise _RetryableError(f"no connection ({getattr(error, 'reason', error)})") from None
        except ValueError as error:
            raise DataError(f"{address}: not a valid address: {error}") from None

    def _receive(self, response: Any) -> None:
        """Append the response to the partial file, or start over if the server sends the whole file."""
        headers = response.headers
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
        start, total = (int(span[1]), int(span[2])) if span else (0, response.length)
        if start != self.size or (self.size and self.note["total"] not in (None, total)):
            self.discard()
            if response.status == 206:
                raise _RetryableError("the file on the server has changed")
        self._check_size(total or 0)
        etag = headers.get("ETag", "W/")
        validator = headers.get("Last-Modified") if etag.startswith("W/") else etag  # weak ones say nothing about bytes
        self.note = {"address": self.address, "total": total, "validator": validator}
        self.note_path.write_text(json.dumps(self.note) + "\n", encoding="utf-8")
        since, received = time.monotonic(), 0
        with progress(f"downloading {self.name}", total, "bytes") as step, self.path.open("ab") as file:
            step(self.size)
            while chunk := _read_chunk(response.read1):
                file.write(chunk)
                self.size += len(chunk)
                self._check_size(self.size)
                step(len(chunk))
                received += len(chunk)
                if time.monotonic() - since > self.limits.timeout:
                    if received < MIN_BYTES_PER_TIMEOUT:
                        raise _RetryableError(f"only {received:,} bytes in {self.limits.timeout:g} seconds")
                    since, received = time.monotonic(), 0
        if total is not None and self.size != total:
            raise _RetryableError(f"the connection ended after {self.size:,} of {total:,} bytes")

    def _check_size(self, size: int) -> None:
        if size > self.limits.max_bytes:
            raise DataError(f"{self.address}: more than the {self.limits.max_bytes:,} bytes that are allowed")
        if size - self.size > (free := shutil.disk_usage(self.path.parent).free):
            raise DataError(
                f"{self.name} has {size:,} bytes, but the disk has only {free:,} bytes free", self.path.parent
            )


def _read_chunk(read: Any) -> bytes:
    try:
        return read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _RetryableError(f"the connection was lost ({error or type(error).__name__})") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = (urllib.parse.urlsplit(address).scheme for address in (req.full_url, newurl))
        if new not in ("http", "https") or (old == "https" and new == "http"):
            raise DataError(f"{req.full_url}: redirects to {newurl}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects(), urllib.request.HTTPCookieProcessor())


# --- download ---
# Downloads a named data set: fetch, unpack and convert its files.
#
# The data home contains `NAME/` (the data, ready to be read), `NAME.lock.json` (the hash of each file at the first
# download) and `downloads/NAME/` (incomplete downloads, removed at the end). Where the catalogue has no hash, the one
# of the first download is compared, so that a file that changes later is detected.


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
