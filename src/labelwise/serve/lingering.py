"""Ends connections so that clients get the last answer.

A connection that is closed while its client still sends is reset, and most clients then lose the answer that they were
about to read, such as that the request is too large. So only our side is closed, and what still comes is ignored.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from typing import Any, Protocol

SECONDS = 2.0
"""How long a client may go on sending after the last answer."""
MOST_BYTES = 64_000_000
"""How much it may send in that time."""


class Receiver(Protocol):
    """The protocol of a connection."""

    def is_receiving(self) -> bool:
        """Whether the client may be sending a request that nobody reads any more."""
        ...


class Lingering:
    """The transport of a connection for uvicorn's protocols, with another `close`."""

    __slots__ = ("_discarded", "_protocol", "_timer", "ending", "get_extra_info", "loop", "pause_reading", "plain",
                 "resume_reading", "write")  # fmt: skip

    def __init__(self, transport: Any, loop: AbstractEventLoop, protocol: Receiver) -> None:
        self.plain, self.loop = transport, loop
        self._protocol: Receiver | None = protocol
        self.ending = False
        """Whether the last answer was sent; what comes is to be given to `discard`."""
        self._timer: TimerHandle | None = None
        self._discarded = 0
        self.write, self.get_extra_info = transport.write, transport.get_extra_info  # bound: as fast as without us
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def close(self) -> None:
        """Close at once if the client has sent its request; otherwise when it does, or some time later."""
        if self._protocol is not None and self._protocol.is_receiving():
            self.end()
        elif not self.ending:
            self.plain.close()

    def end(self) -> None:
        """Send nothing any more, and ignore what comes."""
        if self.ending or self.plain.is_closing():
            return
        if not self.plain.can_write_eof():
            self.plain.close()
            return
        self.ending, self.write = True, _ignore
        self.plain.write_eof()
        self.plain.resume_reading()
        self._timer = self.loop.call_later(SECONDS, self.plain.close)

    def discard(self, count: int) -> None:
        """Ignore so many bytes; too many end the connection."""
        self._discarded += count
        if self._discarded > MOST_BYTES:
            self.plain.close()

    def forget(self) -> None:
        """The connection is lost; what refers to each other is freed without the garbage collector."""
        self._protocol = None
        self.write = _ignore  # uvicorn lets the answer to an earlier one of several requests be written
        if self._timer is not None:
            self._timer.cancel()

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ending or self.plain.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def _ignore(data: bytes) -> None:
    del data
