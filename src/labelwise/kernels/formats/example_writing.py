"""CSR rows as TFRecords of tf.train.Example, the counterpart of `example_records`.

Lengths stand before what they measure, so the sizes of a record are added up from the inside first. Lists are packed.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.formats.crc32c import masked_crc32c
from labelwise.kernels.formats.example_records import (
    _NAME_BYTES,
    _NAME_LENGTHS,
    FLOATS,
    HEAD_BYTES,
    INDICES,
    LABEL_VALUES,
    LABELS,
    VALUES,
    WHOLES,
)
from labelwise.kernels.jit import inner, jit

ENTRY_BYTES = 9
"""What a column and its value need at most."""
RECORD_BYTES = 200
"""What a record needs at most beside its entries."""


@jit
def format_examples(
    begin: int,
    end: int,
    feature_indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    label_indptr: np.ndarray,
    labels: np.ndarray,
    relevances: np.ndarray,
    last_feature: int,
    last_label: int,
    out: np.ndarray,
) -> int:
    """Write the rows from `begin` to `end` as records; gives the bytes.

    The very first row gets a zero at `last_feature` and at `last_label`, unless they are -1: readers count columns by
    the highest one that is mentioned.
    """
    position = int(np.int64(0))
    value_bits, relevance_bits = values.view(np.uint32), relevances.view(np.uint32)
    for row in range(begin, end):
        feature_zero = last_feature if row == 0 else -1
        label_zero = last_label if row == 0 else -1
        a, b = np.int64(label_indptr[row]), np.int64(label_indptr[row + 1])
        c, d = np.int64(feature_indptr[row]), np.int64(feature_indptr[row + 1])
        label_bytes, label_floats = _size_of(labels, a, b, label_zero)
        index_bytes, index_floats = _size_of(indices, c, d, feature_zero)
        inner = (
            _framed(_entry_bytes(LABELS, label_bytes))
            + _framed(_entry_bytes(LABEL_VALUES, label_floats))
            + _framed(_entry_bytes(INDICES, index_bytes))
            + _framed(_entry_bytes(VALUES, index_floats))
        )
        message = position + HEAD_BYTES
        position = _put_head(out, message, 1, inner)
        position = _put_entry_head(out, position, LABELS, WHOLES, label_bytes)
        position = _put_wholes(out, position, labels, a, b, label_zero)
        position = _put_entry_head(out, position, LABEL_VALUES, FLOATS, label_floats)
        position = _put_floats(out, position, relevance_bits, a, b, label_zero)
        position = _put_entry_head(out, position, INDICES, WHOLES, index_bytes)
        position = _put_wholes(out, position, indices, c, d, feature_zero)
        position = _put_entry_head(out, position, VALUES, FLOATS, index_floats)
        position = _put_floats(out, position, value_bits, c, d, feature_zero)
        _put_bits(out, message - HEAD_BYTES, position - message, 8)
        _put_bits(out, message - 4, masked_crc32c(out, message - HEAD_BYTES, message - 4), 4)
        position = _put_bits(out, position, masked_crc32c(out, message, position), 4)
    return position


@inner
def _varint_bytes(value: int) -> int:
    count = 1
    while value > 127:
        value >>= 7
        count += 1
    return count


@inner
def _framed(size: int) -> int:
    """Bytes of a field of this size with its tag and length."""
    return 1 + _varint_bytes(size) + size


@inner
def _size_of(columns: np.ndarray, begin: int, end: int, zero: int) -> tuple[int, int]:
    """Bytes of the columns of a row and of its values."""
    size = 0
    for place in range(begin, end):
        size += _varint_bytes(np.int64(columns[place]))
    if zero >= 0:
        return size + _varint_bytes(zero), 4 * (end - begin + 1)
    return size, 4 * (end - begin)


@inner
def _entry_bytes(name: int, packed: int) -> int:
    """Bytes of a name with its Feature, whose numbers take `packed` bytes."""
    feature = _framed(_framed(packed))
    return 2 + _NAME_LENGTHS[name] + _framed(feature)


@inner
def _put_varint(out: np.ndarray, position: int, value: int) -> int:
    while value > 127:
        out[position] = (value & 127) | 128
        value >>= 7
        position += 1
    out[position] = value
    return position + 1


@inner
def _put_head(out: np.ndarray, position: int, field: int, size: int) -> int:
    """The tag and the length of a field."""
    out[position] = (field << 3) | 2
    return _put_varint(out, position + 1, size)


@inner
def _put_entry_head(out: np.ndarray, position: int, name: int, kind: int, packed: int) -> int:
    """All of an entry before its numbers."""
    position = _put_head(out, position, 1, _entry_bytes(name, packed))
    position = _put_head(out, position, 1, _NAME_LENGTHS[name])
    for place in range(_NAME_LENGTHS[name]):
        out[position + place] = _NAME_BYTES[name, place]
    position += _NAME_LENGTHS[name]
    position = _put_head(out, position, 2, _framed(_framed(packed)))
    position = _put_head(out, position, kind, _framed(packed))
    return _put_head(out, position, 1, packed)


@inner
def _put_wholes(out: np.ndarray, position: int, columns: np.ndarray, begin: int, end: int, zero: int) -> int:
    for place in range(begin, end):
        position = _put_varint(out, position, np.int64(columns[place]))
    return position if zero < 0 else _put_varint(out, position, zero)


@inner
def _put_floats(out: np.ndarray, position: int, bits: np.ndarray, begin: int, end: int, zero: int) -> int:
    for place in range(begin, end):
        position = _put_bits(out, position, np.int64(bits[place]), 4)
    return position if zero < 0 else _put_bits(out, position, 0, 4)


@inner
def _put_bits(out: np.ndarray, position: int, value: int, count: int) -> int:
    """A whole number of so many bytes, the lowest first."""
    for _ in range(count):
        out[position] = value & 255
        value >>= 8
        position += 1
    return position
