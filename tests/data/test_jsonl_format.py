"""`jsonl`: an object a line."""

from __future__ import annotations

import numpy as np
import pytest
from data_cases import plain, put

from labelwise.data.options import ReadOptions
from labelwise.data.read import read
from labelwise.errors import DataError


def jsonl(folder, *lines):
    return put(folder / "a.jsonl", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ('["x", "y", "x"]', {"x": 1, "y": 1}),
        ('[3, "x", 1.5]', {"3": 1, "x": 1, "1.5": 1}),
        ('[3, "3"]', {"3": 1}),
        ('"two words"', {"two words": 1}),
        ("7", {"7": 1}),
        ('{"x": 0.5, "y": 2, "z": 0}', {"x": 0.5, "y": 2}),
        ("[]", {}), ("{}", {}), ("null", {}), ('""', {}), ('[""]', {"": 1}),
    ],
)  # fmt: skip
def test_the_ways_to_write_labels(tmp_path, labels, expected):
    assert plain(read(jsonl(tmp_path, f'{{"text": "a", "labels": {labels}}}'))) == [expected]


def test_documents_without_the_field_have_no_labels_and_other_fields_are_ignored(tmp_path):
    found = read(jsonl(tmp_path, '{"text": "a", "more": [1]}', "", "  ", '{"text": "", "labels": ["x"], "z": {}}'))
    assert plain(found) == [{}, {"x": 1}]
    assert list(found.texts) == ["a", ""]


def test_ids_paths_and_several_text_fields(tmp_path):
    path = jsonl(
        tmp_path,
        '{"nr": 7, "title": "A", "body": "b c", "image": "a/b.png", "tags": "x"}',
        '{"nr": "é", "title": "T", "image": "c.png", "tags": ["y"]}',
    )
    options = ReadOptions(text_column="title+body", label_column="tags", id_column="nr", path_column="image")
    found = read(path, options=options)
    assert list(found.texts) == ["A b c", "T"]
    assert list(found.ids) == ["7", "é"]
    assert list(found.paths) == ["a/b.png", "c.png"]
    assert plain(found) == [{"x": 1}, {"y": 1}]


def test_sparse_features_need_no_text(tmp_path):
    found = read(jsonl(tmp_path, '{"features": {"3": 0.5, "0": -1}, "labels": []}', '{"features": {}}'))
    np.testing.assert_array_equal(found.features.toarray(), [[-1, 0, 0, 0.5], [0, 0, 0, 0]])
    assert found.texts is None


def test_dense_features(tmp_path):
    found = read(
        jsonl(tmp_path, '{"text": "a", "features": [1, 2.5], "labels": 1}', '{"text": "b", "features": [0, 3]}')
    )
    np.testing.assert_array_equal(found.features, [[1, 2.5], [0, 3]])


def test_a_separator_cuts_labels_in_one_string(tmp_path):
    path = jsonl(tmp_path, '{"text": "a", "labels": "x; y;;x"}')
    assert plain(read(path, options=ReadOptions(label_separator=";"))) == [{"x": 1, "y": 1}]
    assert plain(read(path)) == [{"x; y;;x": 1}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ('{"text": "a"} x', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"text": NaN}', "NaN is not a JSON number"),
        ('{"text": ' + "9" * 5000 + "}", "not valid JSON|must be a string"),
        ('["a"]', r"one JSON object .* per line is needed, got \['a'\]"),
        ("3", "one JSON object .* per line is needed, got 3"),
        ('{"text": 3}', "'text' must be a string, got 3"),
        ('{"text": "\\ud800"}', "'text' cannot be written as UTF-8"),
        ('{"text": "a", "labels": [true]}', "'labels' contains True; a label is a string or a number"),
        ('{"text": "a", "labels": [["x"]]}', "'labels' contains"),
        ('{"text": "a", "labels": [null]}', "'labels' contains None"),
        ('{"text": "a", "labels": ["\\udfff"]}', "'labels' cannot be written as UTF-8"),
        ('{"text": "a", "labels": {"x": "y"}}', "'labels' needs finite numbers, got 'y'"),
        ('{"text": "a", "labels": {"x": 1e39}}', "'labels' needs finite numbers"),
        ('{"text": "a", "labels": {"x": true}}', "'labels' needs finite numbers"),
        ('{"text": "a", "id": 3}', r"there is a field 'id', which the first document \(line 1\) does not have"),
        ('{"path": "a"}', "there is no field 'text', but the first document"),
        ('{"text": "a", "features": {"1": 1}}', "there is a field 'features', which the first"),
        ('{"text": null}', "the field 'text' is null, but the first document"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_field(tmp_path, line, message):
    with pytest.raises(DataError, match=rf"a\.jsonl:3: .*({message})"):
        read(jsonl(tmp_path, '{"text": "fine", "labels": []}', "", line))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("3", "must be a mapping"), ('{"a": 1}', "has the column 'a'"), ('{"-1": 1}', "has the column '-1'"),
        ('{"2147483648": 1}', "has the column"), ('{"٣": 1}', "has the column"), ('{"1": "x"}', "finite numbers"),
    ],
)  # fmt: skip
def test_features_of_a_wrong_kind(tmp_path, features, message):
    with pytest.raises(DataError, match=rf":1: the field 'features' .*{message}"):
        read(jsonl(tmp_path, f'{{"text": "a", "features": {features}, "labels": 1}}'))


def test_dense_features_of_different_lengths(tmp_path):
    with pytest.raises(DataError, match=r":2: the field 'features' has 1 values, but 2 in the first"):
        read(jsonl(tmp_path, '{"features": [1, 2], "labels": 1}', '{"features": [1]}'))
    with pytest.raises(DataError, match=r":2: the field 'features' must be a list"):
        read(jsonl(tmp_path, '{"features": [1, 2], "labels": 1}', '{"features": {}}'))


def test_a_document_with_nothing_is_an_error_that_lists_the_fields(tmp_path):
    with pytest.raises(DataError, match=r"no field 'text' among title, labels; set the option text_column"):
        read(jsonl(tmp_path, '{"title": "a", "labels": []}'))


def test_no_labels_at_all_are_an_error_unless_told_so(tmp_path):
    path = jsonl(tmp_path, '{"text": "a", "tags": ["x"]}')
    with pytest.raises(DataError, match="no document has the field 'labels'; the first one has text, tags"):
        read(path)
    assert plain(read(path, options=ReadOptions(label_column=""))) == [{}]
