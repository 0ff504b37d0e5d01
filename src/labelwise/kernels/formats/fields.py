"""Fields of text lines: cut byte ranges into tokens, and give every different token a number.

Label columns of millions of lines go through here, so that no label becomes a Python object until it is known
to be a new one. A blank is a space or a tab; no other byte ends a token, so tokens of valid UTF-8 stay valid
UTF-8.
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
    """Cut ranges ``data[starts[i]:ends[i]]`` into tokens: their starts, ends, and where each range's begin.

    Without a separator tokens stand between blanks; with one they stand between its occurrences and blanks
    around them are cut off. Empty tokens are left out.
    """
    data, starts, ends = _read_only(data), _places(starts), _places(ends)
    mark = np.frombuffer(separator, np.uint8)
    first = np.zeros(len(starts) + 1, np.int64)
    none = np.empty(0, np.int64)
    _cut(data, starts, ends, mark, first, none, none, False)
    np.cumsum(first, out=first)
    token_starts, token_ends = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    _cut(data, starts, ends, mark, first, token_starts, token_ends, True)
    return token_starts, token_ends, first


def leading_fields(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, prefix: bytes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The words at the begin of each range that begin with `prefix`.

    Returns starts and ends of those words without the prefix, where each range's begin among them, where the
    rest of each range begins (after one blank), and whether the rest holds further such words.
    """
    data, starts, ends = _read_only(data), _places(starts), _places(ends)
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
    """The first `count` places of a byte in each range, [ranges, count]; -1 where there are fewer."""
    places = np.full((len(starts), count), -1, np.int64)
    _find(_read_only(data), _places(starts), _places(ends), byte, places)
    return places


class Interner:
    """Numbers for tokens: equal bytes get the same number, new ones the next, in the order they come."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))  # nobody can prepare a file whose labels all collide
        self._slots = np.full(2 * _FIRST_NAMES, -1, np.int32)
        self._hashes = np.empty(_FIRST_NAMES, np.uint64)
        self._ends = np.empty(_FIRST_NAMES, np.int64)
        self._buffer = np.empty(16 * _FIRST_NAMES, np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The numbers of the tokens ``data[starts[i]:ends[i]]``, int32."""
        data, starts, ends = _read_only(data), _places(starts), _places(ends)
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
        """Make room for one more name of this length, and for many more while at it."""
        if self._count == len(self._ends):
            room = 2 * self._count
            self._ends = np.resize(self._ends, room)
            self._hashes = np.resize(self._hashes, room)
            self._slots = np.full(2 * room, -1, np.int32)
            _place_again(self._hashes[: self._count], self._slots)
        used = int(self._ends[self._count - 1]) if self._count else 0
        if used + length > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * (used + length))

    def names(self) -> Strings:
        """All names so far; name i has the number i."""
        ends = self._ends[: self._count].copy()
        return Strings.packed(self._buffer[: ends[-1] if len(ends) else 0].copy(), ends)


def _read_only(data: np.ndarray) -> np.ndarray:
    """A view that cannot be written, so that each kernel is compiled for one kind of array only."""
    view = np.ascontiguousarray(data, np.uint8)[:]
    view.flags.writeable = False
    return view


def _places(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.int64)


@inner
def _is_blank(byte: int) -> bool:
    return byte in (SPACE, TAB)


@inner
def _starts_with(data: np.ndarray, place: int, end: int, mark: np.ndarray) -> bool:
    """Whether `mark` stands at `place` and ends no later than `end`."""
    if end - place < len(mark):
        return False
    for i in range(len(mark)):  # noqa: SIM110 (this compiles to a plain loop)
        if data[place + i] != mark[i]:
            return False
    return True


@jit
def _cut(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    mark: np.ndarray,
    first: np.ndarray,
    token_starts: np.ndarray,
    token_ends: np.ndarray,
    fill: bool,
) -> None:
    """Count tokens into ``first[row + 1]``, or, with `fill`, put their bounds where `first` says."""
    for row in range(len(starts)):
        place, end = starts[row], ends[row]
        written = first[row]
        count = 0
        while place < end:
            stop = place
            if len(mark) == 0:
                while stop < end and not _is_blank(data[stop]):
                    stop += 1
                begin, last, place = place, stop, stop + 1
            else:
                while stop < end and not _starts_with(data, stop, end, mark):
                    stop += 1
                begin, last, place = place, stop, stop + len(mark)
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
        place, end = starts[row], ends[row]
        written = first[row]
        count = 0
        text = place
        while True:
            begin = place
            while begin < end and _is_blank(data[begin]):
                begin += 1
            if not _starts_with(data, begin, end, mark):
                break
            place = begin
            while place < end and not _is_blank(data[place]):
                place += 1
            if fill:
                word_starts[written + count] = begin + len(mark)
                word_ends[written + count] = place
            count += 1
            text = min(place + 1, end)
        if fill:
            rest[row] = text
            scattered[row] = False
            at_word = True
            for place in range(text, end):
                if at_word and data[place] == mark[0] and _starts_with(data, place, end, mark):
                    scattered[row] = True
                    break
                at_word = _is_blank(data[place])
        else:
            first[row + 1] = count


@jit
def _find(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, byte: int, places: np.ndarray) -> None:
    for row in range(len(starts)):
        found = 0
        place = starts[row]
        while place < ends[row] and found < places.shape[1]:
            if data[place] == byte:
                places[row, found] = place
                found += 1
            place += 1


@inner
def _mixed(value: np.uint64) -> np.uint64:
    """The last step of the hash: the low bits, which choose the slot, come to depend on all bits."""
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
    """Number tokens from `done` on while there is room for new names; where it stopped, names known."""
    mask = np.int64(len(slots) - 1)
    for token in range(done, len(starts)):
        start, end = starts[token], ends[token]
        value = seed
        for place in range(start, end):
            value = (value ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
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
def _place_again(hashes: np.ndarray, slots: np.ndarray) -> None:
    mask = np.int64(len(slots) - 1)
    for name in range(len(hashes)):
        slot = np.int64(hashes[name] & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = name
