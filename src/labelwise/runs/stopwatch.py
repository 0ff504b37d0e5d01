"""Seconds of a piece of work, without those in which kernels are compiled: that happens once on a machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("labelwise")
COMPILATION = "numba:compile"


@dataclass
class Stopwatch:
    """Reads `seconds` of work and `compiling` seconds when its block has ended."""

    seconds: float = 0.0
    compiling: float = 0.0

    def __str__(self) -> str:
        besides = f", besides {self.compiling:.1f} s to compile kernels" if self.compiling >= 0.1 else ""
        return f"{self.seconds:.1f} s{besides}"


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the block. Kernels are compiled one after the other, and what they call is compiled inside of them.

    Waiting for a kernel that a second process compiles counts as compiling.
    """
    from numba.core import event as happenings

    from labelwise.linear.compile_ahead import WAITING

    watch, begin = Stopwatch(), time.perf_counter()
    open_since: list[float] = []

    class Compilations(happenings.Listener):
        def on_start(self, event: Any) -> None:
            if not open_since and not watch.compiling:
                log.info("compiling kernels, once on this machine")
            open_since.append(time.perf_counter())

        def on_end(self, event: Any) -> None:
            since = open_since.pop() if open_since else begin  # another thread's may have begun before the block
            if not open_since:
                watch.compiling += time.perf_counter() - since

    listener = Compilations()
    try:
        with happenings.install_listener(COMPILATION, listener), happenings.install_listener(WAITING, listener):
            yield watch
    finally:
        watch.seconds = max(time.perf_counter() - begin - watch.compiling, 0.0)
