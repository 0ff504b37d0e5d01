"""CRC-32C (Castagnoli), the checksum of TFRecord files, sixteen bytes per step.

Sixteen tables of 256 entries hold the effect of a byte at each of sixteen positions on the checksum, so that one step
is sixteen independent lookups. Records store the checksum masked: rotated by 15 bits, plus a constant.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.sparse_text import MAX_INDEX, sort_features, sort_keys

POLYNOMIAL = 0x82F63B78
MASK_DELTA = 0xA282EAD8
STEP = 16


def _tables() -> np.ndarray:
    tables = np.zeros((STEP, 256), np.uint64)
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (POLYNOMIAL if state & 1 else 0)
        tables[0, byte] = state
    for index in range(1, STEP):
        before = tables[index - 1]
        tables[index] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(0xFF)]
    return tables


_TABLES = _tables().astype(np.uint32)


@jit
def crc32c(data: np.ndarray, begin: int, end: int) -> int:
    """The checksum of ``data[begin:end]``."""
    state = np.uint32(0xFFFFFFFF)
    low, eight = np.uint32(0xFF), np.uint32(8)
    position = begin
    for _ in range((end - begin) // STEP):
        chunk = data[position : position + STEP]
        first = _TABLES[15, (state ^ chunk[0]) & low] ^ _TABLES[14, ((state >> eight) ^ chunk[1]) & low]
        second = (
            _TABLES[13, ((state >> np.uint32(16)) ^ chunk[2]) & low] ^ _TABLES[12, (state >> np.uint32(24)) ^ chunk[3]]
        )
        third = _TABLES[11, chunk[4]] ^ _TABLES[10, chunk[5]] ^ _TABLES[9, chunk[6]] ^ _TABLES[8, chunk[7]]
        fourth = _TABLES[7, chunk[8]] ^ _TABLES[6, chunk[9]] ^ _TABLES[5, chunk[10]] ^ _TABLES[4, chunk[11]]
        fifth = _TABLES[3, chunk[12]] ^ _TABLES[2, chunk[13]] ^ _TABLES[1, chunk[14]] ^ _TABLES[0, chunk[15]]
        state = np.uint32(first ^ second ^ third ^ fourth ^ fifth)
        position += STEP
    for index in range(position, end):
        state = np.uint32(_TABLES[0, (state ^ data[index]) & low] ^ (state >> eight))
    return np.int64(state ^ np.uint32(0xFFFFFFFF))


@jit
def masked_crc32c(data: np.ndarray, begin: int, end: int) -> int:
    """The checksum of ``data[begin:end]`` as a record stores it."""
    plain = crc32c(data, begin, end)
    return (((plain >> 15) | (plain << 17)) + MASK_DELTA) & 0xFFFFFFFF


# --- example records ---
# TFRecord files of tf.train.Example as CSR rows: frames, checksums and protobuf messages, without their libraries.
#
# A record is its length (8 bytes), the masked checksum of that (4), the message, and the masked checksum of that (4).
# The message is Example{1: Features{1: {1: name, 2: Feature} ...}}, where a Feature holds numbers in 2 (floats) or 3
# (integers), packed or one by one. The parser stops at the first fault and returns it with its record; the error
# messages are built elsewhere. Rows are canonical, as those of `sparse_text`.

FINE, BAD_LENGTH_CHECKSUM, TOO_LONG, BAD_CHECKSUM, BAD_MESSAGE, WRONG_TYPE, NO_FEATURES = range(7)
BAD_INDEX, NOT_FINITE, SIZES_DIFFER, SUM_TOO_LARGE = range(7, 11)

LABELS, LABEL_VALUES, INDICES, VALUES = range(4)
NAMES = ("labels", "label_vals", "input_idxs", "input_vals")
HEAD_BYTES, FRAME_BYTES = 12, 16
MAX_RECORD_BYTES = 1 << 30
FLOATS, INTEGERS = 2, 3
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5

_NAME_BYTES = np.array([list(name.encode().ljust(10)) for name in NAMES], np.uint8)
_NAME_LENGTHS = np.array([len(name) for name in NAMES], np.int64)


# --- frames -------------------------------------------------------------------------------------------------


@inner(forceinline=True)
def read_bits(data: np.ndarray, position: int, count: int) -> int:
    """A little-endian integer of `count` bytes; with eight bytes it may be negative."""
    value = np.int64(0)
    for index in range(count):
        value |= np.int64(data[position + index]) << np.int64(8 * index)
    return value


@jit
def complete_records(data: np.ndarray, filled: int) -> tuple[int, int, int]:
    """The end of the complete records in ``data[:filled]``: (fault of the next one, its position, count)."""
    position = count = int(np.int64(0))
    while filled - position >= HEAD_BYTES:
        if masked_crc32c(data, position, position + 8) != read_bits(data, position + 8, 4):
            return BAD_LENGTH_CHECKSUM, position, count
        length = read_bits(data, position, 8)
        if length < 0 or length > MAX_RECORD_BYTES:
            return TOO_LONG, position, count
        if filled - position < length + FRAME_BYTES:
            break
        position += length + FRAME_BYTES
        count += 1
    return FINE, position, count


# --- protobuf -----------------------------------------------------------------------------------------------


@inner(forceinline=True)
def _varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """A varint (seven bits per byte): (the number, the position after it, or -1 if it does not end)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(70):
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value), position
        shift += np.uint64(7)
    return np.int64(0), -1


