"""CSR rows as TFRecords of tf.train.Example, the counterpart of `example_records`.

A length comes before what it measures, so records are written backwards, from the end of the buffer. Lists are packed.
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
    """Write the rows from `begin` to `end` as records to the end of `out`; returns where they begin.

    The very first row gets a zero at `last_feature` and at `last_label`, unless they are -1: readers count columns by
    the highest one that is mentioned.
    """
    position = np.int64(out.size)
    for row in range(end - 1, begin - 1, -1):
        feature_zero = last_feature if row == 0 else -1
        label_zero = last_label if row == 0 else -1
        first, last = np.int64(feature_indptr[row]), np.int64(feature_indptr[row + 1])
        start, finish = np.int64(label_indptr[row]), np.int64(label_indptr[row + 1])
        stop = position - 4
        position = _put_list(out, stop, VALUES, FLOATS, values.view(np.uint32), first, last, feature_zero)
        position = _put_list(out, position, INDICES, WHOLES, indices, first, last, feature_zero)
        position = _put_list(out, position, LABEL_VALUES, FLOATS, relevances.view(np.uint32), start, finish, label_zero)
        position = _put_list(out, position, LABELS, WHOLES, labels, start, finish, label_zero)
        position = _put_head(out, position, 1, stop)
        _put_bits(out, stop, masked_crc32c(out, position, stop), 4)
        head = position - HEAD_BYTES
        _put_bits(out, head, stop - position, 8)
        _put_bits(out, head + 8, masked_crc32c(out, head, head + 8), 4)
        position = head
    return position


@inner
def _put_list(
    out: np.ndarray, stop: int, name: int, kind: int, numbers: np.ndarray, begin: int, end: int, zero: int
) -> int:
    """A name with its Feature, to the left of `stop`: columns or the bits of floats, and a zero after them."""
    position = stop
    if kind == FLOATS:
        position -= 4 * (end - begin + (zero >= 0))
        for place in range(begin, end):
            _put_bits(out, position + 4 * (place - begin), np.int64(numbers[place]), 4)
        if zero >= 0:
            _put_bits(out, stop - 4, 0, 4)
    else:
        if zero >= 0:
            position = _put_varint(out, position, zero)
        for place in range(end - 1, begin - 1, -1):
            position = _put_varint(out, position, np.int64(numbers[place]))
    position = _put_head(out, position, 1, stop)
    position = _put_head(out, position, kind, stop)
    name_stop = _put_head(out, position, 2, stop)
    position = name_stop - _NAME_LENGTHS[name]
    for place in range(_NAME_LENGTHS[name]):
        out[position + place] = _NAME_BYTES[name, place]
    position = _put_head(out, position, 1, name_stop)
    return _put_head(out, position, 1, stop)


@inner
def _put_head(out: np.ndarray, position: int, number: int, stop: int) -> int:
    """Tag and length of a field whose content goes from `position` to `stop`, to the left of it."""
    position = _put_varint(out, position, stop - position) - 1
    out[position] = (number << 3) | DELIMITED
    return position


@inner
def _put_varint(out: np.ndarray, position: int, value: int) -> int:
    """A number of seven bits per byte, to the left of `position`."""
    rest = value >> 7
    while rest > 0:
        position -= 1
        rest >>= 7
    position -= 1
    place = position
    while value > 127:
        out[place] = (value & 127) | 128
        value >>= 7
        place += 1
    out[place] = value
    return position


@inner
def _put_bits(out: np.ndarray, position: int, value: int, count: int) -> None:
    """A number of so many bytes, the lowest first."""
    for place in range(count):
        out[position + place] = value & 255
        value >>= 8
