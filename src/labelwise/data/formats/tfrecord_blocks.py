"""Streams TFRecord files as blocks of whole records that a thread reads ahead.

The checksums of lengths are checked here, because blocks are cut by lengths.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.data.files import InputStream
from labelwise.data.stream import FIRST_BLOCK_BYTES, ByteBlock, blocks_ahead, fill

COPY_AGAIN = "copy or write the file again"


@dataclass(frozen=True, eq=False)
class RecordBlock(ByteBlock):
    """Whole records: their bytes, the first one's number (`first_line`), the count (`lines`), and the offset."""

    first_byte: int = 0
    fault: str | None = None
    """The fault of the next record, in a last block without records, so that faults are reported in file order."""


def record_blocks(path: str | Path, block_bytes: int) -> Generator[RecordBlock, None, None]:
    """The file's records in blocks of about `block_bytes`; a longer record gets a longer block."""
    return blocks_ahead(path, block_bytes, _cut_records)


def _cut_records(stream: InputStream, block_bytes: int) -> Iterator[RecordBlock]:
    """Blocks that end at a record's end; an incomplete record at the end of a buffer is carried over to the next."""
    from labelwise.kernels.formats import example_records as kernel

    carried = bytearray()
    number, offset = 1, 0
    size = min(block_bytes, FIRST_BLOCK_BYTES)
    ended = False
    while not ended:
        buffer = bytearray(max(size, 2 * len(carried)))
        buffer[: len(carried)] = carried
        size = block_bytes
        filled, ended = fill(stream, buffer, len(carried))
        data = np.frombuffer(buffer, np.uint8)
        fault, end, count = kernel.complete_records(data, filled)
        if count:
            yield RecordBlock(data[:end], number, count, first_byte=offset)
        number, offset = number + count, offset + end
        if fault != kernel.FINE:
            yield _faulty(number, offset, _explain(data, fault, end, number))
            return
        carried = buffer[end:filled]
    if carried:
        yield _faulty(number, offset, _explain_truncation(carried))


def _faulty(number: int, offset: int, what: str) -> RecordBlock:
    return RecordBlock(
        np.empty(0, np.uint8), number, 0, first_byte=offset, fault=f"{record_location(number, offset)}: {what}"
    )


def record_location(number: int, offset: int) -> str:
    """The location of a record, for messages."""
    return f"record {number:,} at byte {offset:,}"


def _explain(data: np.ndarray, fault: int, position: int, number: int) -> str:
    from labelwise.kernels.formats import example_records as kernel

    if fault == kernel.TOO_LONG:
        length = int.from_bytes(data[position : position + 8].tobytes(), "little")
        return f"its length is {length:,} bytes; at most {kernel.MAX_RECORD_BYTES:,} are accepted"
    if number == 1:
        return f"the checksum of its length is wrong: this is not a TFRecord file, or it is damaged; {COPY_AGAIN}"
    return f"the checksum of its length is wrong: the file is damaged here or before; {COPY_AGAIN}"


def _explain_truncation(rest: bytearray) -> str:
    if len(rest) < 12:
        return f"the file is truncated: {len(rest)} bytes are left, but a record has a header of 12; {COPY_AGAIN}"
    needed = int.from_bytes(rest[:8], "little") + 16
    return f"the file is truncated: the record takes {needed:,} bytes and {len(rest):,} are left; {COPY_AGAIN}"
