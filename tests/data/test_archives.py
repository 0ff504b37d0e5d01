"""Unpacking: what Python's own archivers packed comes out equal; what could do harm is refused."""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.data.archives import safe_parts, unpack
from labelwise.errors import DataError

FILES = {"readme.txt": b"hello", "data/train.txt": bytes(range(256)) * 300, "data/deep/empty": b""}


def make_tar(path, members, mode="w:gz"):
    """Members are (name, content) or ready TarInfo."""
    with tarfile.open(path, mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return path


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return path


def unpacked(archive, tmp_path, **limits):
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    files = unpack(archive, folder, **limits)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar(tmp_path, mode, format):
    source = tmp_path / "source"
    for name, content in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    with tarfile.open(tmp_path / "archive", mode, format=format) as tar:
        tar.add(source, arcname=".")
    assert unpacked(tmp_path / "archive", tmp_path) == FILES


def test_zip(tmp_path):
    archive = make_zip(tmp_path / "archive", [("data/", b""), *FILES.items()])
    assert unpacked(archive, tmp_path) == FILES


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_a_packed_file_that_is_no_archive(tmp_path, suffix, pack):
    (tmp_path / f"train.txt{suffix}").write_bytes(pack(FILES["data/train.txt"]))
    assert unpacked(tmp_path / f"train.txt{suffix}", tmp_path) == {"train.txt": FILES["data/train.txt"]}


def test_resource_forks_are_left_out(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("a/b.txt", b"1"), ("__MACOSX/a/._b.txt", b"2"), ("a/._b.txt", b"3")])
    assert unpacked(archive, tmp_path) == {"a/b.txt": b"1"}


BAD_NAMES = ["../x", "a/../../x", "/tmp/x", "a\\..\\x", "C:x", "C:/x", "..", "a/.."]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_names_that_climb_out(tmp_path, name, make):
    archive = make(tmp_path / "archive", [("fine.txt", b"1"), (name, b"2")])
    with pytest.raises(DataError, match="points outside"):
        unpacked(archive, tmp_path)
    assert not (tmp_path / "x").exists()
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["fine.txt"]


@given(st.text(st.sampled_from("ab./\\:C\0 é"), max_size=12))
def test_no_name_leads_outside(name):
    parts = safe_parts(name)
    if parts is not None:
        target = PurePosixPath("/base").joinpath(*parts)
        assert ".." not in target.parts
        assert target == PurePosixPath("/base") or PurePosixPath("/base") in target.parents


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tar(tmp_path, kind):
    member = tarfile.TarInfo("link")
    member.type, member.linkname = kind, "/etc/passwd"
    archive = make_tar(tmp_path / "a.tar.gz", [member])
    with pytest.raises(DataError, match="is a link, a device or sparse"):
        unpacked(archive, tmp_path)
    assert list((tmp_path / "out").iterdir()) == []


def sparse_tar(path, pax):
    """A tar of a few kB that describes a file of 1 GB: a hole, then one block of data."""
    size, block = 1 << 30, b"x" * 512
    if pax:
        content = b"1\n%d\n512\n".ljust(512, b"\0") % (size - 512) + block
        headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
        info = tarfile.TarInfo("hole")
        info.size, info.pax_headers = len(content), {**headers, "GNU.sparse.name": "hole"}
        with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(info, io.BytesIO(content))
        return path
    info = tarfile.TarInfo("hole")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, len(block)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for place, number in ((386, size - 512), (398, 512), (483, size)):  # offset and length of the data, real size
        header[place : place + 12] = b"%011o\0" % number
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(gzip.compress(bytes(header) + block + bytes(1024)))
    return path


@pytest.mark.parametrize("pax", [False, True])
def test_a_small_sparse_tar_does_not_fill_the_disk(tmp_path, pax):
    archive = sparse_tar(tmp_path / "a.tar.gz", pax)
    assert archive.stat().st_size < 10_000
    with tarfile.open(archive) as tar:
        assert [member.issparse() for member in tar] == [True]
        assert tar.getmember("hole").size == 1 << 30
    with pytest.raises(DataError, match="is a link, a device or sparse"):
        unpacked(archive, tmp_path, max_bytes=10_000_000)
    assert list((tmp_path / "out").iterdir()) == []


