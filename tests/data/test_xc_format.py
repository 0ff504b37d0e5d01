"""The XC repository's sparse text: each rule of the format, each error, and what is written is read back."""

import gzip
import re
import threading

import numpy as np
import pytest
from data_cases import reader_of_content, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from labelwise.data.dataset import Dataset
from labelwise.data.formats import sparse_text as sparse_rows
from labelwise.data.formats import sparse_text as xc
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError, DataError
from labelwise.runtime.threads import using_threads

CHECK = ReadOptions()
IGNORE = ReadOptions(header="ignore")


@pytest.fixture
def read(tmp_path):
    return reader_of_content(xc.read, tmp_path / "data.txt", CHECK)


def same(one, other):
    """Whether two sparse matrices are equal in shape and in every stored entry."""
    arrays = ("indptr", "indices", "data")
    return one.shape == other.shape and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


RULES = {
    "a header and two lines": ("2 5 9\n1,8 0:1 4:0.5\n3 2:-1e-2\n", [([1, 8], {0: 1, 4: 0.5}), ([3], {2: np.float32(-0.01)})], (5, 9)),
    "no last newline": ("1 5 9\n1 0:1", [([1], {0: 1})], (5, 9)),
    "a line that begins with a blank has no labels": ("2 5 9\n 0:1\n\t1:1\n", [([], {0: 1}), ([], {1: 1})], (5, 9)),
    "a first word with a colon is no label": ("1 5 9\n3:1 4:1\n", [([], {3: 1, 4: 1})], (5, 9)),
    "an empty line is a document": ("3 5 9\n1 0:1\n\n2 1:1\n", [([1], {0: 1}), ([], {}), ([2], {1: 1})], (5, 9)),
    "an empty last line that is counted": ("2 5 9\n1 0:1\n\n", [([1], {0: 1}), ([], {})], (5, 9)),
    "an empty last line that is not counted": ("1 5 9\n1 0:1\n\n", [([1], {0: 1})], (5, 9)),
    "a blank line is a document": ("1 5 9\n \n", [([], {})], (5, 9)),
    "labels and no features": ("1 5 9\n4\n", [([4], {})], (5, 9)),
    "labels count once and are sorted": ("1 5 9\n7,1,7,1 0:1\n", [([1, 7], {0: 1})], (5, 9)),
    "features are added up and sorted": ("1 5 9\n1 3:0.25 1:1 3:0.5 0:2\n", [([1], {0: 2, 1: 1, 3: 0.75})], (5, 9)),
    "sums of zero are dropped": ("1 5 9\n1 3:0.5 2:1 3:-0.5\n", [([1], {2: 1})], (5, 9)),
    "zeros are dropped": ("1 5 9\n1 0:0 1:-0.0 2:1e-60 3:1\n", [([1], {3: 1})], (5, 9)),
    "carriage returns": ("2 5 9\r\n1 0:1\r\n\r\n", [([1], {0: 1}), ([], {})], (5, 9)),
    "more blanks": ("1 5 9\n1,2  0:1 \t 1:1 \n", [([1, 2], {0: 1, 1: 1})], (5, 9)),
    "leading zeros": ("1 5 9\n07 003:1\n", [([7], {3: 1})], (5, 9)),
    "a header with blanks around": (" 1\t5  9 \n1 0:1\n", [([1], {0: 1})], (5, 9)),
    "no header": ("1,8 0:1 4:0.5\n3 2:1\n", [([1, 8], {0: 1, 4: 0.5}), ([3], {2: 1})], (5, 9)),
    "no header, an empty line within": ("1 0:1\n\n2 1:1\n", [([1], {0: 1}), ([], {}), ([2], {1: 1})], (2, 3)),
    "no header, an empty last line": ("1 0:1\n\n", [([1], {0: 1})], (1, 2)),
    "no header, two empty last lines": ("1 0:1\n\n\n", [([1], {0: 1}), ([], {})], (1, 2)),
    "no header, a carriage return alone at the end": ("1 0:1\n\r\n", [([1], {0: 1})], (1, 2)),
    "no header, zeros still name their column": ("1 0:1 6:0\n", [([1], {0: 1})], (7, 2)),
    "no documents": ("0 5 9\n", [], (5, 9)),
    "a byte order mark": ("\ufeff1 5 9\n1 0:1\n", [([1], {0: 1})], (5, 9)),
    "the largest index": ("2147483646:1\n", [([], {2147483646: 1})], (2**31 - 1, 0)),
    "the largest value": ("0:3.4028235e38\n", [([], {0: np.float32(3.4028235e38)})], (1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules(read, name):
    content, rows, (n_features, n_labels) = RULES[name]
    dataset = read(content)
    assert rows_of(dataset) == rows
    assert dataset.features.shape == (len(rows), n_features)
    assert dataset.labels.shape == (len(rows), n_labels)
    assert dataset.features.dtype == dataset.labels.dtype == np.float32
    assert dataset.features.indices.dtype == dataset.labels.indices.dtype == np.int32
    assert (dataset.labels.data == 1).all()
    assert dataset.label_names == [str(label) for label in range(n_labels)]


def test_a_header_can_be_ignored(read):
    dataset = read("7 2 2\n1,4 6:1\n2 0:1\n\n", IGNORE)
    assert rows_of(dataset) == [([1, 4], {6: 1}), ([2], {0: 1})]
    assert (dataset.features.shape, dataset.labels.shape) == ((2, 7), (2, 5))


ERRORS = {
    "too few documents": ("3 5 9\n1 0:1\n2 0:1\n", 1, "the header says 3 documents and the file has 2; .*header=ignore"),
    "too many documents": ("1 5 9\n1 0:1\n2 0:1\n", 1, "says 1 documents and the file has 2; .*header=ignore"),
    "two empty lines too many": ("1 5 9\n1 0:1\n\n\n", 1, "says 1 documents and the file has 3"),
    "a feature outside": ("2 5 9\n1 0:1\n2 0:1 5:1\n", 3, "feature '5', but the header says 5 features.*header=ignore"),
    "a zero outside": ("1 5 9\n1 7:0\n", 2, "feature '7', but the header says 5 features"),
    "a label outside": ("2 5 9\n1 0:1\n2,9 0:1\n", 3, "label '9', but the header says 9 labels.*header=ignore"),
    "a label that is a word": ("1 5 9\ncat 0:1\n", 2, "'cat' is not a list of labels"),
    "a label with a value": ("1 5 9\n1,2:0.5 0:1\n", 2, "'2:0.5' is not a list of labels"),
    "a negative label": ("1 5 9\n-1 0:1\n", 2, "'-1' is not"),
    "a label missing": ("1 5 9\n1,,2 0:1\n", 2, "',2' is not"),
    "a comma at the end": ("1 5 9\n1, 0:1\n", 2, "is not a list of labels"),
    "a label of a fraction": ("1 5 9\n1.5 0:1\n", 2, "'1.5' is not"),
    "a feature without a value": ("1 5 9\n1 3\n", 2, "'3' is not a feature; features are written column:value"),
    "a feature that is a word": ("1 5 9\n1 cat:1\n", 2, "'cat:1' is not a feature"),
    "a negative feature": ("1 5 9\n1 -3:1\n", 2, "'-3:1' is not a feature"),
    "a value missing": ("1 5 9\n1 3: 4:1\n", 2, "the value of '3:' is not a finite decimal number"),
    "a column missing": ("1 5 9\n1 :3\n", 2, "':3' is not a feature"),
    "nan": ("1 5 9\n1 3:nan\n", 2, "the value of '3:nan'"),
    "inf": ("1 5 9\n1 3:-inf\n", 2, "the value of '3:-inf'"),
    "beyond float32": ("1 5 9\n1 3:3.5e38\n", 2, "the value of '3:3.5e38'"),
    "far beyond float32": ("1 5 9\n1 3:1e999999999999\n", 2, "the value of"),
    "words behind a value": ("1 5 9\n1 3:1x\n", 2, "the value of '3:1x'"),
    "a sum beyond float32": ("2 5 9\n1 0:1\n1 3:3e38 3:3e38\n", 3, "does not fit a float32"),
    "an index beyond 32 bits": ("1 2147483647:1\n", 1, "'2147483647' is too large; at most 2147483646"),
    "a label beyond 32 bits": ("99999999999999999999999999 3:1\n", 1, "'99999999999999999999999999' is too large"),
    "a header beyond 32 bits": ("1 2147483648 3\n0 0:1\n", 1, "the header says 2,147,483,648 features"),
    "a header beyond everything": (f"1 {'9' * 150} 3\n0 0:1\n", 1, "the header says"),
    "a carriage return within": ("1 5 9\n1 0:1\r 1:1\n", 2, "the value of '0:1'"),
    "a zero byte": ("1 5 9\n1 0:1\0\n", 2, "the value of"),
    "a second header": ("2 5 9\n2 5 9\n1 0:1\n", 2, "'5' is not a feature"),
    "a long word is cut": (f"1 5 9\n1 {'x' * 500}\n", 2, "'x{40}\\.\\.\\.'"),
    "not UTF-8": (b"1 5 9\n1 \xff:1\n", 2, "is not a feature"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_file_and_line(read, name):
    content, line, message = ERRORS[name]
    with pytest.raises(DataError, match=message) as caught:
        read(content)
    assert re.search(rf"data\.txt:{line}: ", str(caught.value))
    assert caught.value.line == line


def test_an_empty_file(read):
    with pytest.raises(DataError, match=r"data\.txt: the file is empty"):
        read("")


def test_more_labels_than_can_be_named(read):
    with pytest.raises(DataError, match="label 2,147,483,646 is too large; at most"):
        read("2147483646 0:1\n")
    with pytest.raises(DataError, match=r":1: the header says 2,000,000,000 labels; at most .* header=ignore"):
        read("1 1 2000000000\n0 0:1\n")
    assert rows_of(read("1 1 2000000000\n0 0:1\n", IGNORE)) == [([0], {0: 1})]


def test_the_line_is_right_in_later_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(xc, "READ_BYTES", 500)
    path = tmp_path / "train.txt"
    lines = [f"{n % 9} {n % 5}:0.5" for n in range(1000)]
    path.write_text("1000 5 9\n" + "\n".join(lines))
    dataset = xc.read(path, CHECK)
    assert rows_of(dataset.take(slice(990, 1000))) == [([n % 9], {n % 5: 0.5}) for n in range(990, 1000)]
    for place in (0, 400, 998):
        broken = [*lines[:place], "1 0:x", *lines[place + 1 :]]
        path.write_text("1000 5 9\n" + "\n".join(broken))
        with pytest.raises(DataError, match=f":{place + 2}: ") as caught:
            xc.read(path, CHECK)
        assert caught.tb is not None
    assert not [thread for thread in threading.enumerate() if thread.name == "labelwise-reader"]


@st.composite
def datasets(draw, least_labels=0):
    """Documents with any float32 features and any labels; the last columns may be empty."""
    n, n_features, n_labels = draw(st.integers(0, 6)), draw(st.integers(0, 12)), draw(st.integers(least_labels, 12))
    values = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda value: value != 0)

    def matrix(columns, value):
        rows = [
            draw(st.dictionaries(st.integers(0, columns - 1), value, max_size=6)) if columns else {} for _ in range(n)
        ]
        dense = np.zeros((n, columns), np.float32)
        for row, entries in enumerate(rows):
            dense[row, list(entries)] = list(entries.values())
        return sparse.csr_array(dense)

    return Dataset(matrix(n_labels, st.just(1)), features=matrix(n_features, values))


@given(datasets(), st.sampled_from(["a.txt", "b.txt.gz", "c.txt.xz"]))
@settings(max_examples=50)
def test_what_is_written_is_read_back(tmp_path_factory, dataset, name):
    path = tmp_path_factory.mktemp("xc") / name
    xc.write(dataset, path)
    assert xc.recognises(path)
    found = xc.read(path, CHECK)
    assert same(found.features, dataset.features)
    assert same(found.labels, dataset.labels)
    assert found.label_names == dataset.label_names


def random_dataset(n, seed=0):
    rng = np.random.default_rng(seed)

    def matrix(columns, density):
        made = sparse.random_array((n, columns), density=density, rng=rng, dtype=np.float32, format="csr")
        made.sort_indices()
        return made

    labels = matrix(300, 0.02)
    labels.data[:] = 1
    return Dataset(labels, features=matrix(2000, 0.02))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_larger_file_in_many_blocks(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(xc, "READ_BYTES", 20_000)
    monkeypatch.setattr(sparse_rows, "WRITE_BYTES", 50_000)
    dataset = random_dataset(3000)
    path = tmp_path / "train.txt.gz"
    with using_threads(threads):
        xc.write(dataset, path)
        found = xc.read(path, CHECK)
    assert same(found.features, dataset.features)
    assert same(found.labels, dataset.labels)


def test_sklearn_reads_the_same(tmp_path):
    path, body = tmp_path / "train.txt", tmp_path / "body.txt"
    dataset = random_dataset(200)
    xc.write(dataset, path)
    body.write_bytes(path.read_bytes().partition(b"\n")[2])
    features, labels = load_svmlight_file(
        str(body), n_features=2000, multilabel=True, zero_based=True, dtype=np.float32
    )
    found = xc.read(path, CHECK)
    assert same(sparse.csr_array(features), found.features)
    assert [sorted(map(int, row)) for row in labels] == [found.labels[[i]].indices.tolist() for i in range(200)]


def test_dense_features_are_written_too(tmp_path):
    dataset = Dataset(np.eye(2, 3), features=np.array([[0, 1.5], [0, 0]]))
    xc.write(dataset, tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "2 2 3\n0 1:1.5\n1\n"


def test_writing_needs_features(tmp_path):
    with pytest.raises(DataError, match="the format xc needs features"):
        xc.write(Dataset(np.eye(1), texts=["one"]), tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []


RECOGNISED = {
    "2 5 9\n1 0:1\n2 3:4\n": True,
    "2 5 9\r\n1 0:1\r\n 3:4\r\n": True,
    "0 5 9\n": True,
    "1,2 3:0.5 4:1e-3\n": True,
    "1 2:3": True,
    "": False,
    "\n\n": False,
    "1\n2\n3\n": False,
    "1,2 some text: here\n": False,
    "a b c\n": False,
    "2 5 9\nsome text\n": False,
    "1 | 2:3\n": False,
    "+1 1:2\n": False,
    '{"text": 1}\n': False,
}


@pytest.mark.parametrize("content", RECOGNISED)
def test_recognises(tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    assert xc.recognises(path) is RECOGNISED[content]


def test_recognises_a_first_line_longer_than_the_look(tmp_path):
    path = tmp_path / "file"
    path.write_text("1 " + " ".join(f"{n}:0.5" for n in range(30_000)))
    assert xc.recognises(path)
    path.write_text("1 5 9\n" + "1 " + " ".join(f"{n}:0.5" for n in range(30_000)))
    assert xc.recognises(path)


def test_parts(tmp_path):
    for name in ("eurlex_train.txt", "tst.txt.gz", "valid.txt", "train_notes.md"):
        content = b"1 5 9\n1 0:1\n" if "notes" not in name else b"# notes\n"
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = xc.parts(tmp_path)
    assert {split: path.name for split, path in found.items()} == {
        "train": "eurlex_train.txt",
        "valid": "valid.txt",
        "test": "tst.txt.gz",
    }
    assert xc.parts(tmp_path / "missing") == {}
    assert xc.recognises(tmp_path) is False


PIECES = [b"1", b"0", b"9", b":", b",", b" ", b"\n", b"\r\n", b"\r", b".", b"-", b"e", b"\t", b"\0", b"\xff", b"2 5 9\n", b"1:0.5", b"2147483647", b"nan"]  # fmt: skip


def test_strange_bytes_give_a_dataset_or_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(xc, "MAX_LABELS", 10_000)
    rng = np.random.default_rng(0)
    path = tmp_path / "strange.txt"
    sound = b"2 5 9\n1,8 0:1 4:0.5\n3 2:-1e-2\n"
    outcomes = {"fine": 0, "error": 0}
    for turn in range(2000):
        if turn % 3 == 0:
            content = bytearray(b"".join(PIECES[i] for i in rng.integers(0, len(PIECES), rng.integers(0, 25))))
        else:
            content = bytearray(sound)
            for _ in range(rng.integers(1, 4)):
                place = int(rng.integers(0, len(content)))
                content[place : place + int(rng.integers(0, 3))] = PIECES[rng.integers(0, len(PIECES))]
        path.write_bytes(content)
        assert xc.recognises(path) in (True, False)
        try:
            dataset = xc.read(path, (CHECK, IGNORE)[turn % 2])
        except (DataError, ConfigError) as error:
            assert "strange.txt" in str(error)
            outcomes["error"] += 1
            continue
        for matrix in (dataset.features, dataset.labels):
            matrix.check_format(full_check=True)
            assert sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), matrix.shape).has_canonical_format
            assert (matrix.data != 0).all()
            assert np.isfinite(matrix.data).all()
        outcomes["fine"] += 1
    assert min(outcomes.values()) > 100, outcomes
