"""Downloading named data sets from a server that misbehaves."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from functools import lru_cache

import numpy as np
import pytest
from scipy import sparse

from data.faulty_server import HASTY, left_in, ranged, whole
from labelwise.data import catalogue
from labelwise.data.catalogue import PublishedFigures, download
from labelwise.data.describe import FigureComparison, check, compare, split_statistics
from labelwise.errors import DataError

# --- named data sets ---------------------------------------------------------------------------------------------


def tar_gz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def npz(matrix):
    buffer = io.BytesIO()
    sparse.save_npz(buffer, sparse.csr_matrix(matrix, dtype=np.float32))
    return buffer.getvalue()


@lru_cache  # archives hold the time they were made at
def tiny_archive():
    """Three and two documents, four labels, five features, as PECOS packs them."""
    train, test = np.eye(3, 4), np.eye(2, 4, 2)
    train[0, 3] = 1
    files = {"trn": (b"one\ntwo\nthree\n", train, np.eye(3, 5)), "tst": (b"four\nfive\n", test, np.eye(2, 5))}
    packed = {"output-items.txt": b"a\nb\nc\nd\n"}
    for split, (texts, labels, features) in files.items():
        packed[f"X.{split}.txt"] = texts
        packed[f"Y.{split}.npz"] = npz(labels)
        packed[f"tfidf-attnxml/X.{split}.npz"] = npz(features)
    return tar_gz({f"xmc-base/tiny/{name}": content for name, content in packed.items()})


TINY = """
tiny:
  title: a small one
  format: pecos
  sources:
    - file: tiny.tar.gz
      addresses: [{url}/tiny.tar.gz]
      sha256: {sha256}
    - file: extra.txt
      addresses: [{url}/extra.txt]
      unpack: false
      optional: true
  licence: none
  citation: nobody
  propensity: [0.55, 1.5]
  published: {{train: 3, test: 2, features: 5, labels: 4, mean_labels: 1.33}}
  notes: made for a test
