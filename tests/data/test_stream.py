"""Streams of lines: whole lines whatever the block size, packed or not, and an error that names the file."""

import bz2
import encodings.aliases
import gzip
import itertools
import logging
import lzma
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.data.stream import (
    ByteBlock,
    decode_block,
    first_bytes,
    line_blocks,
    line_bounds,
    open_stream,
    text_blocks,
    text_codec,
    write_stream,
)
from labelwise.errors import ConfigError, DataError

PACKERS = {"": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def joined(blocks):
    return b"".join(block.data.tobytes() for block in blocks)


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "labelwise-reader"]


def wait_for_readers():
    for _ in range(200):
        if not readers():
            return
        time.sleep(0.02)


@given(data=st.data())
@settings(max_examples=60)
def test_blocks_hold_all_lines_once(data, tmp_path_factory):
    text = data.draw(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\0", b"long word ", b"\xff"]), max_size=60))
    text = b"".join(text)
    path = tmp_path_factory.mktemp("stream") / "file"
    path.write_bytes(PACKERS[data.draw(st.sampled_from(sorted(PACKERS)))](text))
    blocks = list(line_blocks(path, data.draw(st.integers(1, 80))))
    assert joined(blocks) == (text if text.endswith(b"\n") or not text else text + b"\n")
    line = 1
    for block in blocks:
        assert block.data.dtype == np.uint8
        assert block.data[-1] == 10
        assert block.first_line == line
        assert block.lines == block.data.tobytes().count(b"\n") > 0
        line += block.lines
    shares = [block.fraction_read for block in blocks]
    assert shares == sorted(shares)
    assert not shares or shares[-1] == 1


@given(st.lists(st.sampled_from([b"ab", b"\r", b"\n", b"\r\n", b" "]), max_size=30))
def test_line_bounds(pieces):
    text = b"".join(pieces) + b"\n"
    starts, ends = line_bounds(np.frombuffer(text, np.uint8))
    wanted = [line.removesuffix(b"\r") for line in text[:-1].split(b"\n")]
    assert [text[a:b] for a, b in zip(starts, ends, strict=True)] == wanted
    assert starts.dtype == ends.dtype == np.int64


def test_line_bounds_of_nothing():
    starts, ends = line_bounds(np.empty(0, np.uint8))
    assert len(starts) == len(ends) == 0


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5, 100])
def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path, block_bytes):
    path = tmp_path / "marked"
    path.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo")
    assert joined(line_blocks(path, block_bytes)) == b"one\n\xef\xbb\xbftwo\n"


def test_only_a_byte_order_mark(tmp_path):
    path = tmp_path / "marked"
    path.write_bytes(b"\xef\xbb\xbf")
    assert list(line_blocks(path)) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_wide_encodings_are_refused_by_their_mark(tmp_path, encoding):
    path = tmp_path / "wide.txt"
    path.write_bytes("\ufeffsome\ntext".encode(encoding))
    with pytest.raises(DataError, match=r"wide\.txt:1: .*UTF-16.*convert") as caught:
        list(line_blocks(path))
    assert caught.value.path == path


def test_packing_is_told_by_content_not_by_name(tmp_path):
    plain, packed = tmp_path / "a.gz", tmp_path / "b.txt"
    plain.write_bytes(b"BZh is only text\n")
    packed.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert joined(line_blocks(plain)) == b"BZh is only text\n"
    assert joined(line_blocks(packed)) == b"one\ntwo\n"
    assert first_bytes(packed, 5) == b"one\nt"


def test_open_stream_reads_like_a_file(tmp_path):
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"0123456789"))
    with open_stream(path) as stream:
        assert stream.read(3) == b"012"
        assert stream.read() == b"3456789"
        assert stream.read(1) == b""
        assert stream.consumed() == path.stat().st_size


def random_text(size):
    return np.random.default_rng(0).integers(32, 127, size, np.uint8).tobytes() + b"\n"


