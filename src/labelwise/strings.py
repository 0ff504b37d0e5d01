"""Strings: an immutable list of texts kept as one UTF-8 buffer with a start and an end each.

Python strings cost about 60 bytes each besides their characters, and kernels cannot read them. Here a text costs 16
bytes, selecting rows copies no text, and kernels can read the buffer on many threads.
Texts, label names and label texts are all Strings; for callers they behave like a list of str.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from labelwise.errors import DataError


class Strings(Sequence[str]):
    """A list of str over one buffer; ``buffer[starts[i]:ends[i]]`` is text ``i`` in valid UTF-8."""

    __slots__ = ("_positions", "buffer", "column_numbers", "distinct", "ends", "starts")

    def __init__(
        self, buffer: np.ndarray | Iterable[str], starts: np.ndarray | None = None, ends: np.ndarray | None = None
    ) -> None:
        """From any strings, or from a buffer with starts and ends."""
        if starts is None or ends is None or not isinstance(buffer, np.ndarray):
            if starts is not None or ends is not None:
                raise ValueError("Strings takes a list of str, or a uint8 buffer with starts and ends")
            given = Strings.of(buffer)  # type: ignore[arg-type]
            buffer, starts, ends = given.buffer, given.starts, given.ends
        if buffer.dtype != np.uint8 or starts.shape != ends.shape or starts.ndim != 1:
            raise ValueError("Strings needs a uint8 buffer and two vectors of equal length")
        self.buffer = buffer
        self.starts = starts
        self.ends = ends
        self._positions: dict[str, int] | None = None
        self.distinct: bool | None = None  # whether all differ, None until it is known
        self.column_numbers = False  # whether these stand for names that a label matrix does not have

    @classmethod
    def of(cls, items: Iterable[str] | Strings) -> Strings:
        """Strings from any iterable of str; Strings are returned unchanged."""
        if isinstance(items, Strings):
            return items
        if type(items) is list and len(items) == 1 and type(items[0]) is str and items[0].isascii():
            data = items[0].encode()  # a single request to a server: the general path would take a third of its time
            return cls(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)], np.int64))
        encoded = []
        for position, item in enumerate(items):
            if not isinstance(item, str):
                raise DataError(f"item {position} is a {type(item).__name__}, a string is needed")
            try:
                encoded.append(item.encode())
            except UnicodeEncodeError as error:
                raise DataError(f"item {position} cannot be written as UTF-8: {error.reason}") from None
        ends = np.cumsum(np.fromiter((len(e) for e in encoded), np.int64, len(encoded)), dtype=np.int64)
        return cls.packed(np.frombuffer(b"".join(encoded), np.uint8), ends)

    @classmethod
    def packed(cls, buffer: np.ndarray, ends: np.ndarray) -> Strings:
        """Strings that follow each other in the buffer without gaps."""
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = ends[:-1]
        return cls(buffer, starts, np.asarray(ends, np.int64))

    @classmethod
    def numbers(cls, count: int) -> Strings:
        """The names '0', '1', ... of labels that have none."""
        texts = [np.empty(0, np.uint8)]
        lengths = [np.empty(0, np.int64)]
        for digits in range(1, len(str(count)) + 1):
            numbers = np.arange(10 ** (digits - 1) if digits > 1 else 0, min(count, 10**digits))
            text = np.empty((len(numbers), digits), np.uint8)
            for digit in reversed(range(digits)):
                text[:, digit] = numbers % 10 + ord("0")
                numbers //= 10
            texts.append(text.ravel())
            lengths.append(np.full(len(numbers), digits))
        names = cls.packed(np.concatenate(texts), np.cumsum(np.concatenate(lengths), dtype=np.int64))
        names.distinct = True
        return names

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice | np.ndarray | list[int]) -> Strings: ...
    def __getitem__(self, key: Any) -> str | Strings:
        if isinstance(key, int | np.integer):
            return self.buffer[self.starts[key] : self.ends[key]].tobytes().decode()
        return Strings(self.buffer, self.starts[key], self.ends[key])

    def __iter__(self) -> Iterator[str]:
        view = self.buffer.data
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield str(view[start:end], "utf-8")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strings | list | tuple):
            return NotImplemented
        if len(self) != len(other):
            return False
        if isinstance(other, Strings):
            mine, theirs = self.compact(), other.compact()
            return np.array_equal(mine.ends, theirs.ends) and np.array_equal(mine.buffer, theirs.buffer)
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[i][:40]) for i in range(min(3, len(self))))
        return f"Strings({len(self):,}: {shown}{', ...' if len(self) > 3 else ''})"

    def __add__(self, other: Iterable[str]) -> Strings:
        mine, theirs = self.compact(), Strings.of(other).compact()
        offset = mine.ends[-1] if len(mine) else 0
        return Strings.packed(
            np.concatenate([mine.buffer, theirs.buffer]), np.concatenate([mine.ends, theirs.ends + offset])
        )

    def compact(self) -> Strings:
        """The same strings without gaps in the buffer; itself when there are none."""
        lengths = self.ends - self.starts
        ends = np.cumsum(lengths, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if total == len(self.buffer) and np.array_equal(ends, self.ends):
            return self
        if total and np.array_equal(self.starts[1:], self.ends[:-1]):  # a range of the buffer, which may be mapped
            return Strings.packed(self.buffer[self.starts[0] : self.ends[-1]], ends)
        view = self.buffer.data
        pieces = [view[a:b] for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]
        return Strings.packed(np.frombuffer(b"".join(pieces), np.uint8), ends)

    @property
    def positions(self) -> dict[str, int]:
        """Index of each string; the first of equal ones. Built on first use."""
        if self._positions is None:
            table: dict[str, int] = {}
            for index, item in enumerate(self):
                table.setdefault(item, index)
            self._positions = table
        return self._positions

    def __getstate__(self) -> tuple:
        return self.buffer, self.starts, self.ends, self.column_numbers

    def __setstate__(self, state: tuple) -> None:
        self.buffer, self.starts, self.ends, self.column_numbers = state
        self._positions = self.distinct = None
