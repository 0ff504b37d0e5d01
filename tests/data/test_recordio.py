"""RecordIO files against files written by hand, and hostile ones."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import labelwise as lw
from data.record_files import MAGIC, content, image_bytes, part, record, write_records
from labelwise.data.recordio import (
    image_records,
    member_image,
    read_index,
    scan_offsets,
    split_member,
)
from labelwise.errors import DataError

IMAGE = b"\x89PNG not really"


def faces(path, index=True):
    """Two people with two and one images, as the published files are laid out."""
    contents = [
        content([4, 6]),  # images are 1 to 3, people 4 and 5
        content(7.0, IMAGE + b"1"),
        content([7.0, 1.0], IMAGE + b"22"),
        content(9.0, IMAGE + b"333"),
        content([1, 3]),
        content([3, 4]),
    ]
    return write_records(path, contents, index)


@pytest.mark.parametrize("index", [True, False])
def test_a_file_of_faces(tmp_path, index):
    offsets = faces(tmp_path / "train.rec", index)
    data = lw.read(tmp_path)
    assert data.label_names == ["7", "9"]
    assert data.labels.toarray().tolist() == [[1, 0], [1, 0], [0, 1]]
    assert list(data.ids) == ["1", "2", "3"]
    assert list(data.paths) == [f"{tmp_path}/train.rec#{offset}" for offset in offsets[1:4]]
    images = [member_image(*split_member(path)) for path in data.paths]
    assert images == [IMAGE + b"1", IMAGE + b"22", IMAGE + b"333"]
    assert lw.read(tmp_path / "train.rec", labels=False).n_labels == 0


def test_a_file_without_a_header_record(tmp_path):
    write_records(tmp_path / "a.rec", [content(1, IMAGE), content(0, IMAGE)])
    data = lw.read(tmp_path / "a.rec")
    assert data.labels.toarray().tolist() == [[0, 1], [1, 0]]


def test_records_that_contain_the_magic_number_are_joined(tmp_path):
    payloads = [b"abcd" + MAGIC + b"efgh" + MAGIC, MAGIC * 3 + b"x", b"y" * 41]
    contents = [content(number, payload) for number, payload in enumerate(payloads)]
    contents.append(content([3.0], payloads[0], key=int.from_bytes(MAGIC * 2, "little")))  # also inside the header
    offsets = write_records(tmp_path / "a.rec", contents, index=False)
    assert scan_offsets(tmp_path / "a.rec").tolist() == offsets
    found = image_records(tmp_path / "a.rec")
    assert found.labels.tolist() == [0, 1, 2, 3]
    for offset, payload in zip(found.offsets, [*payloads, payloads[0]], strict=True):
        assert member_image(str(tmp_path / "a.rec"), int(offset)) == payload


def test_random_files_are_read_back(tmp_path):
    rng = np.random.default_rng(0)
    pieces = [MAGIC, b"\0", b"ab", rng.bytes(5)]
    payloads = [b"".join(pieces[i] for i in rng.integers(0, 4, rng.integers(0, 30))) for _ in range(200)]
    labels = rng.integers(0, 1000, 200)
    contents = [
        content(float(label) if label % 2 else [float(label), 5.0], payload)
        for label, payload in zip(labels.tolist(), payloads, strict=True)
    ]
    contents[0] = content(float(labels[0]), payloads[0])
    keys = rng.permutation(1000)[:200].tolist()
    write_records(tmp_path / "a.rec", contents, keys=keys)
    found = image_records(tmp_path / "a.rec")
    order = np.argsort(keys)
    assert found.keys.tolist() == sorted(keys)
    assert found.labels.tolist() == labels[order].tolist()
    for place, offset in zip(order, found.offsets, strict=True):
        assert member_image(str(tmp_path / "a.rec"), int(offset)) == payloads[place]


@pytest.mark.parametrize("keep", [1, 7, 8, 20, 36, 40, 60, 100, 150])
@pytest.mark.parametrize("index", [True, False])
def test_truncated_files_name_the_file(tmp_path, keep, index):
    path = tmp_path / "train.rec"
    faces(path, index)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train\.(rec|idx)"):
        lw.read(path, format="recordio")


def test_every_changed_byte_is_an_error_or_read(tmp_path):
    path = tmp_path / "train.rec"
    faces(path)
    good = path.read_bytes()
    for position in range(0, len(good), 3):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0xFF]) + good[position + 1 :])
        try:
            data = lw.read(path, format="recordio")
            for image in data.paths:
                member_image(*split_member(image))
        except DataError as error:
            assert "train.rec" in str(error) or "train.idx" in str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (part(content(1.0), flag=2), "begins in the middle"),
        (part(content(1.0), flag=1) + part(b"", flag=0), "not continued"),
        (part(content(1.0), flag=1), "not complete|beyond|begin at byte"),
        (part(content(1.0), flag=5), "unknown flag 5"),
        (MAGIC + struct.pack("<I", (1 << 29) - 1) + content(1.0), "claims 536,870,911 bytes"),
        (part(b"short"), "5 bytes, too few"),
        (part(struct.pack("<IfQQ", 1 << 30, 0, 0, 0)), "claims 1,073,741,824 labels"),
        (part(content(1.5, b"x")), "label of record 0 is 1.5"),
        (part(content(float("nan"), b"x")), "label of record 0 is nan"),
        (part(content(3e9, b"x")), "a class is a whole number below"),
        (part(content(-1.0, b"x")), "label of record 0 is -1"),
        (part(content([99.0, 120.0])), "images end before record 99"),
        (part(content([float("inf")])), "images end before record inf"),
        (MAGIC[::-1] * 10, "magic number"),
    ],
)
def test_hostile_records(tmp_path, data, message):
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        lw.read(path, format="recordio")
    assert "a.rec" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\t0\n0\t8\n", "key 0 is listed twice"),
        ("0\t0\n1\t0\n", "same offset"),
        ("0\t-8\n", "below 0"),
        ("0\n", "two whole numbers"),
        ("0\tx\n", "two whole numbers"),
        ("0\t0\t0\n1\n", "two whole numbers|listed twice|same offset"),
        ("", "empty"),
        ("0\t4\n", "no record begins at byte 4"),
        ("0\t999999999999\n", "but the file has"),
    ],
)
def test_hostile_indexes(tmp_path, text, message):
    (tmp_path / "a.rec").write_bytes(record(content(1.0, b"x")) + record(content(1.0, b"x")))
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(DataError, match=message):
        lw.read(tmp_path / "a.rec")


def test_an_index_of_another_file(tmp_path):
    faces(tmp_path / "train.rec")
    lines = (tmp_path / "train.idx").read_text().splitlines()
    (tmp_path / "train.idx").write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    with pytest.raises(DataError, match="lacks 1 of the 3 images"):
        lw.read(tmp_path)
    keys, _ = read_index(tmp_path / "train.idx")
    assert keys.tolist() == [0, 1, 3, 4, 5]


def test_a_real_image_survives(tmp_path):
    pixels = np.arange(48).reshape(4, 4, 3)
    write_records(tmp_path / "a.rec", [content(0, image_bytes(pixels))])
    path = lw.read(tmp_path / "a.rec").paths[0]
    assert member_image(*split_member(path)) == image_bytes(pixels)
    assert split_member("some/image.png") is None
