"""Unpacks untrusted archives: tar (plain, .gz, .xz, .bz2), zip, and single compressed files.

Of an archive only names and contents of plain files are used, which is stricter than tarfile's `data` filter: that one
lets links and sparse files through, and bounds neither the number of members nor the bytes that are written. The type
of archive is recognised by its first bytes, not by its name.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from labelwise.errors import DataError
from labelwise.runtime.progress import progress

MAX_BYTES = 200 << 30
MAX_MEMBERS = 1_000_000
CHUNK = 1 << 20
COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)


class DamagedArchiveError(DataError):
    """The archive itself is at fault: truncated, damaged, or not an archive."""


def unpack(
    archive: str | Path, folder: str | Path, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS
) -> list[Path]:
    """Unpack an archive into an existing folder and return the files written, in the archive's order.

    A compressed file that is no archive (`train.txt.gz`) gives one file, named without its last suffix. Absolute paths,
    `..`, duplicates, links, devices, sparse and encrypted files are refused, and so are more than `max_members` members
    or `max_bytes` unpacked bytes. Resource forks of macOS (`__MACOSX/`, `._name`) are ignored. Files written before an
    error remain: give a folder that can be removed.
    """
    archive = Path(archive)
    target = _Target(archive, Path(folder), max_bytes, max_members)
    try:
        with archive.open("rb") as file:
            head = file.read(8)
        if head.startswith(ZIP):
            _unpack_zip(target)
        else:
            _unpack_stream(target, next((COMPRESSED[magic] for magic in COMPRESSED if head.startswith(magic)), None))
    except DAMAGED as error:
        raise DamagedArchiveError(
            f"the archive is damaged or truncated ({error}); download it again", archive
        ) from None
    except (OSError, NotImplementedError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"the archive cannot be unpacked: {reason}", archive) from None
    return target.written


class _Target:
    """Writes members below one folder, within limits."""

    def __init__(self, archive: Path, folder: Path, max_bytes: int, max_members: int) -> None:
        self.archive, self.folder, self.max_bytes, self.max_members = archive, folder, max_bytes, max_members
        self.bytes = self.members = 0
        self.written: list[Path] = []

    def refuse(self, name: str, why: str) -> DataError:
        return DataError(f"the member {name!r} {why}; the archive is refused", self.archive)

    def count(self, amount: int) -> None:
        """Count unpacked bytes."""
        self.bytes += amount
        if self.bytes > self.max_bytes:
            raise DataError(f"the archive unpacks to more than {self.max_bytes:,} bytes and is refused", self.archive)

    def add(self, name: str, content: IO[bytes] | None) -> None:
        """Write a file, or create a folder if there is no content."""
        self.members += 1
        if self.members > self.max_members:
            raise DataError(f"the archive has more than {self.max_members:,} members and is refused", self.archive)
        parts = safe_parts(name)
        if parts is None:
            raise self.refuse(name, "points outside the folder it is unpacked into")
        if not parts or parts[0] == "__MACOSX" or parts[-1].startswith("._"):
            return
        path = self.folder.joinpath(*parts)
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        if content is not None:
            try:
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file, CHUNK)
            except FileExistsError:
                raise self.refuse(name, "is a duplicate") from None
            self.written.append(path)


def safe_parts(name: str) -> list[str] | None:
    """The parts of a member's name; None if it is absolute or contains `..`."""
    if not name or name.startswith("/") or "\\" in name or "\0" in name or re.match(r"^[A-Za-z]:", name):
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts else parts


class _Counted:
    """A stream that counts every byte read from it, headers and ignored members included."""

    def __init__(self, source: IO[bytes], target: _Target) -> None:
        self.source, self.target = source, target

    def read(self, size: int = CHUNK) -> bytes:
        chunk = self.source.read(size)
        self.target.count(len(chunk))
        return chunk


def _unpack_stream(target: _Target, decompress: Any) -> None:
    """Unpack a tar, compressed or not, or one compressed file."""
    with (decompress or open)(target.archive, "rb") as source:
        try:
            tarfile.TarInfo.frombuf(source.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
            is_tar = True
        except tarfile.HeaderError:
            is_tar = False
        source.seek(0)
        counted: Any = _Counted(source, target)
        if is_tar:
            _unpack_tar(target, counted)
            while counted.read():  # a compressed stream's checksum is compared only at its end
                pass
        elif decompress is not None:
            target.add(target.archive.stem, counted)
        else:
            raise DamagedArchiveError("not an archive of a known type: tar, .gz, .xz, .bz2 or zip", target.archive)


def _unpack_tar(target: _Target, source: Any) -> None:
    with (
        tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as tar,
        progress(f"unpacking {target.archive.name}", unit="bytes") as step,
    ):
        for member in tar:
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise target.refuse(member.name, "is a link, a device or sparse, not a plain file")
            target.add(member.name, tar.extractfile(member))
            step(member.size)


def _unpack_zip(target: _Target) -> None:
    with zipfile.ZipFile(target.archive) as archive:
        size = sum(member.file_size for member in archive.infolist())
        target.count(size)  # zipfile reads no more of a member than its header says
        with progress(f"unpacking {target.archive.name}", size, "bytes") as step:
            for member in archive.infolist():
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise target.refuse(member.filename, "is a link or a device, not a plain file")
                if member.flag_bits & 1:
                    raise target.refuse(member.filename, "needs a password")
                if member.is_dir():
                    target.add(member.filename, None)
                else:
                    with archive.open(member) as content:
                        target.add(member.filename, content)
                step(member.file_size)
