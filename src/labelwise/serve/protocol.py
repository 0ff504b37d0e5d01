"""Closes connections whose requests begin but never get as far as a body: uvicorn itself waits for headers for ever."""

from __future__ import annotations

from asyncio import TimerHandle
from importlib.util import find_spec
from typing import Any

HEADER_SECONDS = 20
"""Time for the head of a request, from the connection or the first byte after the last answer."""


class HeadDeadline:
    """To be mixed into one of uvicorn's protocols."""

    _head_timer: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)  # type: ignore[misc]
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the head is complete, begin again with the next request."""
        super().data_received(data)  # type: ignore[misc]
        cycle: Any = self.cycle  # type: ignore[attr-defined]
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_waiting()
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


def protocol_class() -> type:
    """The fastest protocol that is installed, with a deadline for heads."""
    if find_spec("httptools") is not None:
        from labelwise.serve.protocol_httptools import TimedHttpTools

        return TimedHttpTools
    from labelwise.serve.protocol_h11 import TimedH11

    return TimedH11
