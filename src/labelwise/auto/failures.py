"""Failures that end a trial and not the search, such as a model that needs more memory than there is."""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
import sys
import traceback

from labelwise.errors import LabelwiseError

log = logging.getLogger("labelwise")

FAILURES = (LabelwiseError, MemoryError, OSError, RuntimeError)
"""RuntimeError is what torch raises when there is no memory left, on a GPU or for the CPU."""
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""What torch's errors say then."""


def failed(name: str, error: BaseException) -> LabelwiseError:
    """Log why a trial has failed, and free what it has computed; returns an error that says the same.

    The frames of the traceback hold the arrays of the trial as long as somebody has the error.
    """
    failure = error if isinstance(error, LabelwiseError) else LabelwiseError(_reason(error))
    expected = isinstance(error, (LabelwiseError, OSError)) or _is_out_of_memory(error)
    log.warning("%s: failed: %s", name, failure, exc_info=None if expected else error)
    _free_memory(error)
    return failure.with_traceback(None)


def _free_memory(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY)


def _reason(error: BaseException) -> str:
    """One line: after its first line an error of torch has hints that do not help here."""
    if _is_out_of_memory(error):
        return "not enough memory"
    if isinstance(error, OSError):
        return f"{error.filename or 'input or output'}: {error.strerror or error}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
