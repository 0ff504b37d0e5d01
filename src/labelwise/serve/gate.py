"""What every request passes through: host and key checks, size limit, headers, log, counts. Plain ASGI, for speed."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import hmac
import logging
import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.errors import ConfigError
from labelwise.formatting import cut
from labelwise.serve.bodies import too_busy, too_large
from labelwise.serve.logs import event, log
from labelwise.serve.schemas import Problem
from labelwise.serve.settings import KEYS_VARIABLE, LOOPBACK, Settings

# --- keys ---
# API keys: read from a file or the environment, compared in constant time.

LEAST = 16
"""Characters of a key; shorter ones can be guessed."""


class ApiKeys:
    """The accepted keys, of which only hashes are kept."""

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self.hashes = list(hashes)

    @classmethod
    def of(cls, settings: Settings) -> ApiKeys:
        """The keys of the settings' file and of the environment; none if neither names any.

        Hashes in the settings are those of both: the parent process has read them.
        """
        if settings.key_hashes is not None:
            return cls(map(bytes.fromhex, settings.key_hashes))
        keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",")]
        where = KEYS_VARIABLE
        if settings.keys_file is not None:
            where = settings.keys_file
            try:
                lines = Path(where).read_text(encoding="utf-8").splitlines()
            except UnicodeDecodeError:
                raise ConfigError(f"{where}: the keys are not UTF-8 text") from None
            keys += [line.strip() for line in lines if not line.lstrip().startswith("#")]
        given = [key for key in keys if key]
        if settings.keys_file is not None and not given:
            raise ConfigError(f"{where}: there is no key in it; write one per line")
        if any(len(key) < LEAST for key in given):
            raise ConfigError(f"{where}: a key has fewer than {LEAST} characters and can be guessed; make a longer one")
        return cls(_hashed(key.encode()) for key in given)

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def accept(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request has a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
        given = headers.get(b"x-api-key")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if given is None and scheme.lower() == b"bearer":
            given = token.strip()
        hashed = _hashed(given or b"")
        found = False
        for known in self.hashes:  # all of them, so that the time does not depend on which one matches
            found |= hmac.compare_digest(known, hashed)
        return found and given is not None


def _hashed(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


# --- counters ---
# Counts of requests, documents and times, in the text format of Prometheus.
#
# The series are known at the start, so that they are rows of one array: several worker processes map the same file,
# each with a row of its own, and any of them can report the sums.

STATUSES = (200, 204, 304, 400, 401, 404, 405, 406, 408, 413, 415, 421, 422, 429, 431, 500, 503)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
OTHER = "other"
MAX_WORKERS = 256
STARTED = "_started"
"""A number that is not reported: whether all workers have been ready at a time. It is never set back."""
PROCESS = "_process"
"""The number of the process that has a row; not reported."""

Key = tuple[str, tuple[tuple[str, str], ...]]
HELP = {
    "labelwise_requests_total": ("counter", "Answered requests."),
    "labelwise_request_seconds": ("histogram", "Time from the first byte of a request to the last of its answer."),
    "labelwise_documents_total": ("counter", "Documents that labels were predicted for."),
    "labelwise_batch_documents": ("histogram", "Documents that were computed together."),
    "labelwise_compute_seconds_total": ("counter", "Time in predictions and explanations."),
    "labelwise_refused_total": ("counter", "Requests refused because the queue was full or the time was over."),
    "labelwise_refused_connections_total": ("counter", "Connections refused because there were too many."),
    "labelwise_queue_documents": ("gauge", "Documents that wait or are computed."),
    "labelwise_model_loads_total": ("counter", "Loads of a model, by result."),
    "labelwise_ready_workers": ("gauge", "Processes that have loaded all models."),
    "labelwise_resident_bytes": ("gauge", "Resident memory of the server's processes."),
}


class Counters:
    """All series of a server; `file` is shared by its workers, None for a single process."""

    def __init__(self, routes: Iterable[str], models: Iterable[str], file: str | None = None) -> None:
        self._index: dict[Key, int] = {}
        self._routes = {*routes, OTHER}
        for route in sorted(self._routes):
            for status in (*map(str, STATUSES), OTHER):
                self._declare("labelwise_requests_total", route=route, status=status)
            self._declare_histogram("labelwise_request_seconds", SECONDS, route=route)
        for model in models:
            self._declare_histogram("labelwise_batch_documents", SIZES, model=model)
            for name in ("documents_total", "compute_seconds_total", "refused_total", "queue_documents"):
                self._declare(f"labelwise_{name}", model=model)
            for result in ("ok", "error"):
                self._declare("labelwise_model_loads_total", model=model, result=result)
        self._declare("labelwise_refused_connections_total")
        self._declare("labelwise_ready_workers")
        self._declare("labelwise_resident_bytes")
        self._lock_file: IO[bytes] | None = None
        self._declare(STARTED)
        self._declare(PROCESS)
        self._all = np.zeros((1, len(self._index))) if file is None else self._mapped(Path(file))
        self._gauges = [self._index[PROCESS, ()]]  # what is no longer true when the process of a row has ended
        self._gauges += [column for (name, _), column in self._index.items() if HELP.get(name, ("",))[0] == "gauge"]
        self._row = 0 if file is None else self._claim(Path(file))
        # several times as fast as an array for single numbers; its type says int for any format
        self._own: Any = memoryview(self._all[self._row])
        self.set(PROCESS, os.getpid())
        self._requests = {
            (route, status): self._index["labelwise_requests_total", (("route", route), ("status", str(status)))]
            for route in self._routes
            for status in STATUSES
        }
        self._buckets: dict[tuple[str, str], int] = {}

    def _declare(self, name: str, **labels: str) -> None:
        self._index[name, tuple(labels.items())] = len(self._index)

    def _declare_histogram(self, name: str, bounds: Iterable[float], **labels: str) -> None:
        for bound in (*bounds, float("inf")):
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            self._declare(f"{name}_bucket", **labels, le=edge)
        self._declare(f"{name}_sum", **labels)
        self._declare(f"{name}_count", **labels)

    def _mapped(self, file: Path) -> np.ndarray:
        shape = (MAX_WORKERS, len(self._index))
        if file.stat().st_size != 8 * shape[0] * shape[1]:
            os.truncate(file, 8 * shape[0] * shape[1])  # zeros; the same size in every worker
        return np.asarray(np.memmap(file, np.float64, "r+", shape=shape))

    def _claim(self, file: Path) -> int:
        """A row that no living process has; that of one that has ended is continued, so that counts never fall."""
        import fcntl

        self._lock_file = file.open("r+b")
        for row in range(MAX_WORKERS):
            with contextlib.suppress(OSError):
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
                self._all[row, self._gauges] = 0
                return row
        raise RuntimeError("all rows of the counters are taken")

    # --- counting; only from the thread of the event loop ---

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._own[self._index[name, tuple(labels.items())]] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._own[self._index[name, tuple(labels.items())]] = value

    def request(self, route: str | None, status: int, seconds: float) -> None:
        """Count an answered request."""
        known = route if route in self._routes else OTHER
        column = self._requests.get((known, status))
        if column is None:
            column = self._index["labelwise_requests_total", (("route", known), ("status", OTHER))]
        self._own[column] += 1
        self._observe("labelwise_request_seconds", "route", known, SECONDS, seconds)

    def batch(self, model: str, documents: int, seconds: float) -> None:
        """Count a computed batch."""
        self._observe("labelwise_batch_documents", "model", model, SIZES, documents)
        self.add("labelwise_documents_total", documents, model=model)
        self.add("labelwise_compute_seconds_total", seconds, model=model)

    def _observe(self, name: str, label: str, value: str, bounds: tuple[float, ...], amount: float) -> None:
        first = self._buckets.get((name, value))
        if first is None:
            edge = f"{bounds[0]:g}"
            first = self._buckets[name, value] = self._index[f"{name}_bucket", ((label, value), ("le", edge))]
        last = first + len(bounds)
        self._own[first + bisect.bisect_left(bounds, amount)] += 1  # cumulated when they are reported
        self._own[last + 1] += amount
        self._own[last + 2] += 1

    # --- reporting ---

    def total(self, name: str, **labels: str) -> float:
        """The sum of all workers; of a gauge, of those that live."""
        return self._sums()[self._index[name, tuple(labels.items())]]

    def _sums(self) -> list[float]:
        sums = self._all.sum(0)
        ended = [row for row in np.flatnonzero(self._all[:, self._gauges].any(1)).tolist() if not self._lives(row)]
        sums[self._gauges] -= self._all[np.ix_(ended, self._gauges)].sum(0)
        return sums.tolist()

    def _lives(self, row: int) -> bool:
        """Whether a process has claimed this row and not ended; by a shared lock, so that others may ask too."""
        import fcntl

        if row == self._row or self._lock_file is None:
            return True
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, row)
        except OSError:
            return True
        fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, row)
        return False

    def text(self) -> str:
        """All series of all workers, in Prometheus' text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        sums = self._sums()
        processes = self._all[:, self._index[PROCESS, ()]].astype(int)
        living = [process for row, process in enumerate(processes.tolist()) if process and self._lives(row)]
        sums[self._index["labelwise_resident_bytes", ()]] = sum(map(resident_bytes, living))
        series: dict[str, list[tuple[str, tuple[tuple[str, str], ...], float]]] = {name: [] for name in HELP}
        cumulated, before = 0.0, None
        answered = {
            route: sums[self._index["labelwise_request_seconds_count", (("route", route),)]] for route in self._routes
        }
        for (name, labels), column in self._index.items():
            if name in (STARTED, PROCESS):
                continue
            value = sums[column]
            family = name
            for suffix in ("_bucket", "_sum", "_count"):
                if name not in HELP:
                    family = name.removesuffix(suffix) if name.removesuffix(suffix) in HELP else family
            if name.endswith("_bucket"):
                others = (name, labels[:-1])
                cumulated = value + (cumulated if others == before else 0.0)
                before, value = others, cumulated
            series[family].append((name, labels, value))
        for family, (kind, about) in HELP.items():
            yield f"# HELP {family} {about}"
            yield f"# TYPE {family} {kind}"
            for name, labels, value in series[family]:
                if answered.get(dict(labels).get("route", ""), 1) == 0 or (value == 0 and "status" in dict(labels)):
                    continue  # most combinations never occur
                listed = ",".join(f'{key}="{text}"' for key, text in labels)
                yield f"{name}{{{listed}}} {value:.17g}" if listed else f"{name} {value:.17g}"


