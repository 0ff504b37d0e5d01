"""A reader of CBOR (RFC 8949) for files from untrusted sources: JSON's types only, and arrays of numbers as NumPy's.

Tags, byte strings and items of indefinite length are refused. Lengths are compared with the bytes that are left before
anything is allocated, and nesting is limited. A number takes at most 16 bytes of memory per byte of the file, an empty
array or map, which omikuji hardly writes, about 60.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import DataError

MAX_NESTING = 600
UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
SIMPLE_VALUES = {20: False, 21: True, 22: None}
FLOATS = (25, 26, 27)


def read_cbor(path: Path) -> Any:
    """The only item of a file. An array of numbers becomes int64 or float64, an empty array an empty list."""
    return _Reader(np.fromfile(path, np.uint8), path).only_item()


class _Reader:
    """Reads items one after the other; open arrays and maps are on a stack, so that nesting needs no recursion."""

    def __init__(self, data: np.ndarray, path: Path) -> None:
        self.data, self.path, self.position = data, path, 0

    def only_item(self) -> Any:
        top: list[Any] = []
        stack: list[tuple[Any, int]] = [(top, 1)]
        while stack:
            container, length = stack[-1]
            if len(container) == length:
                stack.pop()
                continue
            key = self._key(container) if isinstance(container, dict) else None
            item, inside = self._item()
            if isinstance(container, dict):
                container[key] = item
            else:
                container.append(item)
            if inside:
                stack.append((item, inside))
                if len(stack) > MAX_NESTING:
                    raise self._damaged(f"items are nested more than {MAX_NESTING} deep")
        if self.position != len(self.data):
            raise self._damaged("there are bytes after the end")
        return top[0]

    def _item(self) -> tuple[Any, int]:
        """The next item, and if it is an array or a map that is still empty how many items belong into it."""
        major, size = self._first_byte()
        if major == SIMPLE and size in SIMPLE_VALUES:
            self.position += 1
            return SIMPLE_VALUES[size], 0
        if self._starts_number():
            return self._numbers(1)[0].item(), 0
        if major not in (TEXT, ARRAY, MAP):
            raise self._damaged("byte strings, tags and undefined values are not supported")
        self.position += 1
        length = self._length(size)
        if major == TEXT:
            return self._text(length), 0
        if major == MAP:
            return {}, length
        if length and self._starts_number():
            return self._numbers(length), 0
        return [], length

    def _key(self, found: dict[str, Any]) -> str:
        major, size = self._first_byte()
        if major != TEXT:
            raise self._damaged("a key is not a text")
        self.position += 1
        key = self._text(self._length(size))
        if key in found:
            raise self._damaged(f"the key {key[:40]!r} occurs twice")
        return key

    def _first_byte(self) -> tuple[int, int]:
        """Type of the next item, and the bits that hold its size."""
        if self.position >= len(self.data):
            raise self._damaged("the file is cut off")
        byte = int(self.data[self.position])
        return byte >> 5, byte & 31

    def _starts_number(self) -> bool:
        major, size = self._first_byte()
        return major in (UNSIGNED, NEGATIVE) or (major == SIMPLE and size in FLOATS)

    def _length(self, size: int) -> int:
        """A length; every item in an array, and every byte of a text, takes at least one byte."""
        length = size
        if size >= 24:
            width = 1 << (size - 24)
            if size > 27 or self.position + width > len(self.data):
                raise self._damaged("a length is cut off, or indefinite")
            length = int.from_bytes(self.data[self.position : self.position + width].tobytes(), "big")
            self.position += width
        if length > len(self.data) - self.position:
            raise self._damaged(f"{length:,} items or bytes are announced, but the file ends before")
        return length

    def _text(self, length: int) -> str:
        begin, self.position = self.position, self.position + length
        try:
            return self.data[begin : self.position].tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("a text is not UTF-8") from None

    def _numbers(self, count: int) -> np.ndarray:
        from labelwise.kernels.formats.cbor_numbers import read_numbers

        numbers = np.empty(count, np.float64)
        position, integers = read_numbers(self.data, self.position, numbers)
        if position < 0:
            raise self._damaged("an array mixes numbers with something else, or is cut off")
        self.position = int(position)
        return numbers.astype(np.int64) if integers else numbers

    def _damaged(self, why: str) -> DataError:
        return DataError(f"not a CBOR file that can be read, or damaged, at byte {self.position:,}: {why}", self.path)
