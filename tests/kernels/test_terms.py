"""Words, terms and their counts against plain Python."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_kernels as reference
from labelwise.io import tensors as pages
from labelwise.kernels import term_rows
from labelwise.kernels import words as kernels
from labelwise.kernels.jit import jit
from labelwise.kernels.term_rows import (
    MAX_DIGITS,
    UNKNOWN,
    look_up,
    write_columns,
    write_rows,
)
from labelwise.kernels.term_table import TermTable, as_bytes
from labelwise.kernels.terms import DONE, NO_PAIRS
from labelwise.kernels.words import CHUNK, MARGIN, NEEDS_PYTHON, folding_table
from labelwise.strings import Strings

fold, split_words, is_one_character, sort_row, merge_equal = (
    jit(function.py_func)
    for function in (
        kernels.fold,
        kernels.split_words,
        kernels.is_one_character,
        term_rows.sort_row,
        term_rows.merge_equal,
    )
)
HALF = np.uint64(32)
# letters that grow or shrink in lower case, digits and letters of several scripts, marks, joiners, astral letters
LETTERS = "aBz09_é Ⱥ\u212aÅẞßDž٣²½Ⅷ中文字́\u200dабВ\U0001d400\U00010400\U0001f600ᲐᎠ 　-'.,\x00\n\t"
NASTY = st.text(st.sampled_from(LETTERS) | st.characters(codec="utf-8", exclude_characters="İΣ"), max_size=30)
TEXTS = st.lists(st.lists(NASTY | st.sampled_from(["the", "of", "x" * 17, "y" * 40, " "]), max_size=40).map("".join))


def words_in_buffer(text, lowercase=True, before="ab ", after=" cd" * 30):
    """The words of a text between others in the buffer."""
    buffer = as_bytes(np.frombuffer((before + text + after).encode(), np.uint8))
    start, size = len(before.encode()), len(text.encode())
    scratch = np.full(2 * size + MARGIN, 7, np.uint8)
    folded = fold(buffer, start, start + size, folding_table(lowercase), int(lowercase), scratch)
    if folded == NEEDS_PYTHON:
        return NEEDS_PYTHON
    edges = np.empty(len(scratch), np.int64)
    runs = split_words(scratch, folded, edges)
    bounds = edges[: 2 * runs].reshape(-1, 2).tolist()
    return [
        scratch[begin:end].tobytes().decode()
        for begin, end in bounds
        if not is_one_character(scratch, begin, end - begin)
    ]


# --- words ----------------------------------------------------------------------------------------------------------


@given(NASTY | st.lists(NASTY, max_size=12).map(" ".join), st.booleans(), st.sampled_from(["", " cd" * 30]))
def test_words_are_those_of_the_regular_expression(text, lowercase, after):
    assert words_in_buffer(text, lowercase, after=after) == reference.words_of(text, lowercase)


@pytest.mark.parametrize("size", [0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 192])
@pytest.mark.parametrize("after", ["", "cd", " " * 64])
def test_words_at_the_edges_of_chunks(size, after):
    for text in (
        "a" * size,
        "a " * (size // 2),
        " " * size + "ab",
        "a" * size + " b cd",
        "é" * size,
        "a" * size + "é é",
    ):
        assert words_in_buffer(text, after=after) == reference.words_of(text, True)


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_is_classed_as_python_does(lowercase):
    table = folding_table(lowercase)
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code).lower() if lowercase else chr(code)
        if len(character) > 1 or (lowercase and chr(code) == "Σ"):
            assert table[code] == NEEDS_PYTHON
        else:
            assert table[code] == (ord(character) if character.isalnum() or character == "_" else 0)
        # the scratch arrays rely on this
        assert len(character.encode()) <= 1.5 * len(chr(code).encode())


def test_lower_case_that_depends_on_neighbours_is_left_to_python():
    for text in ("ΟΔΟΣ", "x" * 100 + "İ", "aΣ"):
        assert words_in_buffer(text) == NEEDS_PYTHON
        assert words_in_buffer(text, lowercase=False) == reference.words_of(text, False)


@given(st.lists(st.binary(max_size=5) | st.just(b" "), max_size=60).map(b"".join), st.booleans())
def test_bytes_that_are_not_text_do_no_harm(data, at_the_end):
    """Invalid UTF-8 must not lead to reads or writes out of bounds."""
    buffer = as_bytes(np.frombuffer(b"ab " + data + b" cd" + (b"" if at_the_end else b"\xe4" * 70), np.uint8))
    scratch, edges = np.empty(2 * len(buffer) + MARGIN, np.uint8), np.empty(len(buffer) + MARGIN, np.int64)
    size = fold(buffer, 0, 6 + len(data), folding_table(False), 0, scratch)
    words = scratch[:size].tobytes().replace(b"\0", b" ").decode(errors="replace")
    assert words.startswith("ab ")
    assert 2 * split_words(scratch, size, edges) <= len(buffer)


def test_chunk_is_what_the_vector_code_says():
    assert CHUNK == 64
    assert MARGIN >= 3 * CHUNK


# --- counting -------------------------------------------------------------------------------------------------------


def learned(table, texts, min_words, lowercase=True):
    """The terms of each text with their counts, through a table."""
    strings = Strings.of(texts)
    pairs = np.empty(sum(map(len, texts)) * table.max_words + 1, np.uint64)
    row_ends = np.empty(len(texts), np.int64)
    status, done, _used = table.learn(strings, lowercase, min_words, pairs, 0, row_ends)
    assert (status, done) == (DONE, len(texts))
    names = list(table.spell(np.arange(len(table))))
    assert len(set(names)) == len(names)
    rows = [pairs[begin:end].tolist() for begin, end in pairwise([0, *row_ends.tolist()])]
    counted = [Counter({names[pair >> 32]: pair & 0xFFFFFFFF for pair in row}) for row in rows]
    assert [len(row) for row in rows] == [len(row) for row in counted]
    return counted


@given(TEXTS, st.sampled_from([(1, 1), (1, 2), (2, 2), (2, 3), (1, 4)]), st.booleans())
def test_counts_are_those_of_a_dictionary(texts, ngrams, lowercase):
    table = TermTable(ngrams[1])
    expected = [Counter(reference.terms_of(reference.words_of(t, lowercase), *ngrams)) for t in texts]
    assert learned(table, texts, ngrams[0], lowercase) == expected
    assert learned(table, texts, ngrams[0], lowercase) == expected  # again, when nothing is new


def test_the_table_grows_in_the_middle_of_a_text():
    words = [f"w{n:x}" * (1 + n % 7) for n in range(40_000)]
    texts = [" ".join(words), " ".join(words[::-1]), "w0 w0"]
    table = TermTable(2)
    assert learned(table, texts, 1) == [Counter(reference.terms_of(t.split(), 1, 2)) for t in texts]


def test_words_with_the_same_first_bytes_are_distinct():
    words = [prefix + "q" * n for n in range(2, 40) for prefix in ("", "a" * 16, "a" * 15 + "b")]
    assert learned(TermTable(), [" ".join(words), " ".join(words[5:])], 1) == [Counter(words), Counter(words[5:])]


def test_a_full_array_of_pairs_stops_between_texts():
    table, texts = TermTable(), Strings.of(["aa bb", "cc dd", "ee"])
    row_ends = np.zeros(3, np.int64)
    pairs = np.empty(3, np.uint64)
    assert table.learn(texts, True, 1, pairs, 0, row_ends) == (NO_PAIRS, 1, 2)
    assert table.learn(texts[1:], True, 1, pairs, 0, row_ends[1:]) == (DONE, 2, 3)
    assert row_ends.tolist() == [2, 2, 3]
    assert list(table.spell((pairs >> HALF).astype(np.int64))) == ["cc", "dd", "ee"]


@given(TEXTS, TEXTS, st.sampled_from([1, 2, 3]))
def test_merging_a_table_gives_each_term_one_number(mine, others, max_words):
    table, other = TermTable(max_words), TermTable(max_words)
    learned(table, mine, 1)
    learned(other, others, 1)
    before = len(table)
    numbers = table.merge(other)
    assert table.spell(numbers) == other.spell(np.arange(len(other)))
    assert len(set(numbers.tolist())) == len(other)
    names = list(table.spell(np.arange(len(table))))
    assert len(set(names)) == len(names)
    assert set(numbers[numbers >= before].tolist()) == set(range(before, len(table)))


def test_merging_many_n_grams_enlarges_the_table():
    table, other = TermTable(2), TermTable(2)
    learned(other, [" ".join(f"v{n % 300} w{n}" for n in range(20_000))], 1)
    assert table.spell(table.merge(other)) == other.spell(np.arange(len(other)))


def test_texts_as_terms():
    table = TermTable(3)
    terms = ["ha ha ha", "ha", "ha ha", "ab cd ef", "cd ef", "ab"]
    numbers = table.numbers_of(Strings.of(terms))
    assert list(table.spell(numbers)) == terms
    assert table.numbers_of(Strings.of(["", "a", "ha"])).tolist()[:2] == [-1, -1]
    many = Strings.of(" ".join(f"w{n}x{index}" for n in range(100)) for index in range(9))
    assert (table.numbers_of(many) < 0).all()  # far more words than allowed
    assert len(table.numbers_of(Strings.of([]))) == 0


@pytest.mark.parametrize("size", [2, 64, 1 << 12, (1 << 20) + 3])
def test_zeros_begin_at_a_cache_line(size):
    array = pages.zeros(size, np.uint64)
    assert (array.ctypes.data % 64, array.shape, array.dtype) == (0, (size,), np.uint64)
    assert not array.any()
    array[:] = 7
    assert pages.empty(size, np.int32).shape == (size,)


def test_large_arrays_without_large_pages(monkeypatch):
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    assert not pages.zeros(pages.LARGE, np.uint8).any()
    assert pages.empty(pages.LARGE, np.float32).shape == (pages.LARGE,)


# --- rows -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 31).flatmap(lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1)))))
def test_rows_are_sorted_by_column_and_stable(case):
    bits, columns = case
    columns = columns * 7
    keys = np.array([column << 32 | index + 1 for index, column in enumerate(columns)], np.uint64)
    scratch = np.append(keys, np.uint64(0))
    found = sort_row(scratch, len(keys), scratch.copy(), bits, np.empty(MAX_DIGITS, np.int32))
    assert found[: len(keys)].tolist() == sorted(keys.tolist(), key=lambda key: key >> 32)
    merged = merge_equal(found, len(keys))
    sums = Counter()
    for index, column in enumerate(columns):
        sums[column] += index + 1
    assert found[:merged].tolist() == [column << 32 | total for column, total in sorted(sums.items())]


ROWS = st.lists(st.dictionaries(st.integers(0, 99), st.integers(1, 1000), max_size=90), max_size=5)


@given(ROWS, st.booleans(), st.booleans(), st.booleans())
def test_rows_from_counts(rows, weighted, sublinear, unit):
    weights = np.linspace(0.5, 9, 60) if weighted else None
    columns = np.where(np.arange(100) % 5 < 3, np.arange(100) // 5 * 3 + np.arange(100) % 5, UNKNOWN).astype(np.int32)
    pairs = np.array([term << 32 | n for row in rows for term, n in row.items()], np.uint64)
    row_ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    kept = [{columns[t]: n for t, n in row.items() if columns[t] != UNKNOWN} for row in rows]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in kept])]).astype(np.int64)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    given_weights = np.empty(0) if weights is None else weights
    write_rows(pairs, row_ends, columns, 6, given_weights, sublinear, unit, indptr[:-1], indices, values)
    for row, begin, end in zip(kept, indptr, indptr[1:], strict=False):
        expected = reference.tfidf_row(row, weights, sublinear, unit)
        assert indices[begin:end].tolist() == list(expected)
        np.testing.assert_allclose(values[begin:end], list(expected.values()), rtol=3e-7)


@given(TEXTS, st.sampled_from([(1, 1), (1, 2), (2, 3)]), st.sampled_from([8, 13, 30]))
def test_hashed_rows(texts, ngrams, bits):
    strings = Strings.of(texts)
    capacity = sum(map(len, texts)) * 3 + 1
    indices, values, row_ends = (
        np.empty(capacity, np.int32),
        np.empty(capacity, np.float32),
        np.zeros(len(texts), np.int64),
    )
    none = np.zeros(4, np.uint64)
    status, done, used = look_up(
        as_bytes(strings.buffer), strings.starts, strings.ends, folding_table(True), 1, *ngrams, np.uint64(0), none,
        none, np.zeros(1, np.uint8), bits, bits, np.empty(0), False, False, indices, values, 0, row_ends,
    )  # fmt: skip
    assert (status, done, used) == (DONE, len(texts), row_ends[-1] if texts else 0)
    begin = 0
    for text, end in zip(texts, row_ends.tolist(), strict=True):
        terms = reference.terms_of(reference.words_of(text, True), *ngrams)
        expected = Counter(reference.hashed_column(term, bits) for term in terms)
        assert dict(zip(indices[begin:end].tolist(), values[begin:end].tolist(), strict=True)) == expected
        assert indices[begin:end].tolist() == sorted(expected)
        begin = end


@given(TEXTS, TEXTS, st.sampled_from([1, 3]))
def test_looked_up_rows_hold_known_terms_only(known, texts, max_words):
    table = TermTable(max_words)
    learned(table, known, 1)
    names = list(table.spell(np.arange(len(table))))
    columns = np.where(np.arange(len(table)) % 3 > 0, np.arange(len(table))[::-1], UNKNOWN).astype(np.int32)
    write_columns(table, columns)
    strings = Strings.of(texts)
    capacity = sum(map(len, texts)) * 3 + 1
    indices, values, row_ends = (
        np.empty(capacity, np.int32),
        np.empty(capacity, np.float32),
        np.zeros(len(texts), np.int64),
    )
    look_up(
        as_bytes(strings.buffer), strings.starts, strings.ends, folding_table(True), 1, 1, max_words, table.seed,
        table.words, table.grams, table.arena, 0, 20, np.empty(0), False, False, indices, values, 0, row_ends,
    )  # fmt: skip
    column_of = {name: int(column) for name, column in zip(names, columns, strict=True) if column != UNKNOWN}
    begin = 0
    for text, end in zip(texts, row_ends.tolist(), strict=True):
        terms = reference.terms_of(reference.words_of(text, True), 1, max_words)
        expected = Counter(column_of[term] for term in terms if term in column_of)
        assert dict(zip(indices[begin:end].tolist(), values[begin:end].tolist(), strict=True)) == expected
        begin = end
