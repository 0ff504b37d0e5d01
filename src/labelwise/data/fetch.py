"""Downloads one file over HTTP; interrupted downloads are resumed, the result is verified and moved atomically.

Bytes are written to `NAME.part`; `NAME.part.json` records the address, size and validator they belong to, so that a
later run can resume. Only http and https are used, also after redirects, and never http after https.
"""

from __future__ import annotations

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise import __version__
from labelwise.data.google_drive import confirmed_address
from labelwise.errors import DataError
from labelwise.progress import progress

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
