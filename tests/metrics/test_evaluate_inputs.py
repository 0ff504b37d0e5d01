"""What evaluate accepts, how it brings label spaces together, what it refuses, and what it returns."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.metrics.evaluate import evaluate
from labelwise.metrics.result import Evaluation
from labelwise.strings import Strings
from labelwise.topk import TopK
from metrics.brute_force import big_case


def top_of(rows, names=None, dtype=np.int32):
    ids = np.array(rows, dtype)
    scores = np.where(ids == -1, -np.inf, -np.arange(ids.shape[1])).astype(np.float32)
    return TopK(ids, scores, None if names is None else Strings.of(names))


def dataset(rows, names, texts=None):
    matrix = np.zeros((len(rows), len(names)))
    for row, labels in enumerate(rows):
        matrix[row, [names.index(label) for label in labels]] = 1
    return Dataset(sparse.csr_array(matrix), Strings.of(names), texts=["x"] * len(rows), label_texts=texts)


def test_every_form_of_truth_gives_the_same():
    case = big_case(1, 60)
    names = [f"label {i}" for i in range(case.n_labels)]
    named = TopK(case.top.ids, case.top.scores, Strings.of(names))
    truths = [
        case.matrix,
        sparse.csc_matrix(case.matrix),
        sparse.coo_array(case.matrix.astype(bool)),
        case.matrix.toarray(),
        [sorted(labels) for labels in case.truth],
        [set(labels) for labels in case.truth],
    ]
    by_name = [[names[label] for label in labels] for labels in case.truth]
    expected = evaluate(case.top, case.matrix).to_dict()
    for truth in truths:
        assert evaluate(case.top, truth).to_dict() == expected
        assert evaluate(named, truth).to_dict() == expected
    assert evaluate(named, by_name).to_dict() == expected
    backwards = dataset(by_name, names[::-1])
    assert evaluate(named, backwards).to_dict() == expected
    assert (
        evaluate(TopK(case.top.ids.astype(np.int64), case.top.scores.astype(float)), case.matrix).to_dict() == expected
    )


def test_labels_are_matched_by_name_and_unseen_ones_are_missed():
    top = top_of([[0, 1], [1, 0]], ["cat", "dog"])
    truth = dataset([["dog"], ["cow", "dog"]], ["cow", "dog", "elk"])
    result = evaluate(top, truth, ["P@1", "R@2", "coverage@2"])
    assert result.values == {"P@1": 0.5, "R@2": 0.75, "coverage@2": 0.5}
    assert result.n_unseen_labels == 1
    assert evaluate(top, [["dog"], ["cow", "dog"]], ["P@1", "R@2", "coverage@2"]) == result


def test_names_that_have_nothing_in_common_are_warned_of(caplog):
    result = evaluate(top_of([[0, 1]], ["cat", "dog"]), dataset([["0"]], ["0", "1"]), ["P@1"])
    assert result["P@1"] == 0.0
    assert "none of the labels of the truth" in caplog.text


def test_training_counts_are_matched_by_name():
    top = top_of([[0], [1]], ["cat", "dog"])
    truth = dataset([["cat"], ["cow", "dog"]], ["cow", "dog", "cat"])
    train = dataset([["dog"]] * 4 + [["cat", "dog"]] + [["yak"]] * 9, ["yak", "dog", "cat"])
    result = evaluate(top, truth, ["PSP@1"], train=train, groups=(2, 5))
    rows = {row.name: (row.n_labels, row.occurrences) for row in result.groups}
    assert rows == {"head": (1, 1), "torso": (0, 0), "tail": (1, 1), "unseen": (1, 1)}
    assert result.n_unseen_labels == 1
    assert result.propensity is not None
    assert result.propensity.n_documents == 14
    same = evaluate(top, truth, ["PSP@1"], train=np.array([1, 5]), train_documents=14, groups=(2, 5))
    assert same == result
    assert evaluate(top, truth, ["PSP@1"], train=np.array([1.0, 5.0, 0.0]), train_documents=14, groups=(2, 5)) == result


def test_training_labels_can_be_a_matrix():
    case = big_case(3, 40)
    counts = np.asarray(case.matrix.sum(0)).astype(int)
    by_matrix = evaluate(case.top, case.matrix, train=case.matrix)
    assert by_matrix == evaluate(case.top, case.matrix, train=counts, train_documents=40)
    assert "PSP@5" in by_matrix.values
    assert "PSP@5" not in evaluate(case.top, case.matrix, train=counts).values


def test_lists_of_ids_span_the_labels_of_the_training_counts():
    result = evaluate(top_of([[1]]), [[1]], ["P@1"], train=np.array([1, 2, 3, 4]), train_documents=9)
    assert sum(row.n_labels for row in result.groups) == 4


def test_defaults_depend_on_what_is_given():
    top = top_of([[0, 1, 2, 3, 4]])
    assert list(evaluate(top, [[0]]).values) == ["P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "R@5"]
    assert list(evaluate(top.head(1), [[0]]).values) == ["P@1"]
    assert list(evaluate(top, [[0]], threshold=-1).values)[-3:] == ["micro-F1", "macro-F1", "example-F1"]
    with_train = evaluate(top, [[0]], train=np.ones(5), train_documents=3)
    assert list(with_train.values)[-3:] == ["PSP@1", "PSP@3", "PSP@5"]


ONE = top_of([[0, 1]])
NAMED = top_of([[0, 1]], ["a", "b"])


@pytest.mark.parametrize(
    ("top", "truth", "options", "message"),
    [
        (ONE, [[0], [1]], {}, "1 documents for 2"),
        (ONE, np.zeros((2, 2)), {}, "1 documents for 2"),
        (top_of(np.zeros((0, 2))), [], {}, "no documents"),
        (np.array([[0, 1]]), [[0]], {}, "must be a TopK"),
        (ONE, "a", {}, "truth must be"),
        (ONE, None, {}, "truth must be"),
        (ONE, ["a"], {}, "document 0 is 'a'"),
        (ONE, [3], {}, "document 0 is 3"),
        (ONE, [["a"]], {}, "set TopK.label_names"),
        (NAMED, [["a", 1]], {}, "mixes names and ids"),
        (NAMED, [[2]], {}, "there are 2 labels"),
        (ONE, [[-1]], {}, "whole numbers from 0"),
        (ONE, [[0.5]], {}, "whole numbers from 0"),
        (NAMED, np.zeros((1, 3)), {}, "3 columns but predictions have 2"),
        (ONE, np.zeros((1, 1)), {}, "document 0, position 2: label id 1 is out of range; there are 1 labels"),
        (top_of([[0, 2]], ["a", "b"]), [["new"]], {}, "label id 2 is out of range; there are 2 labels"),
        (
            top_of([[2**40, 0]], dtype=np.int64),
            np.zeros((1, 2)),
            {},
            "document 0: a label id is out of range",
        ),
        (top_of([[0, 0]]), [[0]], {}, "label id 0 is predicted twice"),
        (TopK(np.array([[0, 1]]), np.array([[0.1, 0.2]], np.float32)), [[0]], {}, "best first"),
        (TopK(np.array([[0, 1]]), np.array([[np.nan, 0.2]], np.float32)), [[0]], {}, "NaN"),
        (TopK(np.array([[-1, 1]]), np.zeros((1, 2), np.float32)), [[0]], {}, "follows an empty position"),
        (TopK(np.array([[0.5, 1]]), np.zeros((1, 2), np.float32)), [[0]], {}, "whole numbers"),
        (TopK(np.array([[np.nan, 1]]), np.zeros((1, 2), np.float32)), [[0]], {}, "whole numbers"),
        (ONE, np.array([[np.inf, 0]]), {}, "NaN or infinity"),
        (ONE, np.zeros((1, 2)), {"train": np.array([1])}, "training counts of 1 labels"),
        (ONE, [[0]], {"train": np.array([1, -1])}, "none of them negative"),
        (ONE, [[0]], {"train": np.array([1, 0.5])}, "whole numbers"),
        (ONE, [[0]], {"train": [np.nan, 1]}, "none of them negative"),
        (ONE, [[0]], {"train": "x"}, "train must be"),
        (ONE, [[0]], {"train": np.array([1, 1]), "train_documents": 0}, "from 1 up"),
        (ONE, [[0]], {"train": np.ones((3, 2)), "train_documents": 4}, "train has 3 documents"),
        (ONE, [[0]], {"metrics": ["P@3"]}, "predict with k=3"),
        (ONE, [[0]], {"metrics": ["macro-F1"]}, "pass threshold="),
        (ONE, [[0]], {"metrics": ["macro-F1"], "threshold": "high"}, "threshold is a score"),
        (ONE, [[0]], {"metrics": ["macro-F1"], "threshold": float("nan")}, "threshold is a score"),
        (ONE, [[0]], {"metrics": []}, "at least one"),
        (top_of(np.zeros((1, 0))), [[0]], {}, r"empty lists \(k = 0\)"),
        (ONE, [[0]], {"propensity": "amazon-607k"}, "Amazon-670K"),
    ],
)
def test_faulty_input_is_refused_with_a_reason(top, truth, options, message):
    with pytest.raises(LabelwiseError, match=message) as caught:
        evaluate(top, truth, **options)
    assert isinstance(caught.value, DataError | ConfigError)


def test_input_is_never_changed():
    case = big_case(9, 50)
    top, truth = case.top, case.matrix
    untidy = sparse.csr_array((truth.data, truth.indices[::1].copy(), truth.indptr), shape=truth.shape)
    for row in range(len(top)):
        here = slice(untidy.indptr[row], untidy.indptr[row + 1])
        untidy.indices[here] = untidy.indices[here][::-1]
    untidy.has_sorted_indices = False
    before = (top.ids.copy(), top.scores.copy(), untidy.indices.copy())
    assert evaluate(top, untidy).values == evaluate(top, truth).values
    for array, kept in zip((top.ids, top.scores, untidy.indices), before, strict=True):
        np.testing.assert_array_equal(array, kept)


def test_an_evaluation_goes_through_json():
    case = big_case(6, 80)
    result = evaluate(case.top, case.matrix, train=np.array(case.train), train_documents=1000, bootstrap=20)
    back = Evaluation.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert back == result
    assert result.to_dict()["propensity"] == {"A": 0.55, "B": 1.5, "N": 1000}
    without = evaluate(case.top, case.matrix)
    assert Evaluation.from_dict(without.to_dict()) == without


@pytest.mark.parametrize("plain", [{}, {"values": {}}, [], {"values": 3, "propensity": None}])
def test_other_dictionaries_are_refused(plain):
    with pytest.raises(DataError, match="not an evaluation"):
        Evaluation.from_dict(plain)


def test_figures_are_found_by_any_spelling_and_shown_in_per_cent():
    result = evaluate(top_of([[0, 1]]), [[0]], ["P@1", "nDCG@2"], bootstrap=5)
    assert result["p@1"] == result["P@1"] == 1.0
    assert "P@1         100.00  [100.00, 100.00]" in str(result)
    assert "1 documents, 0 of them without labels" in str(result)
    with pytest.raises(KeyError):
        result["P@2"]
    with pytest.raises(ConfigError, match="no metric"):
        result["Q@1"]