@inner
def _field(data: np.ndarray, position: int, end: int) -> tuple[int, int, int, int]:
    """The next field of a message: (its number, its wire type, begin and end of its content); end -1: a fault."""
    tag, position = _varint(data, position, end)
    if position < 0 or tag < 8:
        return 0, 0, 0, -1
    wire = tag & 7
    begin, stop = position, -1
    if wire == VARINT:
        _, stop = _varint(data, position, end)
    elif wire == DELIMITED:
        length, begin = _varint(data, position, end)
        if begin >= 0 and 0 <= length <= end - begin:
            stop = begin + length
    elif wire == EIGHT_BYTES:
        stop = position + 8
    elif wire == FOUR_BYTES:
        stop = position + 4
    return tag >> 3, wire, begin, stop if stop <= end else -1


@inner
def _which(data: np.ndarray, begin: int, end: int) -> int:
    """Which of NAMES this is, or -1."""
    for name in range(len(_NAME_LENGTHS)):
        if end - begin == _NAME_LENGTHS[name]:
            same = True
            for index in range(end - begin):
                same &= data[begin + index] == _NAME_BYTES[name, index]
            if same:
                return name
    return -1


@inner
def _find_features(data: np.ndarray, begin: int, end: int, spans: np.ndarray) -> tuple[int, int]:
    """Begin and end of the features of NAMES in an Example, the last of duplicates: (fault, another name)."""
    spans[:] = -1
    other = -1
    while begin < end:
        number, wire, features, begin = _field(data, begin, end)
        if begin < 0:
            return BAD_MESSAGE, other
        while number == 1 and wire == DELIMITED and features < begin:
            entry_number, entry_wire, entry, features = _field(data, features, begin)
            if features < 0:
                return BAD_MESSAGE, other
            if entry_number != 1 or entry_wire != DELIMITED:
                continue
            name, name_at, value, stop = -1, entry, entry, entry  # an entry without a value has an empty one
            while entry < features:
                part, part_wire, at, entry = _field(data, entry, features)
                if entry < 0:
                    return BAD_MESSAGE, other
                if part == 1 and part_wire == DELIMITED:
                    name, name_at = _which(data, at, entry), at
                elif part == 2 and part_wire == DELIMITED:
                    value, stop = at, entry
            if name >= 0:
                spans[name, 0], spans[name, 1] = value, stop
            else:
                other = name_at
    return FINE, other


@inner
def _numbers(data: np.ndarray, span: np.ndarray, number_type: int, out: np.ndarray, index: int) -> tuple[int, int, int]:
    """Write the columns or the bits of the floats of a Feature from `index` on: (fault, index after them, detail)."""
    position, end = span[0], span[1]
    alone = VARINT if number_type == INTEGERS else FOUR_BYTES
    while position < end:
        found, wire, at, position = _field(data, position, end)
        if position < 0:
            return BAD_MESSAGE, index, 0
        if found != number_type or wire != DELIMITED:
            return WRONG_TYPE, index, found
        while at < position:
            number, wire, first, at = _field(data, at, position)
            if at < 0 or (number_type == FLOATS and wire == DELIMITED and (at - first) % 4 != 0):
                return BAD_MESSAGE, index, 0
            if number != 1 or wire not in (DELIMITED, alone):
                continue
            if number_type == FLOATS:
                for start in range(first, at, 4):
                    out[np.uint64(index)] = read_bits(data, start, 4)
                    index += 1
                continue
            while first < at:
                value, first = _varint(data, first, at)
                if first < 0:
                    return BAD_MESSAGE, index, 0
                if value < 0 or value > MAX_INDEX:
                    return BAD_INDEX, index, value
                out[np.uint64(index)] = value
                index += 1
    return FINE, index, 0


