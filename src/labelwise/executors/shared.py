"""A value for many tasks: the arrays in it are written to one file, which workers map; the rest is pickled.

Workers on one machine share the pages of the file, and nothing is copied per task. Small values need no file. The
pickle is part of the message to the workers and is never written to disk.
"""

from __future__ import annotations

import io
import mmap
import pickle
import secrets
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import DataError

INLINE_BYTES = 1 << 20
"""Values with fewer bytes in arrays are sent with the message."""
ALIGNMENT = 64
OPEN_AT_ONCE = 8
"""Shared values that a worker keeps open."""

_open: OrderedDict[str, Any] = OrderedDict()


@dataclass(frozen=True)
class Shared:
    """A packed value; it may be part of another one."""

    token: str
    """Random; the file begins with it."""
    content: bytes
    """The pickle without its arrays."""
    inline: tuple[bytes, ...] | None
    """The arrays' bytes, if there are few."""
    path: Path | None
    ranges: tuple[tuple[int, int], ...] = ()
    """Where the arrays are in the file."""

    def open(self) -> Any:
        """The value, with read-only arrays; the last few are kept open."""
        known = is_open(self.token)
        if known is not None:
            return known
        value = pickle.loads(self.content, buffers=self.inline if self.inline is not None else self._mapped())
        _open[self.token] = value
        while len(_open) > OPEN_AT_ONCE:
            _open.popitem(last=False)
        return value

    def _mapped(self) -> list[memoryview]:
        path = Path(str(self.path))
        try:
            with path.open("rb") as file:
                view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read by a worker: {getattr(error, 'strerror', None) or error}", path) from None
        end = max((end for _, end in self.ranges), default=0)
        if bytes(view[: len(self.token)]) != self.token.encode() or len(view) < end:
            raise DataError("a worker sees other contents than were written, or not all of them", path)
        return [view[begin:end] for begin, end in self.ranges]

    @property
    def message_bytes(self) -> int:
        """Bytes that every message with this value has."""
        return len(self.content) + sum(map(len, self.inline or ()))

    def remove(self) -> None:
        """Delete the file."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def is_open(token: str) -> Any:
    """The value with this token, if it is open in this process."""
    if token not in _open:
        return None
    _open.move_to_end(token)
    return _open[token]


def pack(value: Any, folder: Path | None) -> Shared:
    """Pack a value; large arrays go to a new file in the folder, if there is one."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    raw = [buffer.raw() for buffer in buffers]
    token = secrets.token_hex(16)
    if folder is None or sum(view.nbytes for view in raw) < INLINE_BYTES:
        return Shared(token, file.getvalue(), tuple(map(bytes, raw)), None)
    path, ranges = folder / f"{token}.shared", []
    try:
        with path.open("xb") as rows:
            rows.write(token.encode())
            for view in raw:
                rows.write(bytes(-rows.tell() % ALIGNMENT))
                begin = rows.tell()
                rows.write(view)
                ranges.append((begin, begin + view.nbytes))
    except OSError as error:
        raise DataError(f"cannot be written for the workers: {error.strerror or error}", path) from error
    return Shared(token, file.getvalue(), None, path, tuple(ranges))


class _Pickler(pickle.Pickler):
    """All contiguous arrays out of band, those mapped from files too."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.memmap):  # its own way of pickling copies it into the message
            return np.asarray, (obj.view(np.ndarray),)
        return NotImplemented
