"""Readers of image sets: hand-made files of each layout, and hostile ones."""

import gzip
import io
import lzma
import pickle
import struct
import tarfile

import numpy as np
import pytest
from data_cases import assert_same, put
from PIL import Image

import labelwise as lw
from cli.commands import labelwise
from labelwise.data.formats import images as cifar
from labelwise.data.read import detect
from labelwise.errors import ConfigError, DataError, LabelwiseError

RNG = np.random.default_rng(1)
NAMES = [f"class{n}" for n in range(10)]


def images(count):
    return RNG.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def as_read(pixels):
    return pixels.transpose(0, 2, 3, 1)


def python_batch(pixels, labels, key="labels"):
    """As Python 2 wrote them: keys are byte strings."""
    return pickle.dumps({b"data": pixels.reshape(len(pixels), -1), key.encode(): list(map(int, labels))}, 2)


def cifar_files(kind):
    """Files of a small CIFAR by name, with the images and labels of train and test."""
    train, test = images(6), images(2)
    labels, test_labels = np.array([3, 0, 9, 1, 1, 5]), np.array([9, 2])
    if kind == "10-python":
        meta = pickle.dumps({b"label_names": [name.encode() for name in NAMES]}, 2)
        files = {
            "batches.meta": meta,
            "data_batch_1": python_batch(train[:4], labels[:4]),
            "data_batch_2": python_batch(train[4:], labels[4:]),
            "test_batch": python_batch(test, test_labels),
        }
    elif kind == "100-python":
        files = {
            "meta": pickle.dumps({b"fine_label_names": NAMES, b"coarse_label_names": ["c"]}, 2),
            "train": python_batch(train, labels, "fine_labels"),
            "test": python_batch(test, test_labels, "fine_labels"),
        }
    else:
        coarse = b"\7" if kind == "100-binary" else b""

        def records(pixels, numbers):
            return b"".join(coarse + bytes([n]) + one.tobytes() for n, one in zip(numbers, pixels, strict=True))

        if coarse:
            files = {"train.bin": records(train, labels), "test.bin": records(test, test_labels)}
            files["fine_label_names.txt"] = "\n".join(NAMES).encode()
        else:
            files = {
                "data_batch_1.bin": records(train[:4], labels[:4]),
                "data_batch_2.bin": records(train[4:], labels[4:]),
            }
            files |= {"test_batch.bin": records(test, test_labels), "batches.meta.txt": "\n".join(NAMES).encode()}
    return files, (train, labels), (test, test_labels)


def archived(path, files, folder="cifar"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", ["10-python", "100-python", "10-binary", "100-binary"])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar(tmp_path, kind, packed):
    files, (train, labels), (test, test_labels) = cifar_files(kind)
    source = tmp_path
    if packed:
        source = archived(tmp_path / "c.tar.gz", files)
    else:
        for name, content in files.items():
            put(tmp_path / name, content)
    assert detect(source).name == "cifar"
    parts = lw.read_splits(source)
    assert list(parts) == ["train", "test"]
    for found, pixels, numbers in ((parts["train"], train, labels), (parts["test"], test, test_labels)):
        np.testing.assert_array_equal(found.arrays, as_read(pixels))
        assert list(found.label_names) == NAMES
        assert [found.labels_of(row) for row in range(len(found))] == [[NAMES[n]] for n in numbers]
    again = lw.read(source, split="test")
    np.testing.assert_array_equal(again.arrays, as_read(test))
    with pytest.raises(DataError, match="train, test"):
        lw.read(source)
    lw.write_splits(parts, tmp_path / "native", "native")
    back = lw.read_splits(tmp_path / "native")
    assert_same(back["train"], parts["train"])
    np.testing.assert_array_equal(back["train"].arrays, parts["train"].arrays)


class Command:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1", pickle.dumps(Command(), 2), "print"),
        ("data_batch_1", b"\x80\x02}q\x00.", "'data'"),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, 2), "1 labels for 2"),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((1, 9), np.uint8), b"labels": [1]}, 2), "3072"),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [99]}, 2), "99"),
        ("data_batch_1", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["x"]}, 2), "label numbers"),
        ("data_batch_1.bin", b"\1" * 3000, "truncated"),
        ("data_batch_1.bin", b"", "empty"),
    ],
)
def test_hostile_cifar(tmp_path, name, content, message, capsys):
    put(tmp_path / "batches.meta", pickle.dumps({b"label_names": NAMES}, 2))
    put(tmp_path / name, content)
    with pytest.raises(DataError, match=f"(?s){name}.*{message}"):
        lw.read(tmp_path / name, "cifar")
    assert "must not" not in capsys.readouterr().out