# --- rows ---------------------------------------------------------------------------------------------------


@jit
def parse_examples(
    data: np.ndarray,
    feature_counts: np.ndarray,
    label_counts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    relevances: np.ndarray,
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Parse the complete records of a block.

    The counts have one element per record, the other arrays one per byte. Returns (fault, the record's index, its
    position, the name of the feature at fault, a number for the message, features stored, labels stored, feature
    columns, label columns, position of a name that is not read).
    """
    position = row = stored = tagged = int(np.int64(0))
    n_features = n_labels = int(np.int64(0))
    other = int(np.int64(-1))
    spans = np.empty((len(_NAME_LENGTHS), 2), np.int64)
    while position < data.size:
        end = position + HEAD_BYTES + read_bits(data, position, 8)
        fault, name, detail = BAD_CHECKSUM, INDICES, int(np.int64(0))
        first_feature, first_label = stored, tagged
        if masked_crc32c(data, position + HEAD_BYTES, end) == read_bits(data, end, 4):
            fault, found = _find_features(data, position + HEAD_BYTES, end, spans)
            other = max(other, found)
        if fault == FINE and spans[INDICES, 0] < 0 and spans[VALUES, 0] < 0:
            fault = NO_FEATURES
        if fault == FINE:
            fault, name, detail, stored, n_features = _row(
                data, spans, INDICES, VALUES, indices, values, stored, n_features
            )
        if fault == FINE:
            fault, name, detail, tagged, n_labels = _row(
                data, spans, LABELS, LABEL_VALUES, labels, relevances, tagged, n_labels
            )
        if fault != FINE:
            return fault, row, position, name, detail, stored, tagged, n_features, n_labels, other
        feature_counts[row] = stored - first_feature
        label_counts[row] = tagged - first_label
        position = end + 4
        row += 1
    return FINE, row, position, LABELS, 0, stored, tagged, n_features, n_labels, other


@inner
def _row(
    data: np.ndarray,
    spans: np.ndarray,
    columns_name: int,
    values_name: int,
    columns: np.ndarray,
    values: np.ndarray,
    begin: int,
    n_columns: int,
) -> tuple[int, int, int, int, int]:
    """Columns with their values as a canonical row: (fault, name, number for the message, end, columns needed)."""
    fault, end, detail = _numbers(data, spans[columns_name], INTEGERS, columns.view(np.uint32), begin)
    if fault != FINE:
        return fault, columns_name, detail, end, n_columns
    if columns_name == LABELS and spans[values_name, 0] < 0:
        values[begin:end] = 1
    else:
        fault, last, detail = _numbers(data, spans[values_name], FLOATS, values.view(np.uint32), begin)
        if fault != FINE:
            return fault, values_name, detail, end, n_columns
        if last != end:
            return SIZES_DIFFER, columns_name, ((end - begin) << 32) | (last - begin), end, n_columns
    canonical, previous = True, np.int64(-1)
    for index in range(begin, end):
        column = np.int64(columns[index])
        if not np.isfinite(values[index]):
            return NOT_FINITE, values_name, 0, end, n_columns
        canonical &= column > previous and values[index] != 0
        previous = column
        n_columns = max(n_columns, column + 1)
    if not canonical and columns_name == LABELS:
        end = _sort_labels(columns, values, begin, end)
    elif not canonical:
        end = sort_features(columns, values, begin, end)
    return FINE if end >= 0 else SUM_TOO_LARGE, values_name, 0, end, n_columns


@inner
def _sort_labels(labels: np.ndarray, relevances: np.ndarray, begin: int, end: int) -> int:
    """Sort a row by label, keep the first of equal ones, drop zeros; returns its new end."""
    keys = np.empty(end - begin, np.int64)
    for index in range(end - begin):
        keys[index] = (np.int64(labels[begin + index]) << 32) | index
    rated = relevances[begin:end].copy()
    kept, previous = begin, -1
    for key in sort_keys(keys):
        label, relevance = key >> 32, rated[key & 0xFFFFFFFF]
        if label != previous and relevance != 0:
            labels[kept], relevances[kept] = label, relevance
            kept += 1
        previous = label
    return kept


# --- example writing ---
# Write CSR rows as TFRecords of tf.train.Example, the counterpart of `example_records`.
#
# A length precedes its content, so records are written backwards, from the end of the buffer. Lists are packed.

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
