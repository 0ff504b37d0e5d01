"""Streams files, plain or compressed, as blocks of whole lines that a thread reads ahead.

Every line format uses this: it receives `ByteBlock`s, each a few megabytes that end at a line end, and parses them on
all cores while the next ones are read and decompressed. Every fault of a file (missing, truncated, damaged, in another
encoding) is raised as a `DataError` that names it.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import logging
import lzma
import queue
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from labelwise.data.options import how_to_set
from labelwise.errors import ConfigError, DataError
from labelwise.io.atomic import replacing
from labelwise.runtime.progress import progress
from labelwise.strings import Strings

# --- files ---
# Files opened for reading and writing, plain or compressed; every failure is an error that names the file.

_GZIP, _XZ, _BZIP = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh"
_REFUSED = {
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it first (plain, .gz, .xz and .bz2 are read)",
    b"PK\x03\x04": "is a zip archive; unpack it first (plain, .gz, .xz and .bz2 are read)",
}
_BZIP_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
GZIP_RATIO = 1032
"""A byte of deflate expands to at most this many."""
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, OSError)


class InputStream(io.RawIOBase):
    """A file opened for reading, decompressed transparently; every failure is a `DataError` that names the file."""

    def __init__(self, path: Path, file: io.BufferedReader, decompressed: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._decompressed: Any = decompressed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._decompressed.readinto(buffer)
        except _DAMAGE as error:
            raise _unreadable(self.path, error) from None

    def most_bytes(self) -> int | None:
        """How many bytes the stream can have at most, by the size of the file; None if that is unknown."""
        if not self.path.is_file() or isinstance(self._decompressed, bz2.BZ2File | lzma.LZMAFile):
            return None
        size = self.path.stat().st_size
        return size if self._decompressed is self._file else size * GZIP_RATIO

    def consumed(self) -> int:
        """Position in the compressed file; only for files with a known size."""
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            if self._decompressed is not self._file:
                self._decompressed.close()
            self._file.close()
        super().close()


def open_stream(path: str | Path) -> InputStream:
    """Open a file for reading bytes: plain, .gz, .xz or .bz2, recognised by their first bytes."""
    path = Path(path)
    try:
        file = path.open("rb")
    except IsADirectoryError:
        raise DataError("is a folder, a file is needed here", path) from None
    except FileNotFoundError:
        raise DataError("there is no such file", path) from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from None
    try:
        head = file.peek(16)[:16]
        for magic, reason in _REFUSED.items():
            if head.startswith(magic):
                raise DataError(reason, path)
        return InputStream(path, file, _decompressor(file, head))
    except OSError as error:
        file.close()
        raise _unreadable(path, error) from None
    except DataError:
        file.close()
        raise


def _decompressor(file: io.BufferedReader, head: bytes) -> Any:
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(_XZ):
        return lzma.LZMAFile(file)
    if head.startswith(_BZIP) and head[4:10] in _BZIP_BLOCKS:
        return bz2.BZ2File(file)
    return file


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, EOFError):
        return DataError("the file is truncated; copy or download it again", path)
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"cannot be read: {error.strerror}", path)
    return DataError(f"the file is damaged ({error}); copy or download it again", path)


def first_bytes(path: str | Path, n: int = 65536) -> bytes:
    """The first bytes of a file after decompression, to detect its format; b"" if it cannot be read."""
    path = Path(path)
    pieces: list[bytes] = []
    try:
        if not path.is_file():  # a pipe would lose the bytes read here
            return b""
        with open_stream(path) as stream:
            while n > 0 and (piece := stream.read(n)):
                pieces.append(piece)
                n -= len(piece)
    except (DataError, OSError, ValueError):
        pass
    return b"".join(pieces)


@contextmanager
def write_stream(path: str | Path, follow: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to write bytes to, compressed if its name ends in .gz, .xz or .bz2.

    It is written under a hidden name beside the target and replaces it only if the block ends without an error.
    With `follow=False` a link is refused.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise DataError("is a folder; give the name of a file to write", path)
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from error
    with replacing(path, binary=True, follow=follow) as file, _compressor(file, path.suffix) as compressed:
        yield compressed


@contextmanager
def _compressor(file: IO[bytes], suffix: str) -> Iterator[Any]:
    if suffix == ".gz":  # no name and no time inside, so that equal content gives equal files
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
            yield compressed
    elif suffix == ".xz":
        with lzma.LZMAFile(file, "wb") as compressed:
            yield compressed
    elif suffix == ".bz2":
        with bz2.BZ2File(file, "wb") as compressed:
            yield compressed
    else:
        yield file


__all__ = [
    "ByteBlock",
    "blocks_ahead",
    "decode_block",
    "fill",
    "first_bytes",
    "line_blocks",
    "line_bounds",
    "open_stream",
    "text_blocks",
    "text_codec",
    "text_lines",
    "warn_replaced",
    "write_stream",
]

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 << 20
FIRST_BLOCK_BYTES = 64 << 10
READ_AHEAD = 2
JOIN_SECONDS = 5.0
NEWLINE, RETURN = 10, 13


@dataclass(frozen=True, eq=False)
class ByteBlock:
    """Consecutive whole lines of a file: their bytes (the last is a newline), the first line's number, the count."""

    data: np.ndarray
    first_line: int
    lines: int
    fraction_read: float = 1.0
    """Fraction of the file read up to the end of this block, for estimates; 1 if not known."""
    replaced_lines: int = 0
    """Lines in which `decode_block` replaced bytes by U+FFFD."""

    def line_at(self, position: int) -> int:
        """The number of the line that contains the byte at `position`."""
        return self.first_line + int(np.count_nonzero(self.data[:position] == NEWLINE))


