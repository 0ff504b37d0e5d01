"""Damaged and hostile folders of other toolkits: an error of ours that names the file, never anything else."""

import json
import random
import struct

import numpy as np
import pytest
from scipy import sparse

from cli.commands import labelwise
from fuzz.mutations import broken
from interop.foreign_folders import cbor, planted_levels, uneven_tree, write_omikuji, write_pecos
from labelwise.errors import DataError, LabelwiseError
from labelwise.interop.models import import_model, read_foreign_model
from labelwise.interop.omikuji import read_cbor

CASES = 40


@pytest.fixture
def pecos(tmp_path):
    write_pecos(tmp_path / "pecos", planted_levels(1))
    return tmp_path / "pecos"


@pytest.fixture
def omikuji(tmp_path):
    write_omikuji(tmp_path / "omikuji", [uneven_tree(1, list(range(12)))])
    return tmp_path / "omikuji"


def edit_json(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("ranker/param.json", {"depth": "three"}, "`depth`"),
        ("ranker/param.json", {"depth": 4}, "3.model/param.json"),
        ("ranker/param.json", {"is_mmap": True}, "memory-mapping"),
        ("ranker/1.model/param.json", {"bias": None}, "`bias`"),
        ("ranker/1.model/param.json", {"bias": -1}, "do not match"),
        ("ranker/1.model/param.json", {"pred_kwargs": {"post_processor": "l9-hinge", "only_topk": 3}}, "l9-hinge"),
        ("ranker/1.model/param.json", {"pred_kwargs": {"post_processor": "noop", "only_topk": 0}}, "`only_topk`"),
    ],
)
def test_parameters_of_pecos(pecos, file, changes, message):
    edit_json(pecos / file, **changes)
    with pytest.raises(LabelwiseError, match=message):
        read_foreign_model(pecos)


def matrix(entries, shape):
    rows, columns, values = zip(*entries, strict=True)
    return sparse.csc_matrix((np.array(values, np.float32), (rows, columns)), shape=shape)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("W.npz", matrix([(0, 0, np.nan)], (31, 7)), "NaN"),
        ("W.npz", matrix([(0, 0, 1e30)], (31, 7)), "too large"),
        ("W.npz", matrix([(0, 0, 1)], (31, 6)), "C.npz has 7 nodes"),
        ("W.npz", matrix([(0, 0, 1)], (30, 7)), "do not match"),
        ("W.npz", matrix([(0, 0, 1)], (1 << 30, 7)), "can be imported"),
        ("W.npz", matrix([(0, 0, 1)], (31, 7)).tocsr(), "format csc"),
        ("C.npz", matrix([(0, 9, 1)], (7, 10)), "parents that are not there"),
        ("C.npz", matrix([(0, 0, 1), (0, 1, 1)], (7, 3)), "more than one parent"),
        ("C.npz", sparse.csc_matrix((7, 3), dtype=np.float32), "no label can be reached"),
    ],
)
def test_matrices_of_pecos(pecos, file, content, message):
    sparse.save_npz(pecos / "ranker" / "1.model" / file, content)
    with pytest.raises(LabelwiseError, match=message):
        read_foreign_model(pecos)


def test_a_pickle_in_a_matrix_is_not_opened(pecos, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "executed").mkdir, ()

    path = pecos / "ranker" / "0.model" / "W.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez(path, **{**arrays, "data": np.array([Trap()], dtype=object)})
    shown = labelwise("import", pecos, "-o", tmp_path / "ours", code=2)
    assert "plain numbers" in shown.err
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "ours").exists()


LEAF = {"weights": {"Dense": {"v": 1, "dim": [31, 1], "data": [0.5] * 31}}, "labels": [0]}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"Leaf": LEAF | {"labels": [0, 1]}}, "a number per feature and child"),
        ({"Leaf": LEAF | {"labels": ["a"]}}, "whole numbers"),
        ({"Leaf": LEAF | {"labels": [1 << 40]}}, "labels"),
        ({"Leaf": LEAF | {"labels": [1 << 27]}}, "1 of 134,217,729 labels"),
        ({"Leaf": LEAF | {"weights": {"Odd": {}}}}, "neither sparse nor dense"),
        ({"Twig": LEAF}, "neither a branch nor a leaf"),
        ({"Branch": {"weights": LEAF["weights"], "children": []}}, "neither a branch nor a leaf"),
        ({"Leaf": LEAF | {"weights": {"Dense": {"v": 1, "dim": [31, 1], "data": [float("inf")] * 31}}}}, "infinite"),
        (7, "neither a branch nor a leaf"),
    ],
)
def test_trees_of_omikuji(omikuji, tree, message):
    (omikuji / "tree0.cbor").write_bytes(cbor(tree))
    with pytest.raises(LabelwiseError, match=message):
        read_foreign_model(omikuji)


