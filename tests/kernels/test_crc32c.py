"""CRC-32C against the values of the standard (RFC 3720, appendix B.4) and against a reference implementation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_records
from labelwise.kernels import tfrecord as crc32c

STANDARD = {
    b"": 0,
    b"a": 0xC1D04330,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
}


def buffer(content: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(content), np.uint8)


@pytest.mark.parametrize("content", STANDARD)
def test_values_of_the_standard(content):
    assert crc32c.crc32c(buffer(content), 0, len(content)) == STANDARD[content]
    assert reference_records.crc32c(content) == STANDARD[content]


@given(st.binary(max_size=100), st.data())
def test_any_range_is_as_the_reference_does(content, data):
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    assert crc32c.crc32c(buffer(content), begin, end) == reference_records.crc32c(content[begin:end])
    assert crc32c.masked_crc32c(buffer(content), begin, end) == reference_records.masked_crc32c(content[begin:end])
