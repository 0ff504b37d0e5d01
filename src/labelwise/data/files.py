"""Files opened for reading and writing, plain or compressed; every failure is an error that names the file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from labelwise.atomic import replacing
from labelwise.errors import DataError

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
