"""The kernels of sparse text against reference implementations, Python's own numbers and scikit-learn's hash."""

from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

import reference_kernels as reference
from labelwise.data.formats import sparse_text as xc
from labelwise.data.formats import vowpal
from labelwise.data.stream import ByteBlock
from labelwise.errors import DataError
from labelwise.kernels.numbers import read_integer, read_number, write_number
from labelwise.kernels.sparse_text import sort_keys
from labelwise.kernels.vowpal_text import murmur3

PATH = Path("made_up.txt")
EVERYTHING = 2**31 - 1


def buffer(text):
    return np.frombuffer(bytearray(text), np.uint8)


def block_of(lines):
    return ByteBlock(buffer(b"".join(line + b"\n" for line in lines)), 1, len(lines))


def read_float32(text):
    """What the kernel reads: a float32, infinity for what does not fit, or None."""
    value, position = read_number(buffer(text.encode() + b"\n"), 0)
    if position != len(text):
        return None
    with np.errstate(over="ignore"):
        return np.float32(value)


@st.composite
def decimals(draw, most_digits):
    digits = draw(st.text("0123456789", min_size=1, max_size=most_digits))
    point = draw(st.integers(0, len(digits)))
    text = draw(st.sampled_from(["", "-", "+"])) + digits[:point] + "." + digits[point:]
    if draw(st.booleans()):
        text += f"{draw(st.sampled_from('eE'))}{draw(st.integers(-70, 45))}"
    return text


@given(decimals(15))
@settings(max_examples=200)
@example("3.4028235677973366e38")
@example("3.4028235677973365e38")
@example("1e-45")
@example("7.006492321624085e-46")
@example("0000000000000000000000000000000000001.5")
@example("0.00000000000000000000000000000000000000000000000000000000001e59")
@example("1e99999999999999999999999999")
@example("0e99999999999999999999999999")
@example("1e-99999999999999999999999999")
def test_numbers_of_few_digits_are_read_exactly(text):
    with np.errstate(over="ignore"):
        expected = np.float32(float(text))
    found = read_float32(text)
    assert found is not None
    assert found == expected
    assert np.signbit(found) == np.signbit(expected)


@given(decimals(40))
@settings(max_examples=100)
def test_numbers_of_many_digits_are_read_to_one_place(text):
    with np.errstate(over="ignore"):
        expected = np.float32(float(text))
    found = read_float32(text)
    nearby = {expected, np.nextafter(expected, np.float32(-np.inf)), np.nextafter(expected, np.float32(np.inf))}
    assert found in nearby


@given(st.text("0123456789", max_size=30), st.binary(max_size=12))
@settings(max_examples=100)
def test_whole_numbers_end_at_the_first_other_byte(digits, rest):
    if rest[:1].isdigit():
        rest = b":" + rest
    number, position = read_integer(buffer(digits.encode() + rest + b"\n"), 0)
    assert position == len(digits)
    expected = int(digits or "0")
    assert number == expected or (number >= 2**31 and expected >= 2**31)


@pytest.mark.parametrize(
    "text", ["", "-", "+", ".", "-.", "e5", "1e", "1e+", "nan", "inf", "1_0", "0x1p3", "--1", "1.2.3", "1,5"]
)
def test_what_is_not_a_number_is_refused(text):
    assert read_float32(text) is None


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=200)
@example(1)
@example(0x7F7FFFFF)
@example(0x00800000)
@example(0x4B800000)
def test_written_numbers_are_the_shortest_that_read_back(bits):
    value = np.uint32(bits).view(np.float32)
    if not np.isfinite(value):
        return
    out = np.zeros(64, np.uint8)
    length = write_number(out, 0, value)
    text = out[:length].tobytes().decode()
    assert length <= 24
    assert not out[length:].any()
    assert np.float32(float(text)) == value
    assert read_float32(text) == value
    assert significant_digits(text) == significant_digits(reference.shortest_decimal(value))


def significant_digits(text):
    return len(text.lower().partition("e")[0].replace("-", "").replace(".", "").strip("0"))


@numba.njit
def sorted_keys(keys):
    """`sort_keys`, which only kernels can call."""
    return sort_keys(keys)


@given(st.lists(st.integers(-(2**62), 2**62), max_size=200))
@settings(max_examples=50)
def test_sort_keys(keys):
    assert sorted_keys(np.array(keys, np.int64)).tolist() == sorted(keys)


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_murmur3(key, seed):
    found = murmur3(buffer(b"__" + key + b"__"), 2, 2 + len(key), seed)
    assert found == murmurhash3_32(key, seed=seed, positive=True) == reference.murmur3(key, seed)


