"""Unpacking archives that strangers made: tar (plain, .gz, .xz, .bz2), zip, and single packed files.

Nothing is written outside the target folder, nothing but plain files and folders is made, and the number of
members and of unpacked bytes is bounded, so that neither a crafted name nor a decompression bomb does harm.
The kind of archive is told by its first bytes, not by its name.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from labelwise.errors import DataError
from labelwise.progress import progress

MAX_BYTES = 200 << 30
MAX_MEMBERS = 1_000_000
CHUNK = 1 << 20

_PACKED: dict[bytes, type] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)


class DamagedArchiveError(DataError):
    """The archive itself is at fault: cut short, damaged, or no archive at all."""


def unpack(
    archive: str | Path, folder: str | Path, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS
) -> list[Path]:
    """Unpack an archive into an existing folder and return the files written, in the archive's order.

    A packed file that is no archive (`train.txt.gz`) gives one file, named without its last suffix. Members
    that are absolute, climb out with `..`, stand twice, or are links or devices are refused, and so is an
    archive with more than `max_members` members or more than `max_bytes` unpacked bytes. The resource forks
    that macOS adds (`__MACOSX/`, `._name`) are left out. What was written before an error stays: give a
    folder that can be thrown away.
    """
    archive = Path(archive)
    writer = _Writer(archive, Path(folder), max_bytes, max_members)
    try:
        with archive.open("rb") as file:
            head = file.read(8)
        if head.startswith(_ZIP):
            _unpack_zip(archive, writer)
        else:
            packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
            _unpack_stream(archive, packed, writer)
    except _DAMAGED as error:
        why = f"the archive is damaged or cut short ({error}); download it anew"
        raise DamagedArchiveError(why, archive) from None
    except (OSError, NotImplementedError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"the archive cannot be unpacked: {reason}", archive) from None
    return writer.written


def safe_parts(name: str) -> list[str] | None:
    """The parts of a member's name; None for one that is absolute or climbs out."""
    if not name or name.startswith("/") or "\\" in name or "\0" in name or re.match(r"^[A-Za-z]:", name):
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts else parts


class _Writer:
    """Writes members below one folder and keeps count."""

    def __init__(self, archive: Path, folder: Path, max_bytes: int, max_members: int) -> None:
        self.archive, self.folder = archive, folder
        self.max_bytes, self.max_members = max_bytes, max_members
        self.members = self.bytes = 0
        self.written: list[Path] = []

    def refuse(self, name: str, why: str) -> DataError:
        return DataError(f"the member {name!r} {why}; the archive is refused", self.archive)

    def too_many(self) -> DataError:
        return DataError(f"the archive has more than {self.max_members:,} members and is refused", self.archive)

    def place(self, name: str) -> Path | None:
        """Where a member goes; None if it is to be left out."""
        self.members += 1
        if self.members > self.max_members:
            raise self.too_many()
        parts = safe_parts(name)
        if parts is None:
            raise self.refuse(name, "points outside the folder it is unpacked into")
        if not parts or parts[0] == "__MACOSX" or parts[-1].startswith("._"):
            return None
        return self.folder.joinpath(*parts)

    def make_folder(self, name: str) -> None:
        target = self.place(name)
        if target is not None:
            target.mkdir(parents=True, exist_ok=True)

    def count(self, amount: int) -> None:
        """Count unpacked bytes, wherever they came out of the archive."""
        self.bytes += amount
        if self.bytes > self.max_bytes:
            most = f"{self.max_bytes:,} bytes"
            raise DataError(f"the archive unpacks to more than {most} and is refused", self.archive)

    def write(self, name: str, source: IO[bytes], counted: bool) -> int:
        """Write one file; `counted` says that the source counts its own bytes."""
        target = self.place(name)
        size = 0
        if target is None:
            while chunk := source.read(CHUNK):
                size += len(chunk)
                if not counted:
                    self.count(len(chunk))
            return size
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as file:
                while chunk := source.read(CHUNK):
                    size += len(chunk)
                    if not counted:
                        self.count(len(chunk))
                    file.write(chunk)
        except FileExistsError:
            raise self.refuse(name, "stands twice") from None
        self.written.append(target)
        return size


class _Counted:
    """A stream whose every unpacked byte is counted, headers included."""

    def __init__(self, source: IO[bytes], count: Callable[[int], None]) -> None:
        self.source, self.count = source, count

    def read(self, size: int = CHUNK) -> bytes:
        chunk = self.source.read(size)
        self.count(len(chunk))
        return chunk


def _unpack_stream(archive: Path, packed: type | None, writer: _Writer) -> None:
    """A tar, packed or not, or one packed file."""

    def opened() -> IO[bytes]:
        return archive.open("rb") if packed is None else packed(archive, "rb")

    with opened() as probe:
        is_tar = _is_tar_header(probe.read(tarfile.BLOCKSIZE))
    if not is_tar and packed is None:
        raise DamagedArchiveError("this is no archive we can unpack: tar, .gz, .xz, .bz2 or zip", archive)
    with opened() as source:
        if not is_tar:
            writer.write(archive.stem, source, counted=False)
            return
        counted = _Counted(source, writer.count)
        _unpack_tar(archive, counted, writer)
        while counted.read():  # the packed stream's own checksum is compared only at its end
            pass


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _unpack_tar(archive: Path, source: _Counted, writer: _Writer) -> None:
    with (
        tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as tar,  # type: ignore[call-overload]
        progress(f"unpacking {archive.name}", unit="bytes") as step,
    ):
        for member in tar:
            if member.isdir():
                writer.make_folder(member.name)
            elif not member.isreg():
                raise writer.refuse(member.name, "is a link or a device, not a plain file")
            else:
                content = tar.extractfile(member)
                step(writer.write(member.name, content, counted=True) if content is not None else 0)


def _unpack_zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        if len(members) > writer.max_members:
            raise writer.too_many()
        with progress(f"unpacking {archive.name}", sum(m.file_size for m in members), "bytes") as step:
            for member in members:
                kind = stat.S_IFMT(member.external_attr >> 16)
                if member.is_dir():
                    writer.make_folder(member.filename)
                elif kind not in (0, stat.S_IFREG):
                    raise writer.refuse(member.filename, "is a link or a device, not a plain file")
                elif member.flag_bits & 1:
                    raise writer.refuse(member.filename, "needs a password")
                else:
                    with packed.open(member) as content:
                        step(writer.write(member.filename, content, counted=False))
