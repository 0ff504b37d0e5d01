"""Vowpal Wabbit's lines: each rule of the format, each error, and what is written is read back."""

import gzip
import logging
import re

import numpy as np
import pytest
from data_cases import reader_of_content, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.utils import murmurhash3_32

import labelwise as lw
from cli.commands import labelwise as command
from labelwise.data.csr import sorted_label_names
from labelwise.data.dataset import Dataset
from labelwise.data.formats import vowpal
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError, DataError
from labelwise.runtime.threads import using_threads

PLAIN = ReadOptions()


@pytest.fixture
def read(tmp_path):
    return reader_of_content(vowpal.read, tmp_path / "data.vw", PLAIN)


def shown(dataset):
    """Label names and features of each document as plain Python."""
    names = dataset.label_names
    return [([names[label] for label in labels], features) for labels, features in rows_of(dataset)]


RULES = {
    "as ODP is written": ("1234 | 12:0.5 45 99:1\n", [(["1234"], {12: 0.5, 45: 1, 99: 1})], 100),
    "several namespaces": ("3 |a 1 2 |b 7:2\n", [(["3"], {1: 1, 2: 1, 7: 2})], 8),
    "the same column in two namespaces": ("3 |a 1:2 |b 1:0.5\n", [(["3"], {1: 2.5})], 2),
    "the value of a namespace": ("3 |a:2 1:1.5 4 |b 5 |c:-.5 6:3\n", [(["3"], {1: 3, 4: 2, 5: 1, 6: -1.5})], 7),
    "a weight of one": ("3 1 | 1\n4 1.0| 1\n", [(["3"], {1: 1}), (["4"], {1: 1})], 2),
    "a tag": ("3 'second | 1\n3 1 'x|ns 2\n'alone | 3\n", [(["3"], {1: 1}), (["3"], {2: 1}), ([], {3: 1})], 4),
    "a tag without a quote": ("3 1.0 page:7| 1\n3 x|ns 2\n", [(["3"], {1: 1}), (["3"], {2: 1})], 3),
    "no label": ("| 1\n |ns 2\n", [([], {1: 1}), ([], {2: 1})], 3),
    "no features": ("3 |\n4 |ns\n5 | |a |\n", [(["3"], {}), (["4"], {}), (["5"], {})], 0),
    "no blank before the bar": ("3|a 1\n", [(["3"], {1: 1})], 2),
    "several labels": ("3,17,3 | 1\n", [(["3", "17"], {1: 1})], 2),
    "labels that are words": ("cat | 1\n10 | 1\n9 | 1\nÿ | 1\n", [([w], {1: 1}) for w in ("cat", "10", "9", "ÿ")], 2),
    "features in any order": ("3 | 9:1 2:1 9:2 4:0\n", [(["3"], {2: 1, 9: 3})], 10),
    "blank lines are nothing": ("\n3 | 1\n \t\n\r\n4 | 2\n\n", [(["3"], {1: 1}), (["4"], {2: 1})], 3),
    "carriage returns": ("3 | 1:2\r\n4 |\r\n", [(["3"], {1: 2}), (["4"], {})], 2),
    "no last newline": ("3 | 1", [(["3"], {1: 1})], 2),
    "tabs": ("3\t|\t1:2\t3\n", [(["3"], {1: 2, 3: 1})], 4),
    "the largest column": ("3 | 2147483646\n", [(["3"], {2147483646: 1})], 2**31 - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules(read, name):
    content, rows, n_features = RULES[name]
    dataset = read(content)
    assert shown(dataset) == rows
    assert dataset.features.shape == (len(rows), n_features)
    assert dataset.features.dtype == np.float32
    assert (dataset.labels.data == 1).all()


@pytest.mark.parametrize(
    ("labels", "order"), [("10 9 100", ["9", "10", "100"]), ("10 9 b", ["10", "9", "b"]), ("07 1", ["07", "1"])]
)
def test_the_order_of_labels(read, labels, order):
    dataset = read("".join(f"{label} | 1\n" for label in labels.split()))
    assert list(dataset.label_names) == order


def hashed(name, namespace, bits):
    seed = murmurhash3_32(namespace.encode(), positive=True) if namespace else 0
    return murmurhash3_32(name.encode(), seed=seed, positive=True) % 2**bits


def test_names_are_hashed_by_namespace(read):
    dataset = read("cat | price:.23 45 |é size:2 |b:2 size\n", ReadOptions(hash_bits=18))
    wanted = {("price", ""): 0.23, ("45", ""): 1, ("size", "é"): 2, ("size", "b"): 2}
    assert dataset.features.shape == (1, 2**18)
    assert shown(dataset) == [
        (
            ["cat"],
            {
                hashed(*key, 18): float(np.float32(v))
                for key, v in sorted(wanted.items(), key=lambda item: hashed(*item[0], 18))
            },
        )
    ]


def test_features_that_collide_are_added(read):
    names = [f"word{n}" for n in range(40)]
    dataset = read("1 | " + " ".join(f"{name}:0.5" for name in names) + "\n", ReadOptions(hash_bits=3))
    counts = np.bincount([hashed(name, "", 3) for name in names], minlength=8)
    assert np.array_equal(dataset.features.toarray()[0], 0.5 * counts)


ERRORS = {
    "no bar": ("3 | 1\n4 1:2\n", 2, r"the line has no '\|'"),
    "a weight": ("3 | 1\n4 2.5 | 1\n", 2, "'2.5' is at the position of an importance weight, which must be 1"),
    "a weight that is a word": ("4 x | 1\n", 1, "'x' is at the position of an importance weight"),
    "a base": ("4 1 0.5 | 1\n", 1, "'0.5' instead of '.'"),
    "words behind a tag": ("4 'a b | 1\n", 1, "'b' instead of '.'"),
    "a cost-sensitive label": ("4:0.5 | 1\n", 1, "'4:0.5' is not a label"),
    "a label missing": ("4,,5 | 1\n", 1, "'4,,5' is not a label"),
    "a comma at the end": ("4, | 1\n", 1, "'4,' is not a label"),
    "a feature that is a word": ("4 | 1\n4 | price:2\n", 2, "the feature 'price' is not a column number; .*hash_bits=18"),
    "a negative column": ("4 | -1:2\n", 1, "'-1' is not a column number"),
    "a value without a feature": ("4 | :2\n", 1, "':2' is a value without a feature"),
    "a value missing": ("4 | 1: 2\n", 1, "the value of '1:' is not a finite"),
    "nan": ("4 | 1:nan\n", 1, "the value of '1:nan'"),
    "beyond float32": ("4 | 1:1e39\n", 1, "the value of '1:1e39'"),
    "beyond float32 by its namespace": ("4 |a:1e30 1:1e30\n", 1, "the value of '1:1e30'"),
    "a sum beyond float32": ("4 | 1:3e38 1:3e38\n", 1, "does not fit a float32"),
    "a namespace's value": ("4 |a:b 1\n", 1, "the value of the namespace 'a:b' is not a finite"),
    "a column beyond 32 bits": ("4 | 2147483647\n", 1, "the column '2147483647' is too large; at most 2147483646"),
    "not UTF-8": (b"4 | 1\ncaf\xe9 | 1\n", 2, "byte 0xE9 at column 4 is not utf-8; set the option encoding"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_file_and_line(read, name):
    content, line, message = ERRORS[name]
    with pytest.raises(DataError, match=message) as caught:
        read(content)
    assert re.search(rf"data\.vw:{line}: ", str(caught.value))


def test_encodings(read, caplog):
    content = "café | 1\n".encode("latin-1")
    assert shown(read(content, ReadOptions(encoding="latin-1"))) == [(["café"], {1: 1})]
    with caplog.at_level(logging.WARNING):
        assert shown(read(content, ReadOptions(on_bad_bytes="replace"))) == [(["caf\ufffd"], {1: 1})]
    assert "U+FFFD: 1" in caplog.text
    with pytest.raises(ConfigError, match="encoding: 'klingon'"):
        read("", ReadOptions(encoding="klingon"))


label_words = st.text(st.characters(exclude_characters=" \t\r\n,:|", exclude_categories=["Cs"]), min_size=1, max_size=6)


@st.composite
def datasets(draw):
    """Documents in which every label and the last feature are used, as the format lists neither."""
    kind = draw(st.sampled_from([st.integers(0, 10**6).map(str), label_words.filter(lambda w: w[0] not in "'\ufeff")]))
    names = sorted_label_names(draw(st.sets(kind, max_size=6)))
    n = draw(st.integers(1, 6))
    dense = np.zeros((n, len(names)), np.float32)
    for label in range(len(names)):
        dense[draw(st.sets(st.integers(0, n - 1), min_size=1)).pop(), label] = 1
        dense[draw(st.integers(0, n - 1)), label] = 1
    values = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(bool)
    features = np.zeros((n, draw(st.integers(1, 9))), np.float32)
    for row in range(n):
        for column, value in draw(st.dictionaries(st.integers(0, features.shape[1] - 1), values, max_size=5)).items():
            features[row, column] = value
    features[draw(st.integers(0, n - 1)), -1] = 1
    return Dataset(dense, names, features=sparse.csr_array(features))


@given(datasets(), st.sampled_from(["a.vw", "b.vw.gz"]))
@settings(max_examples=50)
def test_what_is_written_is_read_back(tmp_path_factory, dataset, name):
    path = tmp_path_factory.mktemp("vw") / name
    vowpal.write(dataset, path)
    found = vowpal.read(path, PLAIN)
    assert found.label_names == dataset.label_names
    assert shown(found) == shown(dataset)
    assert found.features.shape == dataset.features.shape


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bits", [None, 10])
def test_many_blocks_are_as_one(tmp_path, monkeypatch, threads, bits):
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(50)},w{rng.integers(9)} |{'ab'[n % 2]} "
        + " ".join(f"{c}:{v:.4f}" for c, v in zip(rng.integers(0, 500, 9), rng.random(9), strict=True))
        for n in range(2000)
    ]
    path = tmp_path / "train.vw"
    path.write_text("\n".join(lines))
    options = ReadOptions(hash_bits=bits)
    whole = vowpal.read(path, options)
    monkeypatch.setattr(vowpal, "READ_BYTES", 3000)
    with using_threads(threads):
        found = vowpal.read(path, options)
        path.write_text("\n".join([*lines[:1500], "no bar", *lines[1500:]]))
        with pytest.raises(DataError, match=":1501: "):
            vowpal.read(path, options)
    assert len(whole) == 2000
    assert found.label_names == whole.label_names
    assert (found.labels != whole.labels).nnz == 0
    assert (found.features != whole.features).nnz == 0
    assert len(found.features.data) == len(whole.features.data)


@pytest.mark.parametrize("name", ["two words", "a,b", "a:b", "a|b", "'quoted", "", "line\nend", "return\r"])
def test_labels_that_cannot_be_written(tmp_path, name):
    dataset = Dataset(np.eye(1), [name], features=np.eye(1))
    with pytest.raises(DataError, match="label"):
        vowpal.write(dataset, tmp_path / "a.vw")
    assert list(tmp_path.iterdir()) == []


def test_unused_labels_may_be_called_anything(tmp_path):
    dataset = Dataset(np.array([[1, 0]]), ["a", "not written"], features=np.eye(1))
    vowpal.write(dataset, tmp_path / "a.vw")
    assert (tmp_path / "a.vw").read_text() == "a | 0:1\n"


RECOGNISED = {
    "1234 | 12:0.5 45 99:1\n| 3:1\n": True,
    "cat 1 'tag|ns price:0.5\n": True,
    "17 1 page7| 12:0.5\n18 page8| 3:1\n": True,
    "1,2 |a 3 |b 4:5\n": True,
    "": False,
    "some words | more words here\n": False,
    "word | other words here\n": False,
    "1 3:4\n": False,
    "a|b|c\n1|2|3\n": False,
}


@pytest.mark.parametrize("content", RECOGNISED)
def test_recognises(tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    assert vowpal.recognises(path) is RECOGNISED[content]


def test_parts(tmp_path):
    for name in ("train.vw", "tst.vw.gz", "valid.txt", "notes.txt"):
        (tmp_path / name).write_text("1 | 2:3\n" if "notes" not in name else "notes\n")
    found = {split: path.name for split, path in vowpal.parts(tmp_path).items()}
    assert found == {"train": "train.vw", "valid": "valid.txt", "test": "tst.vw.gz"}
    assert vowpal.recognises(tmp_path) is False


PIECES = [b"1", b"0", b"|", b":", b",", b" ", b"\n", b"\r\n", b"\r", b".", b"-", b"e", b"\t", b"\0", b"\xff", b"1 | ", b"1:0.5", b"'", b"a", "é".encode()]  # fmt: skip


def test_strange_bytes_give_a_dataset_or_an_error(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "strange.vw"
    sound = b"3,4 1 'tag |a:2 0:1 4:0.5 |b 7\nx | 2:-1e-2\n"
    options = [
        PLAIN,
        ReadOptions(hash_bits=5),
        ReadOptions(on_bad_bytes="replace"),
        ReadOptions(encoding="cp1252", hash_bits=30),
    ]
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
        try:
            dataset = vowpal.read(path, options[turn % 4])
        except (DataError, ConfigError) as error:
            assert "strange.vw" in str(error)
            outcomes["error"] += 1
            continue
        for matrix in (dataset.features, dataset.labels):
            matrix.check_format(full_check=True)
            assert sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), matrix.shape).has_canonical_format
            assert (matrix.data != 0).all()
            assert np.isfinite(matrix.data).all()
        outcomes["fine"] += 1
    assert min(outcomes.values()) > 100, outcomes


def single_label_lines(rows, seed):
    """Lines as ODP and ImageNet-22K have them: one label of 1..K, one bare bar; a label's own columns are the heaviest."""
    rng = np.random.default_rng(seed)
    heads = ["{} | ", "{} 1 | ", "{} 1.0 page{}| ", "{} 'page{} | ", "{} |"]
    lines = []
    for row in range(rows):
        label = int(rng.integers(1, 31))
        weights = dict.fromkeys(rng.integers(0, 200, 5).tolist(), 0.25) | {3 * label: 1.5, 3 * label + 1: 1}
        features = " ".join(f"{column}:{value}" for column, value in sorted(weights.items()))
        lines.append(heads[row % 5].format(label, row) + (" " if row % 5 == 4 else "") + features)
    return "\n".join(lines) + "\n"


def test_single_label_lines_from_file_to_report(tmp_path):
    """What MACH's ODP and ImageNet-22K need: read, converted, trained on and predicted for by the commands of a user."""
    data = tmp_path / "odp"
    data.mkdir()
    for split, rows in (("train", 900), ("test", 100)):
        with gzip.open(data / f"{split}.vw.gz", "wt") as file:
            file.write(single_label_lines(rows, len(split)))
    found = lw.read(data, split="train")
    assert list(found.label_names) == [str(label) for label in range(1, 31)]
    assert (np.diff(found.labels.indptr) == 1).all()
    command("data", "convert", data, tmp_path / "native")
    (tmp_path / "run.yml").write_text(
        f"data: {{path: {tmp_path / 'native'}}}\nmodel: {{method: linear_tree}}\nrun: {{folder: {tmp_path / 'run'}}}\n"
    )
    done = command("train", tmp_path / "run.yml")
    assert re.search(r"P@1 +(9\d|100)\.", done.out), done.out
    model = lw.load(tmp_path / "run" / "model")
    test = lw.read(data, split="test")
    best = [model.label_names_[label] for label in model.predict(test, k=1).ids[:, 0]]
    assert np.mean([[name] == test.labels_of(row) for row, name in enumerate(best)]) > 0.9