def resident_bytes(process: int) -> float:
    """Resident memory of a process; 0 on systems that do not say."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
REFUSALS_SECONDS = 10.0
"""Time between two lines of the log about connections that were refused."""
LARGE_ANSWER = 1 << 16
"""Bytes of an answer that may wait for its client without being counted: uvicorn's own limit for a connection."""
PRIVATE = ("/v1/", "/metrics")
"""Paths that need a key, if there are keys."""

IDENTITY, ROUTE = "labelwise.identity", "labelwise.route"
"""Keys of a request's identifier, and of the path of its route, in its scope."""


def unexpected(scope: Scope) -> Problem:
    """A bug of ours: the client gets no details of it."""
    return Problem(500, "internal", f"an unexpected error; the log has it under the identifier {scope.get(IDENTITY)}")


class Gate:
    """The outermost application."""

    def __init__(self, app: ASGIApp, settings: Settings, counters: Counters) -> None:
        self.app, self.settings, self.counters = app, settings, counters
        own = {*LOOPBACK, settings.host} if settings.is_loopback else set()
        self.hosts = {host.lower() for host in (*own, *settings.allow_hosts)}
        if settings.allow_hosts:
            self.hosts |= set(LOOPBACK)
        self.limit, self.max_bodies = settings.max_request, settings.all_bodies
        self.bodies = 0
        """Bytes of the requests that are being received or answered, and of large answers that clients do not read."""
        self.refused, self.refusals_logged = 0, -math.inf
        """Refused connections that the log does not mention yet, and when it last did."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begin, status, sent, received, method = time.perf_counter(), 0, 0, 0, scope["method"]
        if method == "HEAD":  # uvicorn sends the head alone
            scope = {**scope, "method": "GET"}
        identity = scope[IDENTITY] = secrets.token_hex(8)
        private = scope["path"].startswith("/v1/")

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            part = len(message.get("body", b""))
            received += part
            self.bodies += part
            if part and self.bodies > self.max_bodies:
                raise too_busy()
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status, sent, received
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), *HEADERS, (b"x-request-id", identity.encode())]
                if private:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            else:
                part = len(message.get("body", b""))
                sent += part
                if part > LARGE_ANSWER and not message.get("more_body"):
                    self.bodies += part
                    received += part
                    await send({**message, "more_body": True})
                    message = {"type": message["type"]}  # which uvicorn sends when the client has read nearly all
            await send(message)

        try:
            problem = self._refusal(scope)
            if problem is not None:
                await problem.response()(scope, receive, send_with_headers)
            else:
                await self.app(scope, receive_within_limit, send_with_headers)
        except Exception:  # a bug of ours
            log.exception("a request failed", extra={"fields": {"id": identity}})
            if not status:
                await unexpected(scope).response()(scope, receive, send_with_headers)
        finally:
            self.bodies -= received
            seconds = time.perf_counter() - begin
            route = scope.get(ROUTE) or getattr(scope.get("route"), "path", None)
            self.counters.request(route, status or 500, seconds)
            if self.settings.log_requests:
                _log_request(scope, method, identity, status, sent, seconds)

    def count_refused_connection(self) -> None:
        """Count a connection that was refused because there are too many; the log gets a line now and then."""
        self.counters.add("labelwise_refused_connections_total")
        self.refused += 1
        now = time.monotonic()
        if now - self.refusals_logged >= REFUSALS_SECONDS:
            limit = self.settings.max_connections
            event("connections were refused", logging.WARNING, connections=self.refused, max_connections=limit)
            self.refused, self.refusals_logged = 0, now

    def count_malformed(self, status: int, client: tuple[str, int] | None) -> None:
        """Count an answer to what could not be parsed as a request."""
        self.counters.request(None, status, 0.0)
        if self.settings.log_requests:
            event("request", client=client[0] if client else None, status=status)

    def _refusal(self, scope: Scope) -> Problem | None:
        for name, value in scope["headers"]:
            if name == b"host" and self.hosts and _host(value) not in self.hosts:
                # a page of a stranger whose name was changed to point to this machine
                detail = f"this server is not called {cut(_host(value), 100)!r}; --allow-host adds a name"
                return Problem(421, "wrong-host", detail)
            if name == b"content-length" and (not value.isdigit() or int(value) > self.limit):
                return too_large(self.settings)
        return None


class KeyCheck:
    """Asks for an API key where one is needed; inside CORS, so that pages can read the refusal."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        private = scope["type"] == "http" and scope["path"].startswith(PRIVATE)
        if private and self.keys and not self.keys.accept(dict(scope["headers"])):
            detail = "an API key is needed: send `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            problem = Problem(401, "api-key", detail, headers={"WWW-Authenticate": "Bearer"})
            await problem.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _host(value: bytes) -> str:
    """The name of a Host header, without its port."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text


def _log_request(scope: Scope, method: str, identity: str, status: int, sent: int, seconds: float) -> None:
    client = scope.get("client")
    fields: dict[str, Any] = {
        "id": identity, "client": client[0] if client else None, "method": method,
        "path": scope["path"][:200], "status": status, "bytes": sent, "ms": round(1000 * seconds, 2),
    }  # fmt: skip
    event("request", **fields)