AnyBlock = TypeVar("AnyBlock", bound=ByteBlock)


def line_blocks(path: str | Path, block_bytes: int = BLOCK_BYTES) -> Generator[ByteBlock, None, None]:
    """The file's lines in blocks of about `block_bytes`; a longer line gets a longer block.

    A byte order mark is dropped and a missing last newline added.
    """
    return blocks_ahead(path, block_bytes, _cut_lines)


def blocks_ahead(
    path: str | Path, block_bytes: int, cut: Callable[[InputStream, int], Iterator[AnyBlock]]
) -> Generator[AnyBlock, None, None]:
    """The blocks that `cut` yields for a file, read ahead by a thread.

    The thread ends when the generator is exhausted or closed.
    """
    stream = open_stream(path)
    size = _file_size(stream.path)
    waiting: queue.Queue[AnyBlock | BaseException | None] = queue.Queue(READ_AHEAD)
    stop = threading.Event()
    reader = threading.Thread(
        target=_read_ahead,
        args=(stream, size, cut(stream, block_bytes), waiting, stop),
        name="labelwise-reader",
        daemon=True,
    )
    done = 0.0
    try:
        reader.start()
        with progress(f"reading {stream.path.name}", size, "bytes") as step:
            while (item := waiting.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                step(len(item.data) if size is None else (item.fraction_read - done) * size)
                done = item.fraction_read
                yield item
                del item  # so that it can be freed before the next one arrives
    finally:
        stop.set()
        _drain(waiting)
        reader.join(JOIN_SECONDS)  # a pipe that sends nothing cannot be interrupted; the thread is a daemon


def _read_ahead(
    stream: InputStream, size: int | None, blocks: Iterator[ByteBlock], waiting: queue.Queue, stop: threading.Event
) -> None:
    """The thread's work: enqueue blocks, then None; an error is enqueued and raised by the consumer."""
    try:
        for block in blocks:
            fraction = 1.0 if not size else min(1.0, stream.consumed() / size)
            if not _enqueue(waiting, replace(block, fraction_read=fraction), stop):
                return
        _enqueue(waiting, None, stop)
    except BaseException as error:
        _enqueue(waiting, error, stop)
    finally:
        stream.close()


def _enqueue(waiting: queue.Queue, item: object, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            waiting.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def _drain(waiting: queue.Queue) -> None:
    try:
        while True:
            waiting.get_nowait()
    except queue.Empty:
        pass


def _cut_lines(stream: InputStream, block_bytes: int) -> Iterator[ByteBlock]:
    """Blocks that end at a line end; an incomplete line at the end of a buffer is carried over to the next."""
    carried = bytearray()
    first_line = 1
    size = min(block_bytes, FIRST_BLOCK_BYTES)  # small files stay cheap, and parsing can begin at once
    at_start, ended = True, False
    while not ended:
        buffer = bytearray(max(size, 2 * len(carried)))
        buffer[: len(carried)] = carried
        size = block_bytes
        filled, ended = fill(stream, buffer, len(carried))
        begin = _after_mark(stream.path, buffer) if at_start else 0
        if ended:
            end = filled
            if end > begin and buffer[end - 1] != NEWLINE:
                buffer[end:] = b"\n"
                end += 1
        else:
            end = buffer.rfind(b"\n", len(carried), filled) + 1
        at_start = at_start and end == 0
        carried = buffer[end:filled]
        if end > begin:
            data = np.frombuffer(buffer, np.uint8, end - begin, begin)
            lines = int(np.count_nonzero(data == NEWLINE))
            yield ByteBlock(data, first_line, lines)
            first_line += lines


def fill(stream: InputStream, buffer: bytearray, filled: int) -> tuple[int, bool]:
    """Read until the buffer is full or the stream ends: bytes in the buffer, and whether it ended."""
    with memoryview(buffer) as view:
        while filled < len(buffer):
            count = stream.readinto(view[filled:])
            if not count:
                return filled, True
            filled += count
    return filled, False


def _after_mark(path: Path, buffer: bytearray) -> int:
    """Where the text begins after a byte order mark."""
    if buffer.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        raise DataError("the file is in UTF-16 or UTF-32; convert it to UTF-8, for example with iconv", path, 1)
    return 3 if buffer.startswith(codecs.BOM_UTF8) else 0


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def line_bounds(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each line of a block begins and ends, without its newline and a carriage return before it."""
    ends = np.flatnonzero(data == NEWLINE)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    filled = np.flatnonzero(ends > starts)
    ends[filled] -= data[ends[filled] - 1] == RETURN
    return starts, ends


# --- encodings ------------------------------------------------------------------------------------------


def text_blocks(
    path: str | Path, encoding: str = "utf-8", on_bad_bytes: str = "error"
) -> Generator[ByteBlock, None, None]:
    """`line_blocks` in valid UTF-8; at the end it warns in how many lines bytes were replaced."""
    replaced = 0
    for block in line_blocks(path):
        decoded = decode_block(block, path, encoding, on_bad_bytes)
        replaced += decoded.replaced_lines
        yield decoded
    warn_replaced(path, replaced, encoding)


def text_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers, from 1; for small files."""
    for block in text_blocks(path):
        yield from enumerate(Strings(block.data, *line_bounds(block.data)), block.first_line)


def warn_replaced(path: str | Path, lines: int, encoding: str) -> None:
    """Log one warning for a file in which bytes were replaced."""
    if lines:
        log.warning(
            "%s: lines in which bytes that are not %s were replaced by U+FFFD: %s", path, encoding, f"{lines:,}"
        )


def decode_block(block: ByteBlock, path: str | Path, encoding: str = "utf-8", on_bad_bytes: str = "error") -> ByteBlock:
    """The block in valid UTF-8; the same object if it is already.

    Bytes that do not fit the encoding are a DataError at their line, or U+FFFD if ``on_bad_bytes="replace"``;
    the result's `replaced_lines` then counts the lines with replacements.
    """
    codec = text_codec(encoding)
    try:
        if codec == "utf-8":
            if block.data.max(initial=0) >= 128:
                codecs.utf_8_decode(block.data.data, "strict", True)
            return block
        text = codecs.decode(block.data.tobytes(), codec)
        data = np.frombuffer(bytearray(text.encode()), np.uint8)  # writable, as kernels are compiled for
        if np.count_nonzero(data == NEWLINE) == block.lines:
            return replace(block, data=data)
    except UnicodeError:
        pass
    return _decode_lines(block, path, encoding, on_bad_bytes)


def decoded_line(
    line: bytes, path: str | Path, number: int, encoding: str = "utf-8", on_bad_bytes: str = "error"
) -> tuple[str, bool]:
    """A line as text, and whether bytes that do not fit the encoding had to be replaced."""
    codec, replaced = text_codec(encoding), False
    try:
        text = codecs.decode(line, codec)
        text.encode()  # some codecs return lone surrogates
    except UnicodeError as error:
        if on_bad_bytes != "replace":
            raise _bad_bytes(path, number, line, encoding, error) from None
        loose = codecs.decode(line, codec, "replace")
        text, replaced = loose.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), True
    if "\n" in text:
        what = f"the encoding {encoding} produces a line end inside a line; convert the file to UTF-8"
        raise DataError(what, path, number)
    return text, replaced


def _decode_lines(block: ByteBlock, path: str | Path, encoding: str, on_bad_bytes: str) -> ByteBlock:
    """Decode line by line, for a block with bytes that do not fit the encoding."""
    pieces: list[bytes] = []
    replaced = 0
    for offset, line in enumerate(block.data.tobytes()[:-1].split(b"\n")):
        text, was_replaced = decoded_line(line, path, block.first_line + offset, encoding, on_bad_bytes)
        replaced += was_replaced
        pieces += (text.encode(), b"\n")
    return ByteBlock(
        np.frombuffer(bytearray().join(pieces), np.uint8),
        block.first_line,
        block.lines,
        block.fraction_read,
        replaced,
    )


def _bad_bytes(path: str | Path, line: int, content: bytes, encoding: str, error: UnicodeError) -> DataError:
    position = error.start if isinstance(error, UnicodeDecodeError) else None
    shown = "some bytes are" if position is None else f"byte 0x{content[position]:02X} at column {position + 1} is"
    remedy = how_to_set("encoding", _likely_encoding(content) if encoding == "utf-8" else "utf-8")
    return DataError(f"{shown} not {encoding}; {remedy} to that of the file, or on_bad_bytes to replace", path, line)


def _likely_encoding(content: bytes) -> str:
    """For a line that is not UTF-8: where cp1252 has quotes and dashes, latin-1 has control characters."""
    if not any(0x80 <= byte <= 0x9F for byte in content):
        return "latin-1"
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"


@lru_cache
def text_codec(encoding: str) -> str:
    """The codec's canonical name; ConfigError if it is unknown or does not encode a newline as the byte 0x0A."""
    try:
        codec = codecs.lookup(encoding).name
        plain = "\n".encode(encoding) == b"\n" and b"\n".decode(encoding, "replace") == "\n"
    except (LookupError, ValueError):
        examples = "utf-8, latin-1, cp1252 or gb18030"
        raise ConfigError(f"encoding: '{encoding}' is not a known encoding of text such as {examples}") from None
    if not plain and codec != "utf-8-sig":
        raise ConfigError(
            f"encoding: files in {encoding} are not supported; convert the file to UTF-8, for example with iconv"
        )
    return "utf-8" if codec == "utf-8-sig" else codec