columns = st.one_of(st.integers(0, 30), st.integers(0, 2**31 - 2))
short_numbers = st.one_of(decimals(8), st.integers(-99, 99).map(str), st.just("0"))
xc_features = st.builds("{}:{}".format, columns, short_numbers)
slips = st.sampled_from(
    ["7", "a:1", "1:", ":1", "1:x", "1:2:3", "-1:2", "2147483647:1", "1:nan", "1:1e39", "1,2", ",", "\r"]
)
blanks = st.sampled_from([" ", "  ", "\t", " \t "])


@st.composite
def xc_lines(draw):
    labels = ",".join(draw(st.lists(columns.map(str), max_size=4)))
    words = draw(st.lists(xc_features, max_size=25))
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(slips))
    line = labels + "".join(draw(blanks) + word for word in words) + draw(st.sampled_from(["", "", " ", "\r"]))
    return line.encode()


def rows_of(found):
    """A parsed block as the reference gives it."""
    features = np.split(found.indices, np.cumsum(found.feature_counts)[:-1])
    values = np.split(found.values, np.cumsum(found.feature_counts)[:-1])
    return [f.tolist() for f in features], [v.tolist() for v in values]


@given(
    st.lists(xc_lines(), min_size=1, max_size=6), st.sampled_from([EVERYTHING, 25]), st.sampled_from([EVERYTHING, 25])
)
@settings(max_examples=60)
def test_xc_lines_against_the_reference(lines, n_features, n_labels):
    references = [reference.xc_row(line.removesuffix(b"\r"), n_features, n_labels) for line in lines]
    if None in references:
        with pytest.raises(DataError) as caught:
            xc._parse(block_of(lines), PATH, n_features, n_labels)
        assert caught.value.line == references.index(None) + 1
        return
    found = xc._parse(block_of(lines), PATH, n_features, n_labels)
    labels = np.split(found.labels, np.cumsum(found.label_counts)[:-1])
    assert [[b"%d" % label for label in row] for row in labels] == [reference_row[0] for reference_row in references]
    assert rows_of(found) == (
        [reference_row[1] for reference_row in references],
        [reference_row[2] for reference_row in references],
    )


names = st.one_of(columns.map(str), st.text("abé'-/=", min_size=1, max_size=5))
vowpal_slips = st.sampled_from([":1", "1:", "1:x", "1:2:3", "1:inf", "2147483647", "1:-1e39", "1:\r"])


heads = ["", "3", "cat", "7,7,é", "x'y 1", "5 1.0", "'only", "8 'tag", "9 1 'tag", " 2 ", "4 tag", "4 1 tag/1"]
bad_heads = ["a,", "1:2", "3 2", "3 1 1", "'a b", "3 'a b", "3 nan", "3 a b", "3 2 a", "'a b", "no bar"]
namespaces = ["|", "|", "|ns", "|words", "|:2.5", "|ns:-1e-3"]


@st.composite
def vowpal_lines(draw, feature_names):
    slip = draw(st.sampled_from([None] * 12 + ["head", "namespace", "feature"]))
    line = draw(st.sampled_from(bad_heads if slip == "head" else heads)) + draw(st.sampled_from(["", " "]))
    for _ in range(draw(st.integers(0 if line == "no bar" else 1, 3))):
        features = draw(st.lists(st.tuples(feature_names, st.one_of(st.none(), short_numbers)), max_size=8))
        words = [name if value is None else f"{name}:{value}" for name, value in features]
        words += [draw(vowpal_slips)] if slip == "feature" else []
        line += "|ns:x" if slip == "namespace" else draw(st.sampled_from(namespaces))
        line += draw(blanks).join(["", *words])
    return (line + draw(st.sampled_from(["", " ", "\r"]))).encode()


@pytest.mark.parametrize("bits", [None, 4])
@given(data=st.data())
@settings(max_examples=50)
def test_vowpal_lines_against_the_reference(bits, data):
    feature_names = columns.map(str) if bits is None else names
    lines = data.draw(st.lists(vowpal_lines(feature_names), min_size=1, max_size=4))
    kept = [line.removesuffix(b"\r") for line in lines]
    references = [reference.vowpal_row(line, bits) if line.strip(b" \t") else "blank" for line in kept]
    if None in references:
        with pytest.raises(DataError) as caught:
            vowpal._parse(block_of(lines), PATH, bits)
        assert caught.value.line == references.index(None) + 1
        return
    references = [reference_row for reference_row in references if reference_row != "blank"]
    found = vowpal._parse(block_of(lines), PATH, bits)
    text = found.block.data.tobytes()
    words = [text[a:b] for a, b in zip(found.label_starts, found.label_ends, strict=True)]
    labels = [words[a:b] for a, b in zip(found.first_label[:-1], found.first_label[1:], strict=True)]
    assert labels == [reference_row[0] for reference_row in references]
    if references:
        assert rows_of(found) == (
            [reference_row[1] for reference_row in references],
            [reference_row[2] for reference_row in references],
        )
