"""Writes RecordIO files by hand, for tests."""

from __future__ import annotations

import io
import struct

import numpy as np

MAGIC = struct.pack("<I", 0xCED7230A)


def image_bytes(pixels, format="PNG"):
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, format)
    return buffer.getvalue()


def content(labels, image=b"", key=0):
    """The content of an image record: a number, or a list of labels."""
    if isinstance(labels, (int, float)):
        return struct.pack("<IfQQ", 0, labels, key, 0) + image
    return struct.pack("<IfQQ", len(labels), 0.0, key, 0) + np.asarray(labels, "<f4").tobytes() + image


def part(data, flag=0):
    return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + b"\0" * (-len(data) % 4)


def record(data):
    """A record, in several parts where it contains the magic number at a multiple of 4."""
    cuts = [i for i in range(0, len(data) - 3, 4) if data[i : i + 4] == MAGIC]
    if not cuts:
        return part(data)
    begins, ends = [0, *(cut + 4 for cut in cuts)], [*cuts, len(data)]
    pieces = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    flags = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(part(piece, flag) for piece, flag in zip(pieces, flags, strict=True))


def write_records(path, contents, index=True, keys=None):
    """A .rec file and its .idx file; returns the offsets."""
    data, offsets = b"", []
    for one in contents:
        offsets.append(len(data))
        data += record(one)
    path.write_bytes(data)
    if index:
        numbered = zip(keys or range(len(offsets)), offsets, strict=True)
        path.with_suffix(".idx").write_text("".join(f"{key}\t{offset}\n" for key, offset in numbered))
    return offsets
