"""Write CSR rows as TFRecords of tf.train.Example, the counterpart of `example_records`.

A length precedes its content, so records are written backwards, from the end of the buffer. Lists are packed.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.formats.crc32c import masked_crc32c
from labelwise.kernels.formats.example_records import (
    _NAME_BYTES,
    _NAME_LENGTHS,
    DELIMITED,
    FLOATS,
    HEAD_BYTES,
    INDICES,
    INTEGERS,
    LABEL_VALUES,
    LABELS,
    VALUES,
)
from labelwise.kernels.jit import inner, jit

ENTRY_BYTES = 9
"""Maximum bytes of a column and its value."""
RECORD_BYTES = 200
"""Maximum bytes of a record beside its entries."""


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
    """Write the rows from `begin` to `end` as records to the end of `out`; returns their first position.

    Row 0 gets a zero at `last_feature` and at `last_label`, unless they are -1: readers infer the number of columns
    from the highest one.
    """
    position = np.int64(out.size)
    for row in range(end - 1, begin - 1, -1):
        feature_zero = last_feature if row == 0 else -1
        label_zero = last_label if row == 0 else -1
        first, last = np.int64(feature_indptr[row]), np.int64(feature_indptr[row + 1])
        start, finish = np.int64(label_indptr[row]), np.int64(label_indptr[row + 1])
        stop = position - 4
        position = _write_list(out, stop, VALUES, FLOATS, values.view(np.uint32), first, last, feature_zero)
        position = _write_list(out, position, INDICES, INTEGERS, indices, first, last, feature_zero)
        position = _write_list(
            out, position, LABEL_VALUES, FLOATS, relevances.view(np.uint32), start, finish, label_zero
        )
        position = _write_list(out, position, LABELS, INTEGERS, labels, start, finish, label_zero)
        position = _write_head(out, position, 1, stop)
        _write_bits(out, stop, masked_crc32c(out, position, stop), 4)
        head = position - HEAD_BYTES
        _write_bits(out, head, stop - position, 8)
        _write_bits(out, head + 8, masked_crc32c(out, head, head + 8), 4)
        position = head
    return position


@inner
def _write_list(
    out: np.ndarray, stop: int, name: int, number_type: int, numbers: np.ndarray, begin: int, end: int, zero: int
) -> int:
    """Write a name with its Feature before `stop`: columns or the bits of floats, then a zero; returns the position."""
    position = stop
    if number_type == FLOATS:
        position -= 4 * (end - begin + (zero >= 0))
        for index in range(begin, end):
            _write_bits(out, position + 4 * (index - begin), np.int64(numbers[index]), 4)
        if zero >= 0:
            _write_bits(out, stop - 4, 0, 4)
    else:
        if zero >= 0:
            position = _write_varint(out, position, zero)
        for index in range(end - 1, begin - 1, -1):
            position = _write_varint(out, position, np.int64(numbers[index]))
    position = _write_head(out, position, 1, stop)
    position = _write_head(out, position, number_type, stop)
    name_stop = _write_head(out, position, 2, stop)
    position = name_stop - _NAME_LENGTHS[name]
    for index in range(_NAME_LENGTHS[name]):
        out[position + index] = _NAME_BYTES[name, index]
    position = _write_head(out, position, 1, name_stop)
    return _write_head(out, position, 1, stop)


@inner
def _write_head(out: np.ndarray, position: int, number: int, stop: int) -> int:
    """Write tag and length of a field before its content from `position` to `stop`; returns the new position."""
    position = _write_varint(out, position, stop - position) - 1
    out[position] = (number << 3) | DELIMITED
    return position


@inner
def _write_varint(out: np.ndarray, position: int, value: int) -> int:
    """Write a varint (seven bits per byte) before `position`; returns the new position."""
    rest = value >> 7
    while rest > 0:
        position -= 1
        rest >>= 7
    position -= 1
    index = position
    while value > 127:
        out[index] = (value & 127) | 128
        value >>= 7
        index += 1
    out[index] = value
    return position


@inner
def _write_bits(out: np.ndarray, position: int, value: int, count: int) -> None:
    """Write a little-endian integer of `count` bytes."""
    for index in range(count):
        out[position + index] = value & 255
        value >>= 8
