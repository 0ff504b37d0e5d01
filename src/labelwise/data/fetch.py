"""Fetching one file over HTTP: resumed where it was cut, checked as it arrives, whole or not there at all.

Only http and https are spoken, whatever a redirect says, and never http after https. Bytes go to `NAME.part`
beside the target; `NAME.part.json` remembers what they are a part of, so that a later run can go on where
this one was cut.
"""

from __future__ import annotations

import hashlib
import http.client
import http.cookiejar
import json
import logging
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from labelwise import __version__
from labelwise.data.confirm import confirmed_address
from labelwise.errors import DataError
from labelwise.progress import progress

log = logging.getLogger(__name__)

CHUNK = 1 << 20
PAGE_BYTES = 1 << 20
LONGEST_PAUSE = 60.0
RETRIED = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Patience:
    """How long and how often a download is tried."""

    timeout: float = 60.0
    """Seconds without an answer, or without `least_bytes` more, after which a connection counts as dead."""
    least_bytes: int = 1024
    attempts: int = 5
    """Tries in a row that bring less than a megabyte before it gives up."""
    pause: float = 1.0
    """Seconds before the second try; doubled before each further one, up to a minute."""
    max_bytes: int = 200 << 30
    """A file larger than this is refused."""


@dataclass(frozen=True)
class Fetched:
    """A file that has arrived whole."""

    path: Path
    sha256: str
    bytes: int
    address: str