"""


@pytest.fixture
def tiny(server, tmp_path, monkeypatch):
    """A catalogue with one data set; gives a function that changes its checksum."""

    def known(sha256="null"):
        path = tmp_path / "catalogue.yml"
        path.write_text(TINY.format(url=server.url, sha256=sha256))
        monkeypatch.setattr(catalogue, "CATALOGUE", path)
        catalogue._entries.cache_clear()

    known()
    server.answers["/tiny.tar.gz"] = ranged(tiny_archive())
    yield known
    monkeypatch.undo()
    catalogue._entries.cache_clear()


def test_download_a_data_set(server, tmp_path, tiny):
    home = tmp_path / "home"
    with pytest.raises(DataError, match=f"labelwise data download tiny --folder {home}"):
        catalogue.dataset("tiny", folder=home)
    found = download("tiny", home, limits=HASTY)
    assert found.folder == home / "tiny"
    assert not found.was_there
    assert left_in(home) == ["downloads", "tiny", "tiny.lock.json"]
    assert left_in(home / "downloads") == []
    assert left_in(home / "tiny") == [
        "X.trn.txt", "X.tst.txt", "Y.trn.npz", "Y.tst.npz", "output-items.txt", "source.json", "tfidf-attnxml",
    ]  # fmt: skip
    source = json.loads((home / "tiny" / "source.json").read_text())
    assert source["files"]["tiny.tar.gz"]["sha256"] == hashlib.sha256(tiny_archive()).hexdigest()
    train = catalogue.dataset("tiny", "train", home)
    assert list(train.texts) == ["one", "two", "three"]
    assert list(train.label_texts) == ["a", "b", "c", "d"]
    assert set(catalogue.dataset("tiny", folder=home)) == {"train", "test"}
    rows = check("tiny", home)
    assert [row.ok for row in rows] == [True] * 5
    assert len(rows) == 5


def test_what_is_there_is_not_downloaded_again(server, tmp_path, tiny):
    download("tiny", tmp_path, limits=HASTY)
    before = len(server.requests)
    assert download("tiny", tmp_path, limits=HASTY).was_there
    assert len(server.requests) == before
    assert not download("tiny", tmp_path, force=True, limits=HASTY).was_there
    assert len(server.requests) > before


def test_a_file_that_changed_since_the_first_download(server, tmp_path, tiny):
    download("tiny", tmp_path, limits=HASTY)
    server.answers["/tiny.tar.gz"] = ranged(tar_gz({"X.trn.txt": b"another\n"}))
    first = hashlib.sha256(tiny_archive()).hexdigest()
    with pytest.raises(DataError, match=f"has changed and was removed.*{first}"):
        download("tiny", tmp_path, force=True, limits=HASTY)
    assert list(catalogue.dataset("tiny", "train", tmp_path).texts) == ["one", "two", "three"]
    (tmp_path / "tiny.lock.json").unlink()
    download("tiny", tmp_path, force=True, limits=HASTY)
    assert (tmp_path / "tiny" / "X.trn.txt").read_bytes() == b"another\n"


def test_known_checksum(server, tmp_path, tiny):
    tiny("'" + "0" * 64 + "'")
    with pytest.raises(DataError, match="not the expected file, removed"):
        download("tiny", tmp_path / "home", limits=HASTY)
    assert not (tmp_path / "home" / "tiny").exists()
    tiny("'" + hashlib.sha256(tiny_archive()).hexdigest() + "'")
    assert download("tiny", tmp_path / "home", limits=HASTY).folder.is_dir()


def test_a_mirror(server, tmp_path, tiny):
    server.answers["/inside/tiny.tar.gz"] = ranged(tiny_archive())
    found = download("tiny", tmp_path, base_url=server.url + "/inside/", limits=HASTY)
    assert found.files[0].address == server.url + "/inside/tiny.tar.gz"


def test_optional_files_come_along_when_they_are_there(server, tmp_path, tiny):
    server.answers["/extra.txt"] = ranged(b"more")
    server.answers["/tiny.tar.gz"] = ranged(tar_gz({"X.trn.txt": b"one\n"}))
    download("tiny", tmp_path, limits=HASTY)
    assert (tmp_path / "tiny" / "extra.txt").read_bytes() == b"more"


@pytest.mark.parametrize(
    "content",
    [
        tiny_archive()[:-200],
        b"this is no archive",
        tar_gz({"../escaped.txt": b"x"}),
        tar_gz({"ok.txt": b"x", "/tmp/escaped.txt": b"x"}),
    ],
)
def test_a_bad_archive_leaves_nothing(server, tmp_path, tiny, content):
    home = tmp_path / "deep" / "home"
    server.answers["/tiny.tar.gz"] = ranged(content)
    with pytest.raises(DataError):
        download("tiny", home, limits=HASTY)
    assert left_in(home) == ["downloads"]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_after_a_damaged_archive_the_next_try_works(server, tmp_path, tiny):
    server.answers["/tiny.tar.gz"] = whole(tiny_archive()[:-200])
    with pytest.raises(DataError, match="damaged or truncated"):
        download("tiny", tmp_path / "home", limits=HASTY)
    server.answers["/tiny.tar.gz"] = ranged(tiny_archive())
    assert download("tiny", tmp_path / "home", limits=HASTY).folder.is_dir()


def test_a_bomb_is_refused(server, tmp_path, tiny):
    server.answers["/tiny.tar.gz"] = ranged(tar_gz({"X.trn.txt": bytes(1 << 20)}))
    with pytest.raises(DataError, match="more than 100,000 bytes"):
        download("tiny", tmp_path / "home", limits=HASTY, max_unpacked_bytes=100_000)


def test_a_folder_that_is_not_ours_is_never_replaced(server, tmp_path, tiny):
    mine = tmp_path / "tiny"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    assert download("tiny", tmp_path).was_there
    with pytest.raises(DataError, match="was not written by labelwise"):
        download("tiny", tmp_path, force=True)
    assert left_in(mine) == ["notes.txt"]
    assert server.requests == []


def test_two_processes_do_not_write_one_file(server, tmp_path, tiny):
    fcntl = pytest.importorskip("fcntl")
    waiting = tmp_path / "downloads" / "tiny"
    waiting.mkdir(parents=True)
    with (waiting / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            download("tiny", tmp_path, limits=HASTY)
    assert server.requests == []
    assert download("tiny", tmp_path, limits=HASTY).folder.is_dir()


def test_comparison_with_published_figures(server, tmp_path, tiny):
    download("tiny", tmp_path, limits=HASTY)
    found = split_statistics(catalogue.dataset("tiny", folder=tmp_path))
    published = PublishedFigures(train=4, valid=1, labels=4, mean_labels=1.2)
    said = {row.what: (row.expected, row.actual, row.ok) for row in compare(published, found)}
    assert said["train documents"] == (4, 3, False)
    assert said["valid documents"] == (1, None, None)
    assert said["test documents"] == (None, 2, None)
    assert said["labels"] == (4, 4, True)
    # 6 labels on 5 documents, 4 on 3 in train: the figure may mean either
    assert said["labels per document"] == (1.2, pytest.approx(1.2), True)
    assert FigureComparison("x", 5.31, 5.32).ok
    assert not FigureComparison("x", 5.31, 5.4).ok


# --- EURLEX57K ---------------------------------------------------------------------------------------------------


def law(number, labels_key, labels):
    return {
        "celex_id": f"3{number}",
        "title": f"Title {number}",
        "header": "THE\nCOUNCIL",
        "recitals": "Whereas\tthis",
        "main_body": ["Article 1", " Article 2\n"],
        labels_key: labels,
    }


def eurlex_zip(shape):
    parts = {"train": [["1", "20"], ["3"]], "dev": [["20"]], "test": [["1"]]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for split, rows in parts.items():
            if shape == "folders":
                for number, labels in enumerate(rows):
                    text = json.dumps(law(number, "concepts", labels))
                    packed.writestr(f"dataset/{split}/3{number}.json", text)
                    packed.writestr(f"__MACOSX/dataset/{split}/._3{number}.json", b"\0")
            else:
                lines = [json.dumps(law(n, "eurovoc_concepts", labels)) for n, labels in enumerate(rows)]
                packed.writestr(f"{split}.jsonl", "\n".join(lines) + "\n")
    return buffer.getvalue()


@pytest.mark.parametrize("shape", ["folders", "lines"])
def test_eurlex57k_in_both_shapes(server, tmp_path, shape):
    server.answers["/dataset.zip"] = ranged(eurlex_zip(shape))
    concepts = [{"id": "1", "title": "fish"}, {"id": "20", "title": "milk\tproduct"}]
    server.answers["/eurovoc_concepts.jsonl"] = ranged("\n".join(map(json.dumps, concepts)).encode())
    download("eurlex57k", tmp_path, base_url=server.url, limits=HASTY)
    assert left_in(tmp_path / "eurlex57k") == [
        "label_names.tsv", "source.json", "test_labels.txt", "test_texts.txt", "train_labels.txt",
        "train_texts.txt", "valid_labels.txt", "valid_texts.txt",
    ]  # fmt: skip
    parts = catalogue.dataset("eurlex57k", folder=tmp_path)
    train = parts["train"]
    assert list(train.texts) == [f"Title {n} THE COUNCIL Whereas this Article 1 Article 2" for n in (0, 1)]
    assert list(train.label_names) == ["1", "3", "20"]
    assert train.labels.toarray().tolist() == [[1, 0, 1], [0, 1, 0]]
    assert list(train.label_texts) == ["fish", "3", "milk product"]
    assert {name: len(part) for name, part in parts.items()} == {"train": 2, "valid": 1, "test": 1}
    assert [row.ok for row in check("eurlex57k", tmp_path)][:4] == [False] * 4


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"[]", "a JSON object is needed"),
        (b"{", "not a JSON document"),
        (json.dumps({"title": "x"}).encode(), "a list of ids is needed"),
        (json.dumps({"title": 3, "concepts": []}).encode(), "'title' contains a int"),
        (json.dumps({"title": " ", "concepts": []}).encode(), "all of title, header, recitals, main_body are empty"),
    ],
)
def test_eurlex57k_that_is_not_as_expected(server, tmp_path, document, message):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("train.jsonl", document)
    server.answers["/dataset.zip"] = ranged(buffer.getvalue())
    with pytest.raises(DataError, match=message):
        download("eurlex57k", tmp_path, base_url=server.url, limits=HASTY)
    assert left_in(tmp_path) == ["downloads"]


def test_files_that_are_not_unpacked(server, tmp_path):
    lines = gzip.compress(b"1 | 3:0.5 4:1\n2 | 4:2\n")
    server.answers["/train.vw.gz"] = ranged(lines)
    server.answers["/test.vw.gz"] = ranged(lines)
    download("odp", tmp_path, base_url=server.url, limits=HASTY)
    assert left_in(tmp_path / "odp") == ["source.json", "test.vw.gz", "train.vw.gz"]
    assert (tmp_path / "odp" / "train.vw.gz").read_bytes() == lines
    assert len(catalogue.dataset("odp", "train", tmp_path)) == 2
