"""What every request passes through: host and key checks, size limit, headers, log, counts. Plain ASGI, for speed."""

from __future__ import annotations

import logging
import math
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.formatting import cut
from labelwise.serve.bodies import too_busy, too_large
from labelwise.serve.counters import Counters
from labelwise.serve.keys import ApiKeys
from labelwise.serve.logs import event, log
from labelwise.serve.problems import Problem
from labelwise.serve.settings import LOOPBACK, Settings

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