def test_damaged_archives_are_refused(tmp_path):
    files, *_ = cifar_files("10-python")
    whole = archived(tmp_path / "c.tar.gz", files).read_bytes()
    for size in (40, len(whole) // 4, len(whole) // 2, len(whole) - 100):
        put(tmp_path / "cifar-half.tar.gz", whole[:size])
        with pytest.raises(DataError, match=r"cifar-half\.tar\.gz: the archive is truncated"):
            lw.read(tmp_path / "cifar-half.tar.gz", split="train")
    put(tmp_path / "half.tar.gz", whole[: len(whole) // 2])
    assert "half.tar.gz: the archive is truncated" in labelwise("data", "stats", tmp_path / "half.tar.gz", code=2).err
    archived(tmp_path / "two.tar.gz", {**files, "more/data_batch_1": files["data_batch_1"]})
    with pytest.raises(DataError, match="two files"):
        lw.read(tmp_path / "two.tar.gz", split="train")
    archived(tmp_path / "other.tar.gz", {"notes.txt": b"x"})
    with pytest.raises(LabelwiseError):
        lw.read(tmp_path / "other.tar.gz")


# --- idx ---


def test_archives_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    """Files of 1 GB each, of zeros, would need no space in an archive."""
    monkeypatch.setattr(cifar, "MAX_BYTES", 100_000)
    zeros = dict.fromkeys(("data_batch_1", "data_batch_2", "data_batch_3"), bytes(40_000))
    path = archived(tmp_path / "bomb.tar.gz", zeros)
    assert cifar.holds_parts(path)
    with pytest.raises(DataError, match=r"bomb\.tar\.gz.*more than 100,000 bytes up to '.*data_batch_3'"):
        lw.read(path, split="train")


def idx(array, code=0x08):
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    pixels, labels = RNG.integers(0, 256, (5, 7, 6), dtype=np.uint8), np.array([4, 0, 2, 2, 1], np.uint8)

    def file(name, content):
        put(tmp_path / (name + (".gz" if packed else "")), gzip.compress(content) if packed else content)

    file("train-images-idx3-ubyte", idx(pixels))
    file("train-labels-idx1-ubyte", idx(labels))
    file("t10k-images-idx3-ubyte", idx(pixels[:2]))
    file("t10k-labels-idx1-ubyte", idx(labels[:2]))
    parts = lw.read_splits(tmp_path)
    assert list(parts) == ["train", "test"]
    np.testing.assert_array_equal(parts["train"].arrays, pixels)
    assert [parts["train"].labels_of(row) for row in range(5)] == [["4"], ["0"], ["2"], ["2"], ["1"]]
    assert len(parts["test"]) == 2
    images_only = next(path for path in tmp_path.iterdir() if path.name.startswith("train-images"))
    assert detect(images_only).name == "idx"
    assert lw.read(images_only, labels=False).n_labels == 0


def test_other_types_of_idx(tmp_path):
    values = RNG.random((3, 4, 2)).astype(">f4")
    put(tmp_path / "x-images-idx3", idx(values, 0x0D))
    put(tmp_path / "x-labels-idx1", idx(np.array([0, 300, 1], ">i4"), 0x0C))
    found = lw.read(tmp_path / "x-images-idx3")
    np.testing.assert_array_equal(found.arrays, values)
    assert found.n_labels == 301


@pytest.mark.parametrize(
    ("content", "labels", "message"),
    [
        (idx(np.zeros((2, 3, 3), np.uint8))[:-1], idx(np.zeros(2, np.uint8)), "truncated"),
        (idx(np.zeros((2, 3, 3), np.uint8)) + b"x", idx(np.zeros(2, np.uint8)), "more bytes"),
        (idx(np.zeros((2, 3, 3), np.uint8)), idx(np.zeros(3, np.uint8)), "3 labels for 2"),
        (idx(np.zeros((2, 3, 3), np.uint8)), b"\0\0\x08\x01\0\0", "header"),
        (idx(np.zeros((2, 3, 3), np.uint8)), idx(np.array([-5, 1], ">i4"), 0x0C), "labels are numbers"),
        (b"\0\0\x08\x03" + b"\xff" * 12, idx(np.zeros(2, np.uint8)), "more than are read"),
        (b"\0\0\x08\x03" + struct.pack(">III", 2**20, 2**10, 2) + b"abc", idx(np.zeros(2, np.uint8)), "truncated"),
        (
            gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 2**20, 2**10, 63), mtime=0),
            idx(np.zeros(2, np.uint8)),
            "at most",
        ),
        (b"\0\0\x07\x03" + b"\0" * 12, idx(np.zeros(2, np.uint8)), "not an idx"),
    ],
)
def test_hostile_idx(tmp_path, content, labels, message):
    put(tmp_path / "train-images-idx3-ubyte", content)
    put(tmp_path / "train-labels-idx1-ubyte", labels)
    with pytest.raises(DataError, match=message):
        lw.read(tmp_path / "train-images-idx3-ubyte", "idx")


def test_headers_are_compared_with_memory(tmp_path, monkeypatch):
    """A compressed file of zeros can hold a thousand times its size, and other formats more."""
    monkeypatch.setattr("labelwise.data.formats.idx.free_memory", lambda: 10**6)
    put(tmp_path / "train-images-idx3-ubyte.xz", lzma.compress(idx(np.zeros((2000, 40, 40), np.uint8))))
    with pytest.raises(DataError, match="3,200,000 bytes, but only 1,000,000 bytes of memory"):
        lw.read(tmp_path / "train-images-idx3-ubyte.xz", labels=False)


def test_missing_labels_are_reported(tmp_path):
    put(tmp_path / "train-images-idx3-ubyte", idx(np.zeros((2, 3, 3), np.uint8)))
    with pytest.raises(DataError, match="train-labels-idx"):
        lw.read(tmp_path / "train-images-idx3-ubyte")


# --- folders of images ---


def picture(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(path)
    return path


def test_folders_named_by_labels(tmp_path):
    for label, count in (("cat", 2), ("dog", 1)):
        for number in range(count):
            picture(tmp_path / "train" / label / f"{number}.png")
    picture(tmp_path / "val" / "dog" / "10.JPG")
    picture(tmp_path / "val" / "dog" / "9.jpg")
    put(tmp_path / "val" / "dog" / "notes.txt", "no image")
    assert detect(tmp_path).name == "image_folder"
    parts = lw.read_splits(tmp_path)
    assert list(parts) == ["train", "valid"]
    assert [parts["train"].labels_of(row) for row in range(3)] == [["cat"], ["cat"], ["dog"]]
    assert [path.rsplit("/", 1)[1] for path in parts["valid"].paths] == ["9.jpg", "10.JPG"]
    one = lw.read(tmp_path / "train")
    assert list(one.label_names) == ["cat", "dog"]


def test_nested_folders_are_one_label_each(tmp_path):
    for alphabet in ("Greek", "Latin"):
        for character in ("character01", "character02"):
            picture(tmp_path / alphabet / character / "0001_01.png")
    found = lw.read(tmp_path)
    assert list(found.label_names) == [f"{a}/character0{c}" for a in ("Greek", "Latin") for c in (1, 2)]
    assert len(lw.read(tmp_path, labels=False)) == 4
    with pytest.raises(DataError, match="no data in any format"):
        lw.read(tmp_path / "Greek" / "character01")
    assert len(lw.read(tmp_path / "Greek" / "character01", labels=False)) == 1


def test_folders_of_labels_may_be_links(tmp_path):
    """As in subsets of ImageNet; a link that leads back is refused."""
    picture(tmp_path / "all" / "cat" / "1.png")
    picture(tmp_path / "all" / "dog" / "1.png")
    picture(tmp_path / "some" / "fox" / "1.png")
    (tmp_path / "some" / "cat").symlink_to(tmp_path / "all" / "cat")
    data = lw.read(tmp_path / "some")
    assert list(data.label_names) == ["cat", "fox"]
    (tmp_path / "some" / "fox" / "again").symlink_to(tmp_path / "some")
    with pytest.raises(DataError, match="link"):
        lw.read(tmp_path / "some")


def test_images_without_a_folder_are_reported(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "stray.png")
    with pytest.raises(DataError, match=r"stray\.png is not in a folder"):
        lw.read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no data in the format image_folder"):
        lw.read(tmp_path / "empty", "image_folder")


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.jsonl"])
def test_paths_in_a_table_are_those_of_its_folder(tmp_path, name):
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "b.png")
    mark = "\t" if name.endswith("tsv") else ","
    lines = [f"path{mark}labels", f"images/a.png{mark}x;y", f"images/b.png{mark}y"]
    if name.endswith("jsonl"):
        lines = ['{"path": "images/a.png", "labels": ["x", "y"]}', '{"path": "images/b.png", "labels": ["y"]}']
    put(tmp_path / name, "\n".join(lines) + "\n")
    found = lw.read(tmp_path)
    assert list(found.paths) == [str(tmp_path / "images" / "a.png"), str(tmp_path / "images" / "b.png")]
    assert found.labels_of(0) == ["x", "y"]
    put(tmp_path / name, "\n".join(lines).replace("images/", "elsewhere/") + "\n")
    assert list(lw.read(tmp_path / name).paths) == ["elsewhere/a.png", "elsewhere/b.png"]


def test_options_of_tables_are_refused_for_images(tmp_path):
    picture(tmp_path / "a" / "1.png")
    with pytest.raises(ConfigError, match="no effect"):
        lw.read(tmp_path, options={"label_separator": ","})
