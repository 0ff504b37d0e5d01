"""Cuts off clients that do not read their answers, which would hold connections and memory for ever.

The connections are looked at now and then, so that answering a request does not need a timer.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Iterable
from typing import Any

LOOKS = 4
"""Looks at a connection within the time that it may stall."""


class Stalled:
    """Watches the connections of a server from the first one until there is none."""

    def __init__(self, connections: Iterable[Any], loop: AbstractEventLoop, seconds: float) -> None:
        self.connections, self.loop, self.seconds = connections, loop, seconds
        self._watching = False

    def watch(self) -> None:
        """Begin to look, unless that has begun."""
        if not self._watching:
            self._watching = True
            self._look_later()

    def _look_later(self) -> None:
        self.loop.call_later(min(1.0, self.seconds / LOOKS), self._look)

    def _look(self) -> None:
        now, self._watching = self.loop.time(), False
        for one in list(self.connections):
            self._watching = True
            unsent = one.transport.get_write_buffer_size()
            if unsent == 0 or one.unsent == 0 or unsent < one.unsent or one.has_drained:
                one.moved = now
            elif now - one.moved >= self.seconds:
                one.transport.abort()
            one.unsent, one.has_drained = unsent, False
        if self._watching:
            self._look_later()
