"""Measures seconds of work without the compilation of kernels, which happens once per machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

log = logging.getLogger("labelwise")
COMPILATION = "numba:compile"


@cache
def _announce() -> None:
    """Log that kernels are compiled, once per process."""
    log.info("compiling kernels, once per machine: up to a minute if all are missing")


@dataclass
class Stopwatch:
    """`seconds` of work and `compiling` seconds, set when the block ends."""

    seconds: float = 0.0
    compiling: float = 0.0

    def __str__(self) -> str:
        compilation = f", plus {self.compiling:.1f} s to compile kernels" if self.compiling >= 0.1 else ""
        return f"{self.seconds:.1f} s{compilation}"


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the block. Kernels are compiled one at a time; events of functions they call are nested.

    Waiting for a kernel that a second process compiles counts as compiling.
    """
    from numba.core import event as numba_event

    from labelwise.linear.compile_ahead import WAITING

    watch, begin = Stopwatch(), time.perf_counter()
    started: list[float] = []

    class Compilations(numba_event.Listener):
        def on_start(self, event: Any) -> None:
            if not started:
                _announce()
            started.append(time.perf_counter())

        def on_end(self, event: Any) -> None:
            start = (
                started.pop() if started else begin
            )  # another thread's compilation may have started before the block
            if not started:
                watch.compiling += time.perf_counter() - start

    listener = Compilations()
    try:
        with numba_event.install_listener(COMPILATION, listener), numba_event.install_listener(WAITING, listener):
            yield watch
    finally:
        watch.seconds = max(time.perf_counter() - begin - watch.compiling, 0.0)