def test_links_in_zip(tmp_path):
    member = zipfile.ZipInfo("link")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = make_zip(tmp_path / "a.zip", [(member, b"/etc/passwd")])
    with pytest.raises(DataError, match="is a link"):
        unpacked(archive, tmp_path)


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_duplicate_name(tmp_path, make):
    archive = make(tmp_path / "archive", [("a", b"1"), ("./a", b"2")])
    with pytest.raises(DataError, match="is a duplicate"):
        unpacked(archive, tmp_path)


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_a_file_where_a_folder_is_needed(tmp_path, make):
    archive = make(tmp_path / "archive", [("a", b"1"), ("a/b", b"2")])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpacked(archive, tmp_path)


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_too_many_members(tmp_path, make):
    archive = make(tmp_path / "archive", [(f"f{n}", b"") for n in range(11)])
    with pytest.raises(DataError, match="more than 10 members"):
        unpacked(archive, tmp_path, max_members=10)


def test_bombs(tmp_path):
    zeros = bytes(5_000_000)
    archives = [
        make_tar(tmp_path / "a.tar.gz", [("zeros", zeros)]),
        make_tar(tmp_path / "a.tar.xz", [("zeros", zeros)], "w:xz"),
        make_zip(tmp_path / "a.zip", [("zeros", zeros)]),
        tmp_path / "zeros.gz",
    ]
    archives[-1].write_bytes(gzip.compress(zeros))
    for number, archive in enumerate(archives):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(DataError, match="more than 1,000,000 bytes"):
            unpack(archive, folder, max_bytes=1_000_000)
        assert sum(path.stat().st_size for path in folder.rglob("*")) <= 1_000_000


def test_a_zip_that_lies_about_its_size(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("zeros", bytes(3_000_000))])
    content = bytearray(archive.read_bytes())
    real, lie = (3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    archive.write_bytes(bytes(content).replace(real, lie))
    with pytest.raises(DataError):
        unpacked(archive, tmp_path, max_bytes=1_000_000)


def test_an_encrypted_zip(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("secret", b"content")])
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(DataError, match="needs a password"):
        unpacked(archive, tmp_path)


def damaged(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize("harm", [lambda c: c[: len(c) // 2], lambda c: c[:-6], damaged], ids=["half", "end", "bit"])
@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.xz", "a.tar.bz2", "a.zip", "a.gz"])
def test_damaged_archives(tmp_path, name, harm):
    noise = bytes((n * n * 31 + n // 7) % 251 for n in range(200_000))
    archive = tmp_path / name
    if name == "a.zip":
        make_zip(archive, [("noise", noise)])
    elif name == "a.gz":
        archive.write_bytes(gzip.compress(noise))
    else:
        make_tar(archive, [("noise", noise)], f"w:{name.rpartition('.')[2]}")
    archive.write_bytes(harm(archive.read_bytes()))
    with pytest.raises(DataError, match=name):
        unpacked(archive, tmp_path)


def test_the_checksum_at_the_end_of_a_packed_tar_counts(tmp_path):
    plain = make_tar(tmp_path / "a.tar", [("a", b"content")], "w").read_bytes()
    packed = bytearray(gzip.compress(plain + bytes(3 << 20)))
    (tmp_path / "good.tar.gz").write_bytes(packed)
    assert unpacked(tmp_path / "good.tar.gz", tmp_path) == {"a": b"content"}
    packed[-8] ^= 1
    (tmp_path / "bad.tar.gz").write_bytes(packed)
    (tmp_path / "out" / "a").unlink()
    with pytest.raises(DataError, match="CRC"):
        unpacked(tmp_path / "bad.tar.gz", tmp_path)


def test_a_tar_without_packing_that_ends_too_early(tmp_path):
    archive = make_tar(tmp_path / "a.tar", [("noise", bytes(100_000))], "w")
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(DataError, match="damaged or truncated"):
        unpacked(archive, tmp_path)


@pytest.mark.parametrize("content", [b"", b"plain text", bytes(2000), b"\x1f\x8b", b"PK\x03\x04", b"<html>"])
def test_what_is_no_archive(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar\.gz"):
        unpacked(tmp_path / "a.tar.gz", tmp_path)


def test_a_missing_archive(tmp_path):
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "nowhere.zip", Path(tmp_path))
