"""Reference implementations of the kernels of records: slow, simple, and used by the tests only."""

from __future__ import annotations

import struct

import numpy as np

from reference_kernels import summed

NAMES = (b"labels", b"label_vals", b"input_idxs", b"input_vals")


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum as a record stores it."""
    plain = crc32c(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) % 2**32


def framed(message: bytes) -> bytes:
    """A message as one record."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc32c(length)) + message + struct.pack("<I", masked_crc32c(message))


def fields(message: bytes) -> list[tuple[int, int, bytes]]:
    """Number, wire type and content of each field; ValueError if the message is invalid."""
    found = []
    while message:
        tag, message = read_varint(message)
        wire, size = tag & 7, {1: 8, 5: 4}.get(tag & 7)
        if wire == 0:
            size = len(message) - len(read_varint(message)[1])
        elif wire == 2:
            size, message = read_varint(message)
        if tag < 8 or size is None or size > len(message):
            raise ValueError("broken message")
        found.append((tag >> 3, wire, message[:size]))
        message = message[size:]
    return found


def read_varint(data: bytes) -> tuple[int, bytes]:
    """The number at the start, and the rest."""
    for index, byte in enumerate(data[:10]):
        if byte < 128:
            value = sum((b & 127) << (7 * i) for i, b in enumerate(data[: index + 1])) % 2**64
            return value, data[index + 1 :]
    raise ValueError("a number without an end")


def numbers(feature: bytes, kind: int) -> list[float]:
    """The numbers of a Feature: 2 for floats, 3 for integers; ValueError if it holds others."""
    listed: list[float] = []
    for number, wire, content in fields(feature):
        if (number, wire) != (kind, 2):
            raise ValueError("numbers of another type")
        for index, inner, packed in fields(content):
            if kind == 2 and inner == 2 and len(packed) % 4:
                raise ValueError("floats of another size")
            if index != 1 or inner not in ((2, 5) if kind == 2 else (0, 2)):
                continue
            if kind == 2:
                listed += struct.unpack(f"<{len(packed) // 4}f", packed)
                continue
            while packed:
                value, packed = read_varint(packed)
                listed.append(value - 2**64 if value >= 2**63 else value)
    return listed


def example_row(message: bytes) -> tuple[list[int], list[float], list[int], list[float]] | None:
    """Labels, relevances, columns and values of an Example; None if it is faulty."""
    try:
        entries = [e for n, w, features in fields(message) if (n, w) == (1, 2) for e in fields(features)]
        found: dict[bytes, bytes] = {}
        for name, value in (_pair(content) for number, wire, content in entries if (number, wire) == (1, 2)):
            found[name] = value
        if not {b"input_idxs", b"input_vals"} & set(found):
            return None
        columns, values = numbers(found.get(b"input_idxs", b""), 3), numbers(found.get(b"input_vals", b""), 2)
        labels = numbers(found.get(b"labels", b""), 3)
        rated = numbers(found[b"label_vals"], 2) if b"label_vals" in found else [1.0] * len(labels)
    except ValueError:
        return None
    valid = all(0 <= column <= 2**31 - 2 for column in (*columns, *labels)) and np.isfinite([*values, *rated]).all()
    if not valid or len(columns) != len(values) or len(labels) != len(rated):
        return None
    first = {int(label): rating for label, rating in reversed(list(zip(labels, rated, strict=True)))}
    kept = sorted(label for label, rating in first.items() if rating != 0)
    row = summed([(int(column), np.float32(value)) for column, value in zip(columns, values, strict=True)])
    return None if row is None else (kept, [first[label] for label in kept], *row)


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    """The name and the Feature of an entry; of several the last."""
    name, value = b"", b""
    for number, wire, content in fields(entry):
        if wire == 2 and number in (1, 2):
            name, value = (content, value) if number == 1 else (name, content)
    return name, value
