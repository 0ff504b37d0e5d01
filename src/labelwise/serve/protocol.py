"""Limits of connections: how many there are, and how long they may take to send a head and to read the answer.

uvicorn itself waits for both for ever, and answers requests that it cannot parse without a problem document.
"""

from __future__ import annotations

from asyncio import Protocol, TimerHandle
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any, ClassVar

from labelwise.serve.lingering import Lingering
from labelwise.serve.schemas import Problem
from labelwise.serve.stalled import Stalled

HEADER_SECONDS = 20
"""Time for the head of a request, from the connection or the first byte after the last answer."""
MOST_REFUSED = 1000
"""Refused connections that may be open at a time; further ones are closed at once."""


class LimitedProtocol:
    """To be mixed into one of uvicorn's protocols."""

    transport: Any
    _head_timer: TimerHandle | None = None
    _refused = False
    _ignoring = False
    """Whether what comes is ignored, because it follows something that is no request."""
    _open_refusals: ClassVar[set[LimitedProtocol]] = set()
    max_connections: int | None = None
    timeout = 30.0

    unsent, moved, has_drained = 0, 0.0, False
    """Bytes of answers that wait at the last look, when they last moved, and whether they have since (`stalled.py`)."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request; refuse it if there are too many connections."""
        connections: set = self.connections  # type: ignore[attr-defined]
        loop: Any = self.loop  # type: ignore[attr-defined]
        lingering = Lingering(transport, loop, self)
        if self.max_connections is not None and len(connections) >= self.max_connections:
            self._refuse_connection(lingering)
            return
        super().connection_made(lingering)  # type: ignore[misc]
        state: Any = self.server_state  # type: ignore[attr-defined]
        if getattr(state, "stalled", None) is None:
            state.stalled = Stalled(connections, loop, self.timeout)
        state.stalled.watch()
        self._wait_for_head()

    def _refuse_connection(self, transport: Lingering) -> None:
        """Answer without reading, and close when the client does or some time later."""
        self._refused, self.transport = True, transport
        self.app.count_refused_connection()  # type: ignore[attr-defined]
        transport.write(_written(_too_many()))
        if len(self._open_refusals) >= MOST_REFUSED:
            transport.plain.close()
            return
        self._open_refusals.add(self)
        transport.end()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the head is complete, begin again with the next request."""
        if self._ignoring or self.transport.ending:
            self.transport.discard(len(data))
            return
        super().data_received(data)  # type: ignore[misc]
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:
            self._wait_for_head()

    def resume_writing(self) -> None:
        """The client has read."""
        self.has_drained = True
        super().resume_writing()  # type: ignore[misc]

    def is_receiving(self) -> bool:
        """Whether the client may be sending a request that nobody reads any more."""
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        return self._refused or self._ignoring or (cycle is not None and cycle.more_body)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls if it cannot parse a request."""
        self.refuse(Problem(400, "invalid-http", "this is not a request of HTTP/1.1"))

    def refuse(self, problem: Problem) -> None:
        """Answer what is no request, after the requests before it, and end the connection."""
        self._ignoring = True
        self._stop_waiting()
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body or cycle.response_started or getattr(self, "pipeline", None):
                cycle.keep_alive = False  # the client has to send it again: answers come in the order of requests
                return
            cycle.disconnected = True  # the body of this request is what cannot be parsed
            cycle.message_event.set()
        self.app.count_malformed(problem.status, self.client)  # type: ignore[attr-defined]
        self.transport.write(_written(problem))
        self.transport.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_waiting()
        self.transport.forget()
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


def _too_many() -> Problem:
    detail = "the server has as many connections as it can hold; connect again later"
    return Problem(503, "busy", detail, retry_after=1)


def _written(problem: Problem) -> bytes:
    """A complete last answer, to what is not read or cannot be parsed."""
    response = problem.response()
    head = b"".join(name + b": " + value + b"\r\n" for name, value in response.raw_headers)
    line = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\nconnection: close\r\n".encode()
    return line + head + b"\r\n" + bytes(response.body)


def make_protocol(kind: Callable[..., Any], max_connections: int, timeout: float, **named: Any) -> Protocol:
    """A protocol with its limits; a function of this module, so that worker processes can be given it."""
    protocol = kind(**named)
    protocol.max_connections, protocol.timeout = max_connections, timeout
    return protocol


def protocol_factory(max_connections: int, timeout: float) -> Callable[..., Protocol]:
    """Makes protocols of the fastest kind that is installed, with our limits."""
    if find_spec("httptools") is not None:
        from labelwise.serve.protocol_httptools import LimitedHttpTools

        return partial(make_protocol, LimitedHttpTools, max_connections, timeout)
    from labelwise.serve.protocol_h11 import LimitedH11

    return partial(make_protocol, LimitedH11, max_connections, timeout)