class _Cut(Exception):
    """The connection ended too early, or the server asked to come again; worth another try."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


def fetch(
    addresses: Sequence[str], target: str | Path, sha256: str | None = None, patience: Patience | None = None
) -> Fetched:
    """Fetch a file from the first address that has it.

    Parameters
    ----------
    addresses
        `http://` or `https://`, tried in this order; the next one is only asked when one brings nothing.
    target
        Where the file is to stand. If it is there already (put there by hand, say), only its sum is compared.
    sha256
        What the file must hash to. A download that does not is removed, and the error names both sums.
    patience
        Time-outs, tries and the largest size.
    """
    target = Path(target)
    if target.is_file():
        return _found(target, sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    for address in addresses:
        download = _Download(address, target, patience or Patience())
        try:
            digest = download.run()
        except DataError as error:
            failures.append(str(error))
            if download.offset:  # another address would have to throw these bytes away
                break
            continue
        if sha256 is not None and digest != sha256.lower():
            download.start_over()
            raise DataError(
                f"{address}: {target.name} is not the file we know and has been removed: "
                f"SHA-256 {digest}, expected {sha256.lower()}"
            )
        return Fetched(download.finish(), digest, target.stat().st_size, address)
    failures.append(f"if you can get the file by other means, put it at {target} and run the command again")
    raise DataError("\n".join(failures))


def _found(target: Path, sha256: str | None) -> Fetched:
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 is not None and digest != sha256.lower():
        sums = f"SHA-256 {digest}, expected {sha256.lower()}"
        raise DataError(f"is not the file we know: {sums}; remove it to download it anew", target)
    return Fetched(target, digest, target.stat().st_size, target.absolute().as_uri())


class _Download:
    """One file from one address."""

    def __init__(self, address: str, target: Path, patience: Patience) -> None:
        self.address, self.target, self.patience = address, target, patience
        self.part = target.with_name(target.name + ".part")
        self.note_path = target.with_name(target.name + ".part.json")
        self.opener = web_opener()
        self.hash = hashlib.sha256()
        self.offset = 0
        self.note: dict[str, Any] = {}

    def run(self) -> str:
        """Fetch until whole; returns the SHA-256 in hex."""
        if urllib.parse.urlsplit(self.address).scheme not in ("http", "https"):
            raise DataError(f"{self.address}: only http and https addresses are fetched")
        self._take_up_part()
        failures = 0
        while not self.offset or self.offset != self.note.get("total"):
            before = self.offset
            try:
                self._attempt()
                break
            except _Cut as cut:
                failures = 1 if self.offset - before >= CHUNK else failures + 1
                if failures >= self.patience.attempts:
                    kept = f"; {self.offset:,} bytes are kept in {self.part} for the next run" if self.offset else ""
                    raise DataError(f"{self.address}: given up after {failures} tries: {cut}{kept}") from None
                log.info("%s: %s; trying again", self.address, cut)
                time.sleep(min(max(cut.wait, self.patience.pause * 2 ** (failures - 1)), LONGEST_PAUSE))
        return self.hash.hexdigest()

    def finish(self) -> Path:
        """Give the whole file its name."""
        os.replace(self.part, self.target)
        self.note_path.unlink(missing_ok=True)
        return self.target

    def start_over(self) -> None:
        """Forget all bytes."""
        self.hash, self.offset, self.note = hashlib.sha256(), 0, {}
        self.part.unlink(missing_ok=True)
        self.note_path.unlink(missing_ok=True)

    def _take_up_part(self) -> None:
        """Go on with the bytes of an earlier run, unless nothing tells whether the file is still the same."""
        try:
            note = json.loads(self.note_path.read_bytes())
        except (OSError, ValueError):
            note = None
        if not isinstance(note, dict) or note.get("address") != self.address or not self.part.is_file():
            return self.start_over()
        if not note.get("total") and not note.get("validator"):
            return self.start_over()
        self.note = note
        with self.part.open("rb") as file:
            while chunk := file.read(CHUNK):
                self.hash.update(chunk)
                self.offset += len(chunk)

    # --- one connection -------------------------------------------------------------------------------------

    def _attempt(self) -> None:
        response = self._open(self.address)
        try:
            if _is_page(response.headers):
                page = self._next(response, PAGE_BYTES, whole=True).decode("utf-8", "replace")
                confirmed = confirmed_address(page, response.url)
                response.close()
                response = self._open(confirmed)
                if _is_page(response.headers):
                    raise DataError(f"{self.address}: the server sent a web page instead of the file, twice")
            self._receive(response)
        finally:
            response.close()

    def _open(self, address: str) -> Any:
        headers = {"User-Agent": f"labelwise/{__version__}", "Accept-Encoding": "identity"}
        if self.offset:
            headers["Range"] = f"bytes={self.offset}-"
            if self.note.get("validator"):
                headers["If-Range"] = self.note["validator"]
        try:
            return self.opener.open(urllib.request.Request(address, headers=headers), timeout=self.patience.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and self.offset:
                self.start_over()
                raise _Cut("what was there is no part of the file any more") from None
            if error.code in RETRIED:
                wait = error.headers.get("Retry-After", "")
                raise _Cut(
                    f"the server answers {error.code} {error.reason}", float(wait) if wait.isdigit() else 0.0
                ) from None
            raise DataError(f"{self.address}: {_refusal(error)}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise DataError(f"{address}: the server's certificate is not valid: {reason.verify_message}") from None
            raise _Cut(f"there is no connection ({reason or type(error).__name__})") from None
        except ValueError as error:
            raise DataError(f"{address}: not an address that can be asked: {error}") from None

    def _next(self, response: Any, size: int, whole: bool = False) -> bytes:
        """The bytes of one packet, or of the whole answer."""
        try:
            return response.read(size) if whole else response.read1(size)
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(f"the connection was lost ({error or type(error).__name__})") from None

    def _receive(self, response: Any) -> None:
        """Append the answer to the part file, or begin it anew if the server sends the whole."""
        start, total = _extent(response)
        known = self.note.get("total")
        if start != self.offset or (self.offset and known and total and known != total):
            self.start_over()
            if start:
                raise _Cut("the server's file has changed, or it sends another piece than was asked for")
        self._check_size(total)
        self._write_note(response.headers, total)
        clock = _StallClock(self.patience)
        with progress(f"downloading {self.target.name}", total, "bytes") as step:
            step(self.offset)
            try:
                with self.part.open("ab") as file:
                    while total is None or self.offset < total:
                        limit = CHUNK if total is None else min(CHUNK, total - self.offset)
                        chunk = self._next(response, limit)
                        if not chunk:
                            break
                        file.write(chunk)
                        self.hash.update(chunk)
                        self.offset += len(chunk)
                        step(len(chunk))
                        clock.received(len(chunk))
                        self._check_size(self.offset)
            except OSError as error:
                raise DataError(f"cannot be written: {error.strerror}", self.part) from None
        if total is not None and self.offset < total:
            raise _Cut(f"the connection ended after {self.offset:,} of {total:,} bytes")

    def _check_size(self, size: int | None) -> None:
        if size is None:
            return
        if size > self.patience.max_bytes:
            raise DataError(f"{self.address}: more than the {self.patience.max_bytes:,} bytes that are allowed")
        missing = size - self.offset
        if missing and missing > (free := shutil.disk_usage(self.part.parent).free):
            raise DataError(
                f"{self.target.name} needs {missing:,} more bytes, {self.part.parent} has room for {free:,}"
            )

    def _write_note(self, headers: Message, total: int | None) -> None:
        """Remember what the part is a part of; a weak ETag cannot vouch for bytes."""
        etag = headers.get("ETag", "")
        validator = headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
        self.note = {"address": self.address, "total": total, "validator": validator}
        self.note_path.write_text(json.dumps(self.note) + "\n", encoding="utf-8")


class _StallClock:
    """A connection that trickles is as dead as one that is silent."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.begin, self.bytes = time.monotonic(), 0

    def received(self, amount: int) -> None:
        self.bytes += amount
        now = time.monotonic()
        if now - self.begin >= self.patience.timeout:
            if self.bytes < self.patience.least_bytes:
                raise _Cut(f"only {self.bytes:,} bytes in {self.patience.timeout:g} seconds")
            self.begin, self.bytes = now, 0


def _extent(response: Any) -> tuple[int, int | None]:
    """Where the answer's bytes begin in the file, and how long the file is."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None:
            return -1, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _is_page(headers: Message) -> bool:
    return headers.get_content_type() in ("text/html", "application/xhtml+xml")


def _refusal(error: urllib.error.HTTPError) -> str:
    if error.code in (404, 410):
        return f"there is no such file ({error.code} {error.reason}); the publisher may have moved it"
    if error.code in (401, 403):
        return f"the server does not give the file out ({error.code} {error.reason})"
    return f"the server answers {error.code} {error.reason}"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https back to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = (urllib.parse.urlsplit(address).scheme for address in (req.full_url, newurl))
        if new not in ("http", "https") or (old == "https" and new == "http"):
            raise DataError(f"{req.full_url}: redirects to {newurl}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def web_opener() -> urllib.request.OpenerDirector:
    """Opens http and https, with cookies and the environment's proxies; no files, no FTP, no `data:`."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