@pytest.mark.parametrize(
    "change",
    [
        {"indptr": [0, 1, 3]},
        {"outer_inds": [9, 5]},
        {"outer_inds": [5, 31]},
        {"inner_inds": [0, 2]},
        {"outer_dim": 30},
        {"outer_dim": [31, 31]},
        {"data": [0.25]},
    ],
)
def test_sparse_weights_of_omikuji(omikuji, change):
    stored = {"outer_dim": 31, "inner_dim": 2, "indptr": [0, 1, 2], "outer_inds": [5, 9], "inner_inds": [0, 1]}
    for damaged in (False, True):
        weights = stored | {"data": [0.25, 0.5]} | (change if damaged else {})
        (omikuji / "tree0.cbor").write_bytes(cbor({"Leaf": {"weights": {"Sparse": weights}, "labels": [0, 1]}}))
        if damaged:
            with pytest.raises(DataError, match=r"tree0\.cbor: the sparse weights of a node are damaged"):
                read_foreign_model(omikuji)
        else:
            assert read_foreign_model(omikuji).n_labels == 2


def test_settings_of_omikuji(omikuji):
    for changes in ({"n_features": 1 << 40}, {"n_features": "many"}, {"classifier_loss_type": "Square"}):
        content = (omikuji / "settings.json").read_text()
        edit_json(omikuji / "settings.json", **changes)
        with pytest.raises(DataError, match=r"settings\.json"):
            read_foreign_model(omikuji)
        (omikuji / "settings.json").write_text(content)


def test_a_deep_tree_of_omikuji_is_refused(omikuji):
    branch = b"\xa1" + cbor("Branch") + b"\xa2" + cbor("weights") + cbor(LEAF["weights"]) + cbor("children") + b"\x81"
    (omikuji / "tree0.cbor").write_bytes(150 * branch + cbor({"Leaf": LEAF}))
    with pytest.raises(DataError, match="more than 128 levels"):
        read_foreign_model(omikuji)
    (omikuji / "tree0.cbor").write_bytes(b"\x81" * 100_000)
    with pytest.raises(DataError, match="nested"):
        read_foreign_model(omikuji)


@pytest.mark.parametrize("kind", ["pecos", "omikuji"])
def test_broken_files(request, kind):
    """Whatever happens to a file, the answer is a model that predicts or one of our errors."""
    folder = request.getfixturevalue(kind)
    rng = random.Random(3)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    read = 0
    for _ in range(CASES):
        path = rng.choice(files)
        content = path.read_bytes()
        path.write_bytes(broken(content, rng))
        try:
            model = import_model(read_foreign_model(folder))
            model.predict(sparse.csr_array((2, model.n_features_in_), dtype=np.float32), k=3)
            read += 1
        except LabelwiseError as error:
            assert str(folder) in str(error), error
        finally:
            path.write_bytes(content)
    assert 0 < read < CASES


# --- CBOR ---


@pytest.mark.parametrize(
    ("content", "value"),
    [  # examples of RFC 8949, appendix A
        ("00", 0),
        ("1819", 25),
        ("1a000f4240", 1_000_000),
        ("3903e7", -1000),
        ("f90000", 0.0),
        ("f93c00", 1.0),
        ("f97bff", 65504.0),
        ("f90001", 5.960464477539063e-8),
        ("f90400", 0.00006103515625),
        ("f9c400", -4.0),
        ("fa47c35000", 100000.0),
        ("fa7f7fffff", 3.4028234663852886e38),
        ("fbc010666666666666", -4.1),
        ("f97c00", float("inf")),
        ("fa7f800000", float("inf")),
        ("f4", False),
        ("f6", None),
        ("62c3bc", "ü"),
        ("80", []),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
    ],
)
def test_values(tmp_path, content, value):
    (tmp_path / "item").write_bytes(bytes.fromhex(content))
    found = read_cbor(tmp_path / "item")
    if isinstance(found, dict):
        found = {key: item.tolist() if isinstance(item, np.ndarray) else item for key, item in found.items()}
    assert found == value
    assert type(found) is type(value)


def test_numbers_of_all_widths(tmp_path):
    rng = np.random.default_rng(0)
    floats = np.concatenate([rng.normal(0, 1, 50), 10.0 ** rng.integers(-30, 30, 50), [0, 0.5, -2]]).astype(np.float32)
    encoded = b"".join(b"\xfa" + struct.pack(">f", value) for value in floats)
    (tmp_path / "floats").write_bytes(b"\x98" + bytes([len(floats)]) + encoded)
    np.testing.assert_array_equal(read_cbor(tmp_path / "floats").astype(np.float32), floats)
    integers = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53]
    (tmp_path / "integers").write_bytes(cbor(integers))
    assert read_cbor(tmp_path / "integers").tolist() == integers


@pytest.mark.parametrize(
    "content",
    ["", "18", "9bffffffffffffffff", "7affffffff", "62ff", "8201", "9f01ff", "c000", "43010203", "a10101", "0001",
     "a261610161610 2".replace(" ", ""), "8201f6", "1bffffffffffffffff"],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path, content):
    (tmp_path / "item").write_bytes(bytes.fromhex(content))
    with pytest.raises(DataError, match="item: not a CBOR file"):
        read_cbor(tmp_path / "item")