@pytest.mark.parametrize("packer", [".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("damage", ["short", "turned", "tail"])
def test_a_damaged_archive_names_the_file(tmp_path, packer, damage):
    path = tmp_path / f"big.txt{packer}"
    packed = bytearray(PACKERS[packer](random_text(300_000)))
    if damage == "short":
        del packed[len(packed) * 2 // 3 :]
    elif damage == "turned":
        packed[len(packed) // 2] ^= 0xFF
        packed[len(packed) // 2 + 1] ^= 0xFF
    else:
        del packed[-5:]
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"big\.txt.*(truncated|damaged).*download it again"):
        list(line_blocks(path, 1000))
    assert isinstance(first_bytes(path, 10**6), bytes)
    wait_for_readers()
    assert not readers()


def test_what_cannot_be_opened_names_the_file(tmp_path):
    with pytest.raises(DataError, match=r"missing\.txt: there is no such file"):
        open_stream(tmp_path / "missing.txt")
    with pytest.raises(DataError, match="is a folder"):
        list(line_blocks(tmp_path))
    (tmp_path / "file").write_bytes(b"x")
    for name in ("file/below", "n" * 300, "nul\0"):
        with pytest.raises(DataError, match=r"cannot be read|no such"):
            open_stream(tmp_path / name)
        assert first_bytes(tmp_path / name) == b""
    assert first_bytes(tmp_path) == b""


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_names_itself(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(DataError, match="secret: cannot be read: Permission denied"):
        open_stream(path)


@pytest.mark.parametrize(("head", "word"), [(b"PK\x03\x04rest", "zip"), (b"\x28\xb5\x2f\xfdrest", "zstd")])
def test_archives_that_are_not_read_are_named(tmp_path, head, word):
    path = tmp_path / "data"
    path.write_bytes(head)
    with pytest.raises(DataError, match=f"{word}.*unpack it first"):
        open_stream(path)


def test_the_reader_ends_when_the_consumer_stops(tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"a line of text\n" * 20_000)
    blocks = line_blocks(path, 1000)
    next(blocks)
    assert len(readers()) == 1
    blocks.close()
    assert not readers()

    def consume():
        for _ in line_blocks(path, 1000):
            raise RuntimeError("the consumer failed")

    with pytest.raises(RuntimeError, match="the consumer failed"):
        consume()
    wait_for_readers()
    assert not readers()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_can_be_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(b"one\ntwo"))
    writer.start()
    assert joined(line_blocks(path)) == b"one\ntwo\n"
    writer.join()
    assert first_bytes(path) == b""


def block_of(data, first_line=1):
    return ByteBlock(np.frombuffer(data, np.uint8), first_line, data.count(b"\n"))


def test_valid_utf8_is_left_alone():
    for text in ("plain\n", "é ł 猫 🐈\n"):
        block = block_of(text.encode())
        assert decode_block(block, "x") is block


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=6))
@settings(max_examples=80)
def test_bad_bytes_are_replaced_line_by_line(lines):
    block = block_of(b"".join(line + b"\n" for line in lines))
    found = decode_block(block, "x", "utf-8", "replace")
    wanted = [line.decode("utf-8", "replace") for line in lines]
    assert found.data.tobytes().decode().split("\n")[:-1] == wanted
    assert found.lines == block.lines
    assert found.replaced_lines == sum(
        "\ufffd" in text and "\ufffd".encode() not in line for text, line in zip(wanted, lines, strict=True)
    )


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "gb18030", "shift_jis", "euc_kr", "utf-8-sig", "koi8-r"])
def test_other_encodings_become_utf8(encoding):
    text = {"gb18030": "漢字 é\n", "shift_jis": "猫と犬\n", "euc_kr": "한국어\n", "koi8-r": "слово\n"}.get(
        encoding, "café\n"
    )
    data = (text * 3).encode(encoding)
    found = decode_block(block_of(data.removeprefix(b"\xef\xbb\xbf")), "x", encoding)
    assert found.data.tobytes().decode() == text * 3
    assert found.lines == 3


