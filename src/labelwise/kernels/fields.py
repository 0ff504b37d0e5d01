"""Fields of text lines: split byte ranges into tokens, and assign a number to every distinct token.

Used for label columns of millions of lines, so that only new labels become Python objects. A blank is a space or a tab;
no other byte ends a token, so tokens of valid UTF-8 are valid UTF-8.
"""

from __future__ import annotations

import secrets

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.strings import Strings

SPACE, TAB = 32, 9
_FIRST_NAMES = 1 << 10


def split_fields(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, separator: bytes = b""
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split ranges ``data[starts[i]:ends[i]]`` into tokens: their starts, ends, and the offset of each range's tokens.

    Without a separator tokens are separated by blanks; with one by its occurrences, and blanks around tokens are
    stripped. Empty tokens are left out.
    """
    data, starts, ends = _as_bytes(data), _as_positions(starts), _as_positions(ends)
    mark = np.frombuffer(separator, np.uint8)
    first = np.zeros(len(starts) + 1, np.int64)
    none = np.empty(0, np.int64)
    _split(data, starts, ends, mark, first, none, none, False)
    np.cumsum(first, out=first)
    token_starts, token_ends = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    _split(data, starts, ends, mark, first, token_starts, token_ends, True)
    return token_starts, token_ends, first


def leading_fields(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, prefix: bytes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The words at the start of each range that begin with `prefix`.

    Returns starts and ends of those words without the prefix, the offset of each range's words, the start of the rest
    of each range (after one blank), and whether the rest holds further such words.
    """
    data, starts, ends = _as_bytes(data), _as_positions(starts), _as_positions(ends)
    mark = np.frombuffer(prefix, np.uint8)
    first = np.zeros(len(starts) + 1, np.int64)
    rest, scattered = np.empty(len(starts), np.int64), np.empty(len(starts), np.bool_)
    none = np.empty(0, np.int64)
    _lead(data, starts, ends, mark, first, none, none, rest, scattered, False)
    np.cumsum(first, out=first)
    word_starts, word_ends = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    _lead(data, starts, ends, mark, first, word_starts, word_ends, rest, scattered, True)
    return word_starts, word_ends, first, rest, scattered


def find_byte(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, byte: int, count: int) -> np.ndarray:
    """The first `count` positions of a byte in each range, [ranges, count], padded with -1."""
    positions = np.full((len(starts), count), -1, np.int64)
    _find(_as_bytes(data), _as_positions(starts), _as_positions(ends), byte, positions)
    return positions


class Interner:
    """Assigns numbers to tokens: equal bytes get the same number, new ones the next, in order of appearance."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))  # prevents files crafted so that all labels collide
        self._slots = np.full(2 * _FIRST_NAMES, -1, np.int32)
        self._hashes = np.empty(_FIRST_NAMES, np.uint64)
        self._ends = np.empty(_FIRST_NAMES, np.int64)
        self._buffer = np.empty(16 * _FIRST_NAMES, np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The numbers of the tokens ``data[starts[i]:ends[i]]``, int32."""
        data, starts, ends = _as_bytes(data), _as_positions(starts), _as_positions(ends)
        ids = np.empty(len(starts), np.int32)
        done = 0
        while done < len(starts):
            done, self._count = _intern(
                data, starts, ends, done, ids,
                self._seed, self._slots, self._hashes, self._ends, self._buffer, self._count,
            )  # fmt: skip
            if done < len(starts):
                self._grow(int(ends[done] - starts[done]))
        return ids

    def _grow(self, length: int) -> None:
        """Double the arrays that cannot hold one more name of this length."""
        if self._count == len(self._ends):
            capacity = 2 * self._count
            self._ends = np.resize(self._ends, capacity)
            self._hashes = np.resize(self._hashes, capacity)
            self._slots = np.full(2 * capacity, -1, np.int32)
            _rehash(self._hashes[: self._count], self._slots)
        used = int(self._ends[self._count - 1]) if self._count else 0
        if used + length > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * (used + length))

    def names(self) -> Strings:
        """All names so far; name i has the number i."""
        ends = self._ends[: self._count].copy()
        return Strings.packed(self._buffer[: ends[-1] if len(ends) else 0].copy(), ends)


def _as_bytes(data: np.ndarray) -> np.ndarray:
    """A read-only view, so that each kernel is compiled for one array type only."""
    view = np.ascontiguousarray(data, np.uint8)[:]
    view.flags.writeable = False
    return view


def _as_positions(values: np.ndarray) -> np.ndarray:
    view = np.ascontiguousarray(values, np.int64)[:]
    view.flags.writeable = False
    return view


@inner
def _is_blank(byte: int) -> bool:
    return byte in (SPACE, TAB)


@inner
def _starts_with(data: np.ndarray, position: int, end: int, mark: np.ndarray) -> bool:
    """Whether `mark` is at `position` and ends no later than `end`."""
    if end - position < len(mark):
        return False
    for i in range(len(mark)):  # noqa: SIM110 (this compiles to a plain loop)
        if data[position + i] != mark[i]:
            return False
    return True


