"""The table of labels and its file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.per_label import LabelRow, label_table, write_label_table
from labelwise.strings import Strings
from labelwise.topk import TopK
from metrics.brute_force import cases


@given(cases())
def test_the_table_counts_what_is_there(case):
    k = max(1, case.k - 1)
    table = label_table(case.top, case.matrix, train=np.array(case.train), k=k)
    assert len(table) == case.n_labels
    for label, row in enumerate(table):
        predicted = {document for document, labels in enumerate(case.lists(k)) if label in labels}
        true = {document for document, labels in enumerate(case.truth) if label in labels}
        right = len(predicted & true)
        assert row == LabelRow(
            label=str(label),
            text=None,
            train=case.train[label],
            test=len(true),
            predicted=len(predicted),
            correct=right,
            precision=right / len(predicted) if predicted else 0.0,
            recall=right / len(true) if true else 0.0,
            f1=2 * right / (len(predicted) + len(true)) if predicted or true else 0.0,
        )


def named() -> tuple[TopK, Dataset]:
    names = ["C1", "C2"]
    top = TopK(np.array([[0, 1], [1, 0]]), np.array([[0.9, 0.1]] * 2, np.float32), Strings.of(names))
    labels = sparse.csr_array(np.array([[1, 0, 1], [0, 1, 0]]))
    texts = ["a\ttab and\r\na line", "häuser", "new one"]
    return top, Dataset(labels, Strings.of(["C1", "C2", "C3"]), texts=["x", "y"], label_texts=texts)


def test_the_file_has_one_line_a_label(tmp_path):
    top, truth = named()
    path = tmp_path / "labels.tsv"
    write_label_table(path, top, truth, train=np.array([7, 3]), k=1)
    assert path.read_text(encoding="utf-8") == (
        "label\ttext\ttrain\ttest\tpredicted\tcorrect\tprecision\trecall\tf1\n"
        "C1\ta tab and a line\t7\t1\t1\t1\t1.0000\t1.0000\t1.0000\n"
        "C2\thäuser\t3\t1\t1\t1\t1.0000\t1.0000\t1.0000\n"
        "C3\tnew one\t0\t1\t0\t0\t0.0000\t0.0000\t0.0000\n"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["labels.tsv"]


def test_what_is_not_known_is_left_empty(tmp_path):
    path = tmp_path / "labels.tsv"
    top = TopK(np.array([[0]]), np.ones((1, 1), np.float32))
    write_label_table(path, top, [[0]], k=1)
    assert path.read_text().splitlines()[1] == "0\t\t\t1\t1\t1\t1.0000\t1.0000\t1.0000"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    top, truth = named()
    path = tmp_path / "labels.tsv"
    path.write_text("before")
    broken = TopK(np.array([[0, 0], [1, 0]]), top.scores, top.label_names)
    with pytest.raises(DataError, match="predicted twice"):
        write_label_table(path, broken, truth, k=1)
    assert path.read_text() == "before"
    write_label_table(path, top, truth, k=1)
    assert path.read_text(encoding="utf-8").startswith("label\t")
    with pytest.raises(DataError, match="cannot be written"):
        write_label_table(tmp_path / "no folder" / "labels.tsv", top, truth, k=1)
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write_label_table(tmp_path / "taken", top, truth, k=1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["labels.tsv", "taken"]


@pytest.mark.parametrize(("k", "message"), [(3, "there are 2; lower k"), (0, "from 1 up"), (1.5, "from 1 up")])
def test_faulty_k_is_refused(k, message):
    top, truth = named()
    with pytest.raises(ConfigError, match=message):
        label_table(top, truth, k=k)