def test_bad_bytes_name_file_line_and_byte():
    block = block_of(b"fine\n" * 3 + b"caf\xe9\n", first_line=11)
    with pytest.raises(
        DataError,
        match=r"a\.txt:14: byte 0xE9 at column 4 is not utf-8; set the option encoding.*encoding=latin-1.*on_bad_bytes",
    ):
        decode_block(block, "a.txt")
    with pytest.raises(DataError, match=r"a\.txt:1: byte 0x81 at column 1 is not cp1252"):
        decode_block(block_of(b"\x81\n"), "a.txt", "cp1252")


@pytest.mark.parametrize("encoding", ["klingon", "hex", "rot13", "utf-8\0", "", "idna"])
def test_unknown_encodings(encoding):
    with pytest.raises(ConfigError, match=r"encoding: .* is not a known encoding"):
        text_codec(encoding)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "cp037"])
def test_encodings_with_other_line_ends(encoding):
    with pytest.raises(ConfigError, match=f"files in {encoding} are not supported; convert"):
        text_codec(encoding)


@pytest.mark.parametrize(
    "encoding", sorted(set(encodings.aliases.aliases.values()) | {"unicode_escape", "utf_7", "punycode"})
)
@pytest.mark.parametrize("on_bad_bytes", ["error", "replace"])
def test_every_encoding_gives_utf8_or_an_error(encoding, on_bad_bytes):
    rng = np.random.default_rng(1)
    for size in (1, 5, 40):
        lines = [rng.integers(0, 256, size, np.uint8).tobytes().replace(b"\n", b"~") for _ in range(4)]
        lines += [b"~", b"\\n\\ud800", b"+2AA-", b"\x1b$B"]
        block = block_of(b"".join(line + b"\n" for line in lines))
        try:
            found = decode_block(block, "x", encoding, on_bad_bytes)
        except (ConfigError, DataError):
            continue
        assert found.data.tobytes().decode().count("\n") == len(lines) == found.lines


def test_text_blocks_tell_once_how_many_lines_were_replaced(tmp_path, caplog):
    path = tmp_path / "mixed.txt"
    path.write_bytes(b"caf\xe9\nfine\n\xff\xff\n")
    with caplog.at_level(logging.WARNING):
        assert joined(text_blocks(path, on_bad_bytes="replace")) == "caf\ufffd\nfine\n\ufffd\ufffd\n".encode()
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: lines in which bytes that are not utf-8 were replaced by U+FFFD: 2"
    ]
    with pytest.raises(DataError, match=r"mixed\.txt:1: "):
        list(text_blocks(path))


@pytest.mark.parametrize("suffix", sorted(PACKERS))
def test_written_files_appear_whole(tmp_path, suffix):
    path = tmp_path / "new" / f"out.txt{suffix}"
    with write_stream(path) as file:
        file.write(b"one\n")
        file.write(memoryview(b"two\n"))
        assert not path.exists()
    assert first_bytes(path) == b"one\ntwo\n"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    again = tmp_path / f"again{suffix}"
    with write_stream(again) as file:
        file.write(b"one\ntwo\n")
    assert again.read_bytes() == path.read_bytes()
    assert (path.read_bytes() == b"one\ntwo\n") == (suffix == "")


@pytest.mark.parametrize("suffix", sorted(PACKERS))
def test_a_failed_write_leaves_what_was_there(tmp_path, suffix):
    path = tmp_path / f"out.txt{suffix}"
    path.write_bytes(b"before")

    def fail():
        with write_stream(path) as file:
            file.write(b"half")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"before"


def test_what_cannot_be_written_names_the_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "file" / "below.txt", tmp_path / ("n" * 300)):
        with pytest.raises(DataError, match=r"is a folder|cannot be written"), write_stream(path):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_two_streams_of_one_file_do_not_mix(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(random_text(5000) * 40)
    both = itertools.zip_longest(line_blocks(path, 7000), line_blocks(path, 7000))
    assert all(np.array_equal(a.data, b.data) for a, b in both)
