"""TFRecord files of tf.train.Example as CSR rows: frames, checksums and protobuf messages, without their libraries.

A record is its length (8 bytes), the masked checksum of that (4), the message, and the masked checksum of that (4). The
message is Example{1: Features{1: {1: name, 2: Feature} ...}}, where a Feature holds numbers in 2 (floats) or 3 (whole
numbers), packed or one by one. A parser stops at the first fault and says which and in what record; sentences are made
of that elsewhere. Rows leave it canonical, as those of `sparse_text`.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.formats.crc32c import masked_crc32c
from labelwise.kernels.formats.sparse_text import MAX_INDEX, sort_features, sort_keys
from labelwise.kernels.jit import inner, jit

FINE, BAD_LENGTH_SUM, TOO_LONG, BAD_SUM, BAD_MESSAGE, WRONG_KIND, NO_FEATURES = range(7)
BAD_INDEX, NOT_FINITE, UNEQUAL, SUM_TOO_LARGE = range(7, 11)

LABELS, LABEL_VALUES, INDICES, VALUES = range(4)
NAMES = ("labels", "label_vals", "input_idxs", "input_vals")
HEAD_BYTES, FRAME_BYTES = 12, 16
MAX_RECORD_BYTES = 1 << 30
FLOATS, WHOLES = 2, 3
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5

_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
_NAME_BYTES = np.array([list(name.encode().ljust(10)) for name in NAMES], np.uint8)
_NAME_LENGTHS = np.array([len(name) for name in NAMES], np.int64)


# --- frames -------------------------------------------------------------------------------------------------


@inner
def read_bits(data: np.ndarray, position: int, count: int) -> int:
    """A whole number of so many bytes, the lowest first; of eight bytes it may be negative."""
    value = np.int64(0)
    for place in range(count):
        value |= np.int64(data[position + place]) << np.int64(8 * place)
    return value


@jit
def whole_records(data: np.ndarray, filled: int) -> tuple[int, int, int]:
    """How far the records go that are whole in ``data[:filled]``: (fault of the next one, its position, count)."""
    position = count = int(np.int64(0))
    while filled - position >= HEAD_BYTES:
        if masked_crc32c(data, position, position + 8) != read_bits(data, position + 8, 4):
            return BAD_LENGTH_SUM, position, count
        length = read_bits(data, position, 8)
        if length < 0 or length > MAX_RECORD_BYTES:
            return TOO_LONG, position, count
        if filled - position < length + FRAME_BYTES:
            break
        position += length + FRAME_BYTES
        count += 1
    return FINE, position, count


# --- protobuf -----------------------------------------------------------------------------------------------


@inner
def _varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte: (the number, the position after it, or -1 if it has no end)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < np.uint64(70):
        byte = np.uint64(data[position])
        position += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value), position
        shift += np.uint64(7)
    return np.int64(0), -1


@inner(forceinline=True)
def _short_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """`_varint`, quick for the two and three bytes that most columns take."""
    if end - position > 3:
        byte = np.uint64(position)
        first = np.int64(data[byte])
        if first < 128:
            return first, position + 1
        second = np.int64(data[byte + _ONE])
        if second < 128:
            return (first & 127) | (second << 7), position + 2
        third = np.int64(data[byte + _TWO])
        if third < 128:
            return (first & 127) | ((second & 127) << 7) | (third << 14), position + 3
    return _varint(data, position, end)


@inner
def _field(data: np.ndarray, position: int, end: int) -> tuple[int, int, int, int]:
    """The next field of a message: (its number, its wire type, where its content begins and ends); end -1: a fault."""
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
    """Which of NAMES stands here, or -1."""
    for name in range(len(_NAME_LENGTHS)):
        if end - begin == _NAME_LENGTHS[name]:
            same = True
            for place in range(end - begin):
                same &= data[begin + place] == _NAME_BYTES[name, place]
            if same:
                return name
    return -1


@inner
def _find_features(data: np.ndarray, begin: int, end: int, spans: np.ndarray) -> tuple[int, int]:
    """Where the features of NAMES lie in an Example, the last of equal ones: (fault, place of a strange name)."""
    spans[:] = -1
    strange = -1
    while begin < end:
        number, wire, at, stop = _field(data, begin, end)
        if stop < 0:
            return BAD_MESSAGE, strange
        begin = stop
        while number == 1 and wire == DELIMITED and at < stop:
            number_2, wire_2, entry, entry_stop = _field(data, at, stop)
            if entry_stop < 0:
                return BAD_MESSAGE, strange
            at = entry_stop
            if number_2 == 1 and wire_2 == DELIMITED:
                name, name_at, value, value_stop = _entry(data, entry, entry_stop)
                if value_stop < 0:
                    return BAD_MESSAGE, strange
                if name >= 0:
                    spans[name, 0], spans[name, 1] = value, value_stop
                else:
                    strange = name_at
    return FINE, strange


@inner
def _entry(data: np.ndarray, position: int, end: int) -> tuple[int, int, int, int]:
    """A name with its Feature: (which of NAMES, the name's place, begin and end of the Feature); end -1: a fault."""
    which, name_at = -1, position
    value = stop = position  # an entry without a value has an empty one
    while position < end:
        number, wire, at, position = _field(data, position, end)
        if position < 0:
            return which, name_at, value, -1
        if number == 1 and wire == DELIMITED:
            which, name_at = _which(data, at, position), at
        elif number == 2 and wire == DELIMITED:
            value, stop = at, position
    return which, name_at, value, stop


@inner
def _wholes(data: np.ndarray, position: int, end: int, out: np.ndarray, place: int) -> tuple[int, int, int]:
    """The whole numbers of a Feature as columns from `place` on: (fault, place after them, the bad number)."""
    while position < end:
        kind, wire, at, position = _field(data, position, end)
        if position < 0:
            return BAD_MESSAGE, place, 0
        if kind != WHOLES or wire != DELIMITED:
            return WRONG_KIND, place, kind
        while at < position:
            number, wire, first, stop = _field(data, at, position)
            if stop < 0:
                return BAD_MESSAGE, place, 0
            at = stop
            if number != 1 or wire not in (DELIMITED, VARINT):
                continue
            while first < stop:
                value, first = _short_varint(data, first, stop)
                if first < 0:
                    return BAD_MESSAGE, place, 0
                if value < 0 or value > MAX_INDEX:
                    return BAD_INDEX, place, value
                out[np.uint64(place)] = value
                place += 1
    return FINE, place, 0


@inner
def _floats(data: np.ndarray, position: int, end: int, out_bits: np.ndarray, place: int) -> tuple[int, int, int]:
    """The floats of a Feature from `place` on, by their bits: (fault, place after them, the kind it has instead)."""
    while position < end:
        kind, wire, at, position = _field(data, position, end)
        if position < 0:
            return BAD_MESSAGE, place, 0
        if kind != FLOATS or wire != DELIMITED:
            return WRONG_KIND, place, kind
        while at < position:
            number, wire, first, stop = _field(data, at, position)
            if stop < 0 or (wire == DELIMITED and (stop - first) % 4 != 0):
                return BAD_MESSAGE, place, 0
            at = stop
            if number == 1 and wire in (DELIMITED, FOUR_BYTES):
                for start in range(first, stop, 4):
                    byte = np.uint64(start)
                    out_bits[np.uint64(place)] = (
                        np.uint32(data[byte])
                        | np.uint32(data[byte + _ONE]) << np.uint32(8)
                        | np.uint32(data[byte + _TWO]) << np.uint32(16)
                        | np.uint32(data[byte + _THREE]) << np.uint32(24)
                    )
                    place += 1
    return FINE, place, 0


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
    relevance_bits: np.ndarray,
    value_bits: np.ndarray,
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Parse the whole records of a block.

    The counts have a place a record, the other arrays a place a byte; `relevance_bits` and `value_bits` are the same
    memory as `relevances` and `values`. Gives (fault, the record's number, its position, the name that it is about, a
    number for the message, features stored, labels stored, feature columns, label columns, place of a strange name).
    """
    position = row = stored = tagged = int(np.int64(0))
    top_feature = top_label = strange = int(np.int64(-1))
    spans = np.empty((len(_NAME_LENGTHS), 2), np.int64)
    while position < data.size:
        end = position + HEAD_BYTES + read_bits(data, position, 8)
        fault, name, detail = FINE, INDICES, int(np.int64(0))
        first_feature, first_label = stored, tagged
        if masked_crc32c(data, position + HEAD_BYTES, end) != read_bits(data, end, 4):
            fault = BAD_SUM
        else:
            fault, found = _find_features(data, position + HEAD_BYTES, end, spans)
            strange = max(strange, found)
            if fault == FINE and spans[INDICES, 0] < 0 and spans[VALUES, 0] < 0:
                fault = NO_FEATURES
        if fault == FINE:
            fault, stored, detail = _wholes(data, spans[INDICES, 0], spans[INDICES, 1], indices, stored)
        if fault == FINE:
            name = VALUES
            fault, last, detail = _floats(data, spans[VALUES, 0], spans[VALUES, 1], value_bits, first_feature)
            if fault == FINE and last != stored:
                fault, name, detail = UNEQUAL, INDICES, last - first_feature
        if fault == FINE:
            fault, stored, top = _tidy_features(indices, values, first_feature, stored)
            top_feature = max(top_feature, top)
        if fault == FINE:
            name = LABELS
            fault, tagged, detail = _wholes(data, spans[LABELS, 0], spans[LABELS, 1], labels, tagged)
        if fault == FINE and spans[LABEL_VALUES, 0] >= 0:
            name = LABEL_VALUES
            begin, stop = spans[LABEL_VALUES, 0], spans[LABEL_VALUES, 1]
            fault, last, detail = _floats(data, begin, stop, relevance_bits, first_label)
            if fault == FINE and last != tagged:
                fault, name, detail = UNEQUAL, LABELS, last - first_label
        elif fault == FINE:
            relevances[first_label:tagged] = 1
        if fault == FINE:
            fault, tagged, top = _tidy_labels(labels, relevances, first_label, tagged)
            top_label = max(top_label, top)
        if fault != FINE:
            if fault == UNEQUAL:
                row_size = stored - first_feature if name == INDICES else tagged - first_label
                detail = (row_size << 32) | detail
            return fault, row, position, name, detail, stored, tagged, top_feature + 1, top_label + 1, strange
        feature_counts[row] = stored - first_feature
        label_counts[row] = tagged - first_label
        position = end + 4
        row += 1
    return FINE, row, position, LABELS, 0, stored, tagged, top_feature + 1, top_label + 1, strange


@inner
def _tidy_features(indices: np.ndarray, values: np.ndarray, begin: int, end: int) -> tuple[int, int, int]:
    """Make a row canonical: (fault, its new end, its highest column)."""
    top = previous = -1
    canonical = True
    for place in range(begin, end):
        column = np.int64(indices[place])
        value = values[place]
        if not np.isfinite(value):
            return NOT_FINITE, end, top
        canonical &= column > previous and value != 0
        previous = column
        top = max(top, column)
    if not canonical:
        end = sort_features(indices, values, begin, end)
    return FINE if end >= 0 else SUM_TOO_LARGE, end, top


@inner
def _tidy_labels(labels: np.ndarray, relevances: np.ndarray, begin: int, end: int) -> tuple[int, int, int]:
    """Make a row of labels canonical; of equal labels the first counts: (fault, its new end, its highest label)."""
    top = previous = -1
    canonical = True
    for place in range(begin, end):
        label = np.int64(labels[place])
        if not np.isfinite(relevances[place]):
            return NOT_FINITE, end, top
        canonical &= label > previous and relevances[place] != 0
        previous = label
        top = max(top, label)
    if canonical:
        return FINE, end, top
    keys = np.empty(end - begin, np.int64)
    for place in range(end - begin):
        keys[place] = (np.int64(labels[begin + place]) << 32) | place
    keys = sort_keys(keys)
    rated = relevances[begin:end].copy()
    kept, previous = begin, -1
    for key in keys:
        label, relevance = key >> 32, rated[key & 0xFFFFFFFF]
        if label != previous and relevance != 0:
            labels[kept], relevances[kept] = label, relevance
            kept += 1
        previous = label
    return FINE, kept, top
