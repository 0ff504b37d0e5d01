"""Limits of connections: how many there are, and how long they may take to send the head of a request.

uvicorn itself waits for headers for ever, and answers too many connections without a problem document.
"""

from __future__ import annotations

from asyncio import Protocol, TimerHandle
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar

from labelwise.serve.problems import Problem

HEADER_SECONDS = 20
"""Time for the head of a request, from the connection or the first byte after the last answer."""
REFUSED_SECONDS = 2
"""How long a refused client may go on sending: closing before that would reset the connection, and lose the answer."""
MOST_REFUSED = 1000
"""Refused connections that may be open at a time; further ones are closed at once."""


class HeadDeadline:
    """To be mixed into one of uvicorn's protocols."""

    _head_timer: TimerHandle | None = None
    _refused = False
    _open_refusals: ClassVar[set[HeadDeadline]] = set()
    max_connections: int | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request; refuse it if there are too many connections."""
        connections: set = self.connections  # type: ignore[attr-defined]
        if self.max_connections is not None and len(connections) >= self.max_connections:
            self._refuse(transport)
            return
        super().connection_made(transport)  # type: ignore[misc]
        self._wait_for_head()

    def _refuse(self, transport: Any) -> None:
        """Answer without reading, and close when the client does or some time later."""
        self._refused = True
        self.app.count_refused_connection()  # type: ignore[attr-defined]
        transport.write(_too_many())
        if len(self._open_refusals) >= MOST_REFUSED or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self._open_refusals.add(self)
        loop: Any = self.loop  # type: ignore[attr-defined]
        self._head_timer = loop.call_later(REFUSED_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the head is complete, begin again with the next request."""
        if self._refused:
            return
        super().data_received(data)  # type: ignore[misc]
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_waiting()
        if self._refused:
            self._open_refusals.discard(self)
            return
        super().connection_lost(exc)  # type: ignore[misc]

    def _wait_for_head(self) -> None:
        loop: Any = self.loop  # type: ignore[attr-defined]
        self._head_timer = loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        if cycle is None or cycle.response_complete:
            self.transport.close()  # type: ignore[attr-defined]


def _too_many() -> bytes:
    """A complete answer, because the request is not read."""
    detail = "the server has as many connections as it can hold; connect again later"
    response = Problem(503, "busy", detail, retry_after=1, headers={"Connection": "close"}).response()
    head = b"".join(name + b": " + value + b"\r\n" for name, value in response.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(response.body)


def make_protocol(kind: Callable[..., Any], max_connections: int, **named: Any) -> Protocol:
    """A protocol with a limit; a function of this module, so that worker processes can be given it."""
    protocol = kind(**named)
    protocol.max_connections = max_connections
    return protocol


def protocol_factory(max_connections: int) -> Callable[..., Protocol]:
    """Makes protocols of the fastest kind that is installed, with a deadline for heads."""
    if find_spec("httptools") is not None:
        from labelwise.serve.protocol_httptools import TimedHttpTools

        return partial(make_protocol, TimedHttpTools, max_connections)
    from labelwise.serve.protocol_h11 import TimedH11

    return partial(make_protocol, TimedH11, max_connections)