@jit
def _split(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    mark: np.ndarray,
    first: np.ndarray,
    token_starts: np.ndarray,
    token_ends: np.ndarray,
    fill: bool,
) -> None:
    """Count tokens into ``first[row + 1]``, or, with `fill`, write their bounds from the offsets `first` on."""
    for row in range(len(starts)):
        position, end = starts[row], ends[row]
        written = first[row]
        count = 0
        while position < end:
            stop = position
            if len(mark) == 0:
                while stop < end and not _is_blank(data[stop]):
                    stop += 1
                begin, last, position = position, stop, stop + 1
            else:
                while stop < end and not _starts_with(data, stop, end, mark):
                    stop += 1
                begin, last, position = position, stop, stop + len(mark)
                while begin < last and _is_blank(data[begin]):
                    begin += 1
                while last > begin and _is_blank(data[last - 1]):
                    last -= 1
            if last > begin:
                if fill:
                    token_starts[written + count] = begin
                    token_ends[written + count] = last
                count += 1
        if not fill:
            first[row + 1] = count


@jit
def _lead(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    mark: np.ndarray,
    first: np.ndarray,
    word_starts: np.ndarray,
    word_ends: np.ndarray,
    rest: np.ndarray,
    scattered: np.ndarray,
    fill: bool,
) -> None:
    for row in range(len(starts)):
        position, end = starts[row], ends[row]
        written = first[row]
        count = 0
        text = position
        while True:
            begin = position
            while begin < end and _is_blank(data[begin]):
                begin += 1
            if not _starts_with(data, begin, end, mark):
                break
            position = begin
            while position < end and not _is_blank(data[position]):
                position += 1
            if fill:
                word_starts[written + count] = begin + len(mark)
                word_ends[written + count] = position
            count += 1
            text = min(position + 1, end)
        if fill:
            rest[row] = text
            scattered[row] = False
            at_word = True
            for position in range(text, end):
                if at_word and data[position] == mark[0] and _starts_with(data, position, end, mark):
                    scattered[row] = True
                    break
                at_word = _is_blank(data[position])
        else:
            first[row + 1] = count


@jit
def _find(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, byte: int, positions: np.ndarray) -> None:
    for row in range(len(starts)):
        found = 0
        position = starts[row]
        while position < ends[row] and found < positions.shape[1]:
            if data[position] == byte:
                positions[row, found] = position
                found += 1
            position += 1


@inner
def _mixed(value: np.uint64) -> np.uint64:
    """The final mixing of the hash: the low bits, which select the slot, then depend on all bits."""
    value ^= value >> np.uint64(32)
    value *= np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(29))


@jit
def _intern(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    done: int,
    ids: np.ndarray,
    seed: np.uint64,
    slots: np.ndarray,
    hashes: np.ndarray,
    name_ends: np.ndarray,
    buffer: np.ndarray,
    count: int,
) -> tuple[int, int]:
    """Number tokens from `done` on until an array is full; returns the tokens done and the number of names."""
    mask = np.int64(len(slots) - 1)
    for token in range(done, len(starts)):
        start, end = starts[token], ends[token]
        value = seed
        for position in range(start, end):
            value = (value ^ np.uint64(data[position])) * np.uint64(0x100000001B3)
        value = _mixed(value)
        slot = np.int64(value & np.uint64(mask))
        while True:
            known = slots[slot]
            if known < 0:
                break
            if hashes[known] == value:
                begin = name_ends[known - 1] if known > 0 else np.int64(0)
                if name_ends[known] - begin == end - start:
                    same = True
                    for i in range(end - start):
                        if buffer[begin + i] != data[start + i]:
                            same = False
                            break
                    if same:
                        break
            slot = (slot + 1) & mask
        if known < 0:
            begin = name_ends[count - 1] if count > 0 else np.int64(0)
            if count == len(name_ends) or begin + end - start > len(buffer):
                return token, count
            for i in range(end - start):
                buffer[begin + i] = data[start + i]
            name_ends[count] = begin + end - start
            hashes[count] = value
            slots[slot] = count
            known = np.int32(count)
            count += 1
        ids[token] = known
    return len(starts), count


@jit
def _rehash(hashes: np.ndarray, slots: np.ndarray) -> None:
    mask = np.int64(len(slots) - 1)
    for name in range(len(hashes)):
        slot = np.int64(hashes[name] & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = name


# --- canonical ---
# Check that a CSR matrix is canonical.


@jit
def is_canonical(indptr, indices, data, n_rows, n_columns):
    """Whether offsets ascend, columns are sorted, unique and in range, and values are finite and non-zero."""
    if len(indptr) != n_rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or len(indices) != len(data):
        return False
    for row in range(n_rows):
        if indptr[row + 1] < indptr[row] or indptr[row + 1] > len(indices):
            return False
        before = -1
        for k in range(indptr[row], indptr[row + 1]):
            column = indices[k]
            if column <= before or column >= n_columns or data[k] == 0 or not np.isfinite(data[k]):
                return False
            before = column
    return True
