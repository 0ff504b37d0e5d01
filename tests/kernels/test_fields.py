"""The field kernels against reference implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_kernels as reference
from labelwise.kernels import fields

lines = st.lists(st.text(alphabet="ab; \té_|", max_size=20).map(str.encode), max_size=12)
marks = st.sampled_from([b"", b";", b"; ", b"ab", "é".encode(), b" ", b"\t", b"a_"])


def concatenated(pieces: list[bytes]) -> tuple[bytes, list[tuple[int, int]], np.ndarray, np.ndarray]:
    """The pieces with newlines between them, and where each one lies."""
    ends = np.cumsum([len(piece) + 1 for piece in pieces], dtype=np.int64) - 1
    starts = ends - np.array([len(piece) for piece in pieces], np.int64)
    return b"\n".join(pieces), list(zip(starts.tolist(), ends.tolist(), strict=True)), starts, ends


def grouped(data: bytes, starts: np.ndarray, ends: np.ndarray, first: np.ndarray) -> list[list[bytes]]:
    tokens = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return [tokens[a:b] for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)]


@settings(deadline=None)
@given(lines, marks)
def test_split_fields_equals_its_reference(pieces, mark):
    data, ranges, starts, ends = concatenated(pieces)
    found = fields.split_fields(np.frombuffer(data, np.uint8), starts, ends, mark)
    assert grouped(data, *found) == reference.split_fields(data, ranges, mark)


@settings(deadline=None)
@given(lines, st.sampled_from([b"a", b"ab", b"_", "é".encode()]))
def test_leading_fields_equals_its_reference(pieces, prefix):
    data, ranges, starts, ends = concatenated(pieces)
    word_starts, word_ends, first, rest, scattered = fields.leading_fields(
        np.frombuffer(data, np.uint8), starts, ends, prefix
    )
    leading, rests, more = reference.leading_fields(data, ranges, prefix)
    assert grouped(data, word_starts, word_ends, first) == leading
    assert [data[a:b] for a, b in zip(rest.tolist(), ends.tolist(), strict=True)] == rests
    assert scattered.tolist() == more


@settings(deadline=None)
@given(lines, st.sampled_from(b"a \t_"), st.integers(1, 3))
def test_find_byte_equals_its_reference(pieces, byte, count):
    data, ranges, starts, ends = concatenated(pieces)
    found = fields.find_byte(np.frombuffer(data, np.uint8), starts, ends, byte, count)
    assert found.tolist() == reference.find_byte(data, ranges, byte, count)


@settings(deadline=None)
@given(st.lists(st.lists(st.binary(max_size=6), max_size=40), max_size=4))
def test_interner_equals_its_reference_over_several_chunks(chunks):
    interner = fields.Interner()
    found: list[int] = []
    for chunk in chunks:
        ends = np.cumsum([len(token) for token in chunk], dtype=np.int64)
        starts = ends - np.array([len(token) for token in chunk], np.int64)
        found += interner.add(np.frombuffer(b"".join(chunk), np.uint8), starts, ends).tolist()
    numbers, names = reference.intern_tokens([token for chunk in chunks for token in chunk])
    assert found == numbers
    assert len(interner) == len(names)
    strings = interner.names()
    assert [strings.buffer[a:b].tobytes() for a, b in zip(strings.starts, strings.ends, strict=True)] == names


@pytest.mark.parametrize("length", [1, 7, 40_000])
def test_interner_grows_in_names_and_in_bytes(length):
    """Past the first table, past the first buffer, and one token longer than the buffer."""
    count = 20_000 if length < 100 else 5
    tokens = [f"{i:07d}".encode() * (length // 7 + 1) for i in range(count)] * 2
    lengths = np.array([len(token) for token in tokens], np.int64)
    ends = np.cumsum(lengths)
    interner = fields.Interner()
    ids = interner.add(np.frombuffer(b"".join(tokens), np.uint8), ends - lengths, ends)
    assert ids.tolist() == [*range(count), *range(count)]
    assert list(interner.names()) == [token.decode() for token in tokens[:count]]


def test_equal_hashes_do_not_make_equal_tokens(monkeypatch):
    """All names land in one slot with one stored hash: only the comparison of bytes can tell them apart."""
    interner = fields.Interner()
    first = interner.add(np.frombuffer(b"ab", np.uint8), np.array([0]), np.array([2]))
    data = np.frombuffer(b"cd", np.uint8)
    probe = fields.Interner()
    probe._seed = interner._seed
    probe.add(data, np.array([0]), np.array([2]))
    interner._hashes[0] = probe._hashes[0]
    interner._slots[:] = -1
    interner._slots[np.flatnonzero(probe._slots == 0)] = 0
    second = interner.add(data, np.array([0]), np.array([2]))
    assert first.tolist() == [0]
    assert second.tolist() == [1]


def test_writable_and_read_only_arrays_are_both_accepted():
    writable = np.array([97, 32, 98], np.uint8)
    frozen = np.frombuffer(b"a b", np.uint8)
    for data in (writable, frozen):
        starts, ends, first = fields.split_fields(data, np.array([0]), np.array([3]))
        assert (starts.tolist(), ends.tolist(), first.tolist()) == ([0, 2], [1, 3], [0, 2])
    assert writable.flags.writeable
