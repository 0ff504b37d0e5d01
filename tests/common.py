"""What tests of many folders use."""

import ctypes
import gc
import platform

import pytest

from labelwise.runtime import memory as kept_memory
from labelwise.testing.subject import same_predictions

__all__ = ["Clock", "Stop", "default_malloc", "same_predictions"]


@pytest.fixture
def default_malloc(monkeypatch):
    """The C library's own settings, and no freed memory in the process: other tests may have left either."""
    gc.collect()  # closes iterators that a test has abandoned, and their blocks of `keep_freed_memory`
    if platform.libc_ver()[0] == "glibc":
        monkeypatch.setattr(kept_memory, "_blocks", 0)
        library = ctypes.CDLL(None)
        kept_memory._set(library, kept_memory.DEFAULTS)
        library.malloc_trim(0)


class Stop(Exception):
    """What stops a training or an encoding in the middle, as a kill would."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
