import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.errors import DataError
from labelwise.strings import Strings

texts = st.lists(st.text(st.characters(codec="utf-8")))


@given(texts)
def test_behaves_like_a_list_of_str(items):
    strings = Strings.of(items)
    assert list(strings) == items
    assert len(strings) == len(items)
    assert strings == items
    assert [strings[i] for i in range(len(items))] == items
    assert pickle.loads(pickle.dumps(strings)) == items


@given(texts, st.data())
def test_picking_rows_equals_picking_from_the_list(items, data):
    rows = data.draw(st.lists(st.integers(0, len(items) - 1))) if items else []
    strings = Strings.of(items)
    picked = strings[np.array(rows, np.int64)]
    expected = [items[r] for r in rows]
    assert list(picked) == expected
    assert picked.compact() == expected
    assert list(strings[1:]) == items[1:]


@given(texts, texts)
def test_adding_and_comparing(left, right):
    assert Strings.of(left) + right == left + right
    assert (Strings.of(left) == Strings.of(right)) == (left == right)


def test_picking_copies_no_text():
    strings = Strings.of(["one", "two", "three"])
    assert strings[[2, 0]].buffer is strings.buffer


def test_equal_texts_at_other_cuts_differ():
    assert Strings.of(["ab", "c"]) != Strings.of(["a", "bc"])


def test_positions_give_the_first_of_equal_strings():
    assert Strings.of(["b", "a", "b"]).positions == {"b": 0, "a": 1}


@pytest.mark.parametrize("bad", [[1], ["a", None], [b"bytes"]])
def test_other_things_than_strings_are_refused(bad):
    with pytest.raises(DataError, match="string is needed"):
        Strings.of(bad)


def test_lone_surrogates_are_refused():
    with pytest.raises(DataError, match="UTF-8"):
        Strings.of(["\ud800"])
