"""Pickles of plain data are read as Python reads them; those that would run something are refused."""

import contextlib
import io
import os
import pickle
import pickletools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.data.formats.images import read_pickle
from labelwise.errors import DataError, LabelwiseError

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 300), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(plain, st.integers(0, 5))
def test_plain_data_of_every_protocol(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol), "x") == value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["uint8", "int64", ">f4", "bool"])
def test_arrays(protocol, dtype):
    array = (np.arange(24).reshape(2, 3, 4) % 5).astype(dtype)
    value = {"data": array, "again": array, "fortran": np.asfortranarray(array), "one": np.float64(2.5)}
    found = read_pickle(pickle.dumps(value, protocol), "x")
    for key in ("data", "again", "fortran"):
        np.testing.assert_array_equal(found[key], array)
        assert found[key].dtype == array.dtype
    assert found["one"] == 2.5


def test_strings_of_python_2_are_bytes():
    content = b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eU\x04dataq\x04T\x03\x00\x00\x00abcu."
    assert read_pickle(content, "x") == {b"labels": [6, 9], b"data": b"abc"}
    assert read_pickle(b"(dp0\nS'a\\x41'\np1\nI01\ns.", "x") == {b"aA": True}


class Command:
    def __reduce__(self):
        return os.system, ("touch /tmp/labelwise-was-here",)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(protocol):
    with pytest.raises(DataError, match=r"evil.bin.*system"):
        read_pickle(pickle.dumps(Command(), protocol), "evil.bin")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02]q\x01(K\x01e",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"\x8e" + b"\xff" * 8 + b"abc.",  # a string of 2^64 bytes
        b"T\xff\xff\xff\xffabc.",
        b"cnumpy\nndarray\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n)R.",
        b"K\x01K\x02R.",
        b"K\x01}b.",
        b"e.",
        b"}(K\x01u.",
        b"}]K\x01s.",
        b"h\x05.",
        b"\x8b\xff\xff\xff\x7f.",
        b"I" + b"9" * 5000 + b"\n.",
        b"S'no end.",
        b"(lp0\n(lp1\nb.",
        b"cnumpy\ndtype\n(\x8a\x06\xff\xff\xff\xff\xff\x7ftR.",  # a number where a name belongs
        b"cnumpy\ndtype\n(X\x07\x00\x00\x00008i08OtR.",  # NumPy raises a SyntaxError
        b"cnumpy\nndarray\n\x85.",  # a name inside the value
        b"](\x85.",
        b"}" * 100_000 + b".",
        b"N" + b"\x85" * 100_000 + b".",
        b"N" + b"\x94" * 100_000 + b".",
    ],
)
def test_damaged_pickles_are_refused(content):
    with pytest.raises(DataError, match=r"x\.bin"):
        read_pickle(content, "x.bin")


def test_a_wrong_shape_and_objects_are_refused():
    good = pickle.dumps(np.arange(6, dtype=np.uint8).reshape(2, 3), 2)
    assert b"K\x02K\x03\x86" in good
    with pytest.raises(DataError, match="6 values for the shape"):
        read_pickle(good.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"), "x")
    with pytest.raises(DataError, match="only numbers"):
        read_pickle(pickle.dumps(np.array([Command()], object), 2), "x")


def test_repeated_conversions_are_bounded():
    """A string that is converted again and again would need much more memory than the file."""
    text = b"X" + (1 << 20).to_bytes(4, "little") + b"a" * (1 << 20)
    once = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
    with pytest.raises(DataError, match="larger than the file"):
        read_pickle(text + b"q\x00" + once * 50 + b".", "x")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_pickles_never_surprise(data):
    value = {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 3], "names": [b"a", "b"]}
    content = bytearray(pickle.dumps(value, data.draw(st.sampled_from([0, 2, 4, 5]))))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(LabelwiseError):
        read_pickle(bytes(content), "x")


def test_opcodes_of_plain_data_are_known():
    """Whatever Python writes for plain data is read: all operations of an example are covered."""
    out = io.StringIO()
    pickletools.dis(pickle.dumps({"a": [np.arange(3), (1, 2.0, None, True)]}, 4), out)
    assert "STACK_GLOBAL" in out.getvalue()


def test_time_is_linear_in_the_size():
    many = 200_000
    numbers = b"I1\n0" * many  # a copy of a megabyte per line would take 200 GB
    known = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1tRq\x010cnumpy.core.multiarray\n_reconstruct\nq\x020"
    memo = b"N" + b"".join(b"r" + (index + 10).to_bytes(4, "little") for index in range(many // 4)) + b"0"
    arrays = b"h\x02)R(K\x01(K\x00th\x01\x89C\x00tb0" * (many // 20)
    begin = time.process_time()
    for content in (numbers, known + memo + arrays):
        assert read_pickle(content + b"N.", "x") is None
    assert time.process_time() - begin < 20
