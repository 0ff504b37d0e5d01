"""TFRecord files: hand-made bytes, every rule, every error with its place, and what is written is read back."""

from __future__ import annotations

import gzip
import logging
import struct

import numpy as np
import pytest
from data_cases import plain, put
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.formats import tfrecord
from labelwise.data.formats import tfrecord as tfrecord_blocks
from labelwise.data.options import ReadOptions
from labelwise.data.read import detect, find_parts, read, read_splits
from labelwise.data.write import write
from labelwise.errors import DataError
from labelwise.runtime.threads import using_threads
from reference_records import example_row, framed


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def part(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def wholes(*values: int, packed: bool = True) -> bytes:
    if packed:
        return part(3, part(1, b"".join(map(varint, values))))
    return part(3, b"".join(b"\x08" + varint(value) for value in values))


def floats(*values: float, packed: bool = True) -> bytes:
    if packed:
        return part(2, part(1, struct.pack(f"<{len(values)}f", *values)))
    return part(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in values))


def example(**features: bytes) -> bytes:
    entries = [part(1, name.encode()) + part(2, content) for name, content in features.items()]
    return part(1, b"".join(part(1, entry) for entry in entries))


def document(labels=(), columns=(), values=(), relevances=None, packed=True) -> bytes:
    rated = [1.0] * len(labels) if relevances is None else relevances
    return example(
        labels=wholes(*labels, packed=packed),
        label_vals=floats(*rated, packed=packed),
        input_idxs=wholes(*columns, packed=packed),
        input_vals=floats(*values, packed=packed),
    )


@pytest.fixture
def read_file(tmp_path):
    """Read a file of these messages."""

    def read_messages(*messages: bytes) -> Dataset:
        return tfrecord.read(put(tmp_path / "a.tfrecords", b"".join(map(framed, messages))), ReadOptions())

    return read_messages


def rows(data: Dataset) -> list[tuple[dict, dict]]:
    """For each document its labels and its features as plain Python."""
    found = []
    for row in range(len(data)):
        one, two = data.labels[[row]], data.features[[row]]
        pairs = [zip(m.indices.tolist(), m.data.tolist(), strict=True) for m in (one, two)]
        found.append((dict(pairs[0]), dict(pairs[1])))
    return found


# --- reading --------------------------------------------------------------------------------------------------


def test_bytes_written_out_by_hand(tmp_path):
    message = bytes.fromhex(
        "0a55"
        "0a13" "0a066c6162656c73" "1209" "1a07" "0a03" "03ac02" "1000"  # labels, and an unknown field in its list
        "0a12" "0a0a696e7075745f69647873" "1204" "1a02" "0805"  # input_idxs, unpacked
        "0a17" "0a0a696e7075745f76616c73" "1209" "1207" "0d0000003f" "1000"  # input_vals, unpacked: 0.5
        "0a11" "0a056f74686572" "1208" "0a06" "0a0468657265"  # other: bytes
    )  # fmt: skip
    head = struct.pack("<Q", len(message))
    path = put(tmp_path / "x.dat", framed(message))
    assert path.read_bytes()[:8] == head
    assert detect(path).name == "tfrecord"
    assert rows(read(path)) == [({3: 1, 300: 1}, {5: 0.5})]


def test_a_frame_written_out_by_hand(tmp_path):
    """Length 0 and its checksums: CRC-32C of eight zero bytes is 0x8C28B28A, of nothing 0."""
    turned = ((0x8C28B28A >> 15 | 0x8C28B28A << 17) + 0xA282EAD8) % 2**32
    frame = bytes(8) + struct.pack("<I", turned) + struct.pack("<I", 0xA282EAD8)
    assert framed(b"") == frame
    with pytest.raises(DataError, match="record 1 at byte 0: it has neither 'input_idxs' nor 'input_vals'"):
        read(put(tmp_path / "a.tfrecords", frame))


RULES = {
    "as MACH writes": ([document([1, 3], [0, 7], [0.5, 2])], [({1: 1, 3: 1}, {0: 0.5, 7: 2})], (8, 4)),
    "unpacked": ([document([1, 300], [9, 70000], [0.5, 2], packed=False)], [({1: 1, 300: 1}, {9: 0.5, 70000: 2})], (70001, 301)),
    "no labels": ([document([], [1], [1])], [({}, {1: 1})], (2, 0)),
    "no features": ([document([1])], [({1: 1}, {})], (0, 2)),
    "lists left out": ([example(labels=b"", input_idxs=b"", input_vals=b"")], [({}, {})], (0, 0)),
    "no labels at all": ([example(input_idxs=wholes(1), input_vals=floats(3))], [({}, {1: 3})], (2, 0)),
    "no label_vals": ([example(input_vals=floats(3), input_idxs=wholes(1), labels=wholes(2))], [({2: 1}, {1: 3})], (2, 3)),
    "relevances": ([document([4, 2], [1], [1], [0.5, 3])], [({2: 3, 4: 0.5}, {1: 1})], (2, 5)),
    "a label of value 0": ([document([4, 2], [1], [1], [0, 3])], [({2: 3}, {1: 1})], (2, 5)),
    "a label twice": ([document([4, 2, 4], [1], [1], [0.5, 3, 7])], [({2: 3, 4: 0.5}, {1: 1})], (2, 5)),
    "columns in any order": ([document([0], [9, 2, 9, 4], [1, 1, 2, 0])], [({0: 1}, {2: 1, 9: 3})], (10, 1)),
    "a zero at the end": ([document([0], [1, 9], [1, 0])], [({0: 1}, {1: 1})], (10, 1)),
    "the last of equal names": ([document([0], [1], [1])[:2] + document([0], [1], [1])[2:]], [({0: 1}, {1: 1})], (2, 1)),
    "features in two pieces": ([example(input_idxs=wholes(1)) + example(input_vals=floats(2))], [({}, {1: 2})], (2, 0)),
    "lists in two pieces": ([example(input_idxs=wholes(1) + wholes(4, packed=False), input_vals=floats(2, 3))], [({}, {1: 2, 4: 3})], (5, 0)),
    "several records": ([document([1], [1], [1]), document(), document([0], [0], [2])], [({1: 1}, {1: 1}), ({}, {}), ({0: 1}, {0: 2})], (2, 2)),
    "the largest column": ([document([0], [2**31 - 2], [1])], [({0: 1}, {2**31 - 2: 1})], (2**31 - 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules(read_file, name):
    messages, expected, (n_features, n_labels) = RULES[name]
    found = read_file(*messages)
    assert rows(found) == expected
    assert (found.features.shape[1], found.n_labels) == (n_features, n_labels)


def test_other_features_are_passed_over_and_told_once(read_file, caplog):
    odd = example(input_idxs=wholes(1), weight=floats(2), input_vals=floats(3), note=part(1, part(1, b"x")))
    with caplog.at_level(logging.WARNING):
        assert rows(read_file(odd, odd)) == [({}, {1: 3})] * 2
    assert [record.getMessage().count("'note'") for record in caplog.records] == [1]


def test_fields_that_nobody_knows_are_passed_over(read_file):
    extra = b"\x10\x05" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + part(7, b"any")
    assert rows(read_file(extra + document([1], [1], [1]) + extra)) == [({1: 1}, {1: 1})]


ERRORS = {
    "a negative label": (document([1, -3], [1], [1]), "'labels' contains -3; numbers from 0 to 2,147,483,646"),
    "a huge column": (document([1], [2**31 - 1], [1]), "'input_idxs' contains 2,147,483,647; numbers from 0"),
    "a column beyond 64 bits": (example(input_idxs=part(3, part(1, b"\xff" * 11))), "the message is invalid"),
    "fewer values": (document([1], [1, 2, 3], [1]), "'input_idxs' has 3 numbers and 'input_vals' 1; both need the same number"),
    "more values": (document([1], [1], [1, 2]), "'input_idxs' has 1 numbers and 'input_vals' 2"),
    "fewer label_vals": (document([1, 2], [1], [1], [1]), "'labels' has 2 numbers and 'label_vals' 1"),
    "nan": (document([1], [1], [float("nan")]), "'input_vals' contains NaN or infinity"),
    "infinity": (document([1], [1], [float("-inf")]), "'input_vals' contains NaN or infinity"),
    "nan of a label": (document([1], [1], [1], [float("nan")]), "'label_vals' contains NaN or infinity"),
    "a sum too large": (document([1], [1, 1], [3e38, 3e38]), "does not fit a float32"),
    "labels as bytes": (example(labels=part(1, part(1, b"x")), input_idxs=b""), "'labels' contains bytes; it needs whole"),
    "columns as floats": (example(input_idxs=floats(1.0)), "'input_idxs' contains floats; it needs whole numbers"),
    "values as numbers": (example(input_idxs=wholes(1), input_vals=wholes(1)), "'input_vals' contains whole numbers; it needs"),
    "another kind of record": (example(image=part(1, part(1, b"png"))), "it has neither 'input_idxs' nor 'input_vals'"),
    "no message": (b"just some text", "this is not a tf.train.Example"),
    "a length too large": (b"\x0a\x7f\x0a", "this is not a tf.train.Example"),
    "floats of three bytes": (example(input_vals=part(2, part(1, b"abc"))), "the message is invalid"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_file_record_and_byte(read_file, name):
    message, sentence = ERRORS[name]
    sound = document([1], [1], [1])
    with pytest.raises(DataError) as caught:
        read_file(sound, message, sound)
    assert f"a.tfrecords: record 2 at byte {len(framed(sound))}: " in str(caught.value)
    assert sentence in str(caught.value)


def test_labels_beyond_memory_are_refused(read_file):
    with pytest.raises(DataError, match=r"label 2,000,000,000 is too large; at most 134,217,728"):
        read_file(document([2_000_000_000], [1], [1]))


def test_every_single_bit_is_guarded(tmp_path):
    """Whatever bit turns, the record it is in is named."""
    messages = [framed(document([1], [2], [3])), framed(document([4], [5], [6]))]
    whole = b"".join(messages)
    for place in range(0, len(whole) * 8, 5):
        raw = bytearray(whole)
        raw[place // 8] ^= 1 << place % 8
        record = 1 if place // 8 < len(messages[0]) else 2
        with pytest.raises(DataError, match=rf"record {record} at byte \d+: the checksum .* again"):
            tfrecord.read(put(tmp_path / "a.tfrecords", bytes(raw)), ReadOptions())


def test_a_cut_file_is_told_with_its_place(tmp_path):
    first, second = framed(document([1], [2], [3])), framed(document([4], [5], [6]))
    for length in range(len(first) + len(second)):
        path = put(tmp_path / "a.tfrecords", (first + second)[:length])
        if length == len(first):
            assert len(tfrecord.read(path, ReadOptions())) == 1
            continue
        message = (
            "no documents" if not length else rf"record {1 + (length > len(first))} at byte \d+: the file is truncated"
        )
        with pytest.raises(DataError, match=message):
            tfrecord.read(path, ReadOptions())


def test_a_record_that_claims_too_much(tmp_path):
    head = struct.pack("<Q", 1 << 40)
    raw = framed(document([1], [2], [3])) + head + framed(head)[-4:]
    with pytest.raises(DataError, match=r"record 2 at byte .*: its length is 1,099,511,627,776 bytes"):
        tfrecord.read(put(tmp_path / "a.tfrecords", raw), ReadOptions())


def test_an_earlier_fault_goes_before_a_later_one(tmp_path):
    raw = framed(document([1], [2], [3])) + framed(document([-1])) + b"rubbish that is no head"
    with pytest.raises(DataError, match="record 2 at byte"):
        tfrecord.read(put(tmp_path / "a.tfrecords", raw), ReadOptions())


# --- against the twin -------------------------------------------------------------------------------------------

small_numbers = st.lists(st.sampled_from([0, 1, 5, 127, 128, 300, 2**31 - 2]), max_size=5)


@st.composite
def messages(draw):
    """Sound documents in every encoding, and some that are not sound."""
    columns, labels = draw(small_numbers), draw(small_numbers)
    entries = {
        "labels": wholes(*labels, packed=draw(st.booleans())),
        "label_vals": floats(*[draw(st.sampled_from([0, 1, 2.5])) for _ in labels], packed=draw(st.booleans())),
        "input_idxs": wholes(*columns, packed=draw(st.booleans())),
        "input_vals": floats(*[draw(st.sampled_from([0, 1, -1, 3e38])) for _ in columns], packed=draw(st.booleans())),
        "x": draw(st.sampled_from([b"", wholes(1), part(1, part(1, b"y"))])),
    }
    names = draw(st.permutations(list(entries)))
    message = bytearray(example(**{name: entries[name] for name in names[draw(st.integers(0, 2)) :]}))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = draw(st.integers(0, len(message) - 1))
        message[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(message)


@settings(max_examples=150, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=3))
def test_rows_are_as_the_twin_says(listed):
    twins = [example_row(message) for message in listed]
    raw = np.frombuffer(bytearray(b"".join(map(framed, listed))), np.uint8)
    block = tfrecord_blocks.RecordBlock(raw, 1, len(listed))
    if None in twins:
        with pytest.raises(DataError, match=f"record {twins.index(None) + 1} at"):
            tfrecord._parse(block, "made up")
        return
    found, _ = tfrecord._parse(block, "made up")
    ends = [np.cumsum(counts)[:-1] for counts in (found.label_counts, found.feature_counts)]
    columns = [np.split(found.labels, ends[0]), np.split(found.relevances, ends[0])]
    columns += [np.split(found.indices, ends[1]), np.split(found.values, ends[1])]
    for row, twin in enumerate(twins):
        assert [column[row].tolist() for column in columns] == list(twin)


# --- writing ----------------------------------------------------------------------------------------------------


def drawn(rows: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    features = sparse.random_array((rows, 70_000), density=5e-4, format="csr", dtype=np.float32, rng=rng)
    labels = sparse.random_array((rows, 900), density=3e-3, format="csr", dtype=np.float32, rng=rng)
    return Dataset(labels, features=features)


def same(found: Dataset, expected: Dataset) -> None:
    for mine, theirs in ((found.labels, expected.labels), (found.features, expected.features)):
        assert mine.shape == theirs.shape
        np.testing.assert_array_equal(mine.indptr, theirs.indptr)
        np.testing.assert_array_equal(mine.indices, theirs.indices)
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_what_is_written_is_what_the_twin_reads(tmp_path):
    data = Dataset(np.array([[0, 1, 0], [2, 0, 0]]), features=np.array([[0, 1.5, 0, 0], [0, 0, 0, 0]]))
    write(data, tmp_path / "a.tfrecords")
    expected = [
        document([1, 2], [1, 3], [1.5, 0], [1, 0]),  # the counts of labels and features, declared by zeros
        document([0], [], [], [2]),
    ]
    assert (tmp_path / "a.tfrecords").read_bytes() == b"".join(map(framed, expected))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [1, 3000, 1 << 20])
def test_many_blocks_are_as_one(tmp_path, monkeypatch, threads, block):
    data = drawn(800)
    monkeypatch.setattr(tfrecord, "READ_BYTES", block)
    monkeypatch.setattr("labelwise.data.formats.tfrecord.FIRST_BLOCK_BYTES", min(block, 64 << 10))
    monkeypatch.setattr("labelwise.data.formats.sparse_text.WRITE_BYTES", 20_000)
    with using_threads(threads):
        write(data, tmp_path / "a.tfrecords")
        same(read(tmp_path / "a.tfrecords"), data)


def test_a_data_set_without_documents_is_refused(tmp_path):
    with pytest.raises(DataError, match="no documents"):
        write(Dataset(sparse.csr_array((0, 3)), features=sparse.csr_array((0, 2))), tmp_path / "a.tfrecords")
    assert list(tmp_path.iterdir()) == []


# --- files and folders ------------------------------------------------------------------------------------------


def test_several_files_are_one_part_in_the_order_of_their_names(tmp_path):
    shards = {"b_train.tfrecords": 2, "a_train.tfrecords.gz": 1, "c_train.tfrecord": 3, "x_test.tfrecords": 9}
    for name, column in shards.items():
        raw = framed(document([column], [column], [1]))
        put(tmp_path / name, gzip.compress(raw) if name.endswith("gz") else raw)
    put(tmp_path / "b_train.tfrecords.gz", b"the plain one is read")
    found, parts = find_parts(tmp_path)
    assert found.name == "tfrecord"
    assert list(parts) == ["train", "test"]
    assert [list(row[0]) for row in rows(read(tmp_path, split="train"))] == [[1], [2], [3]]
    both = read_splits(tmp_path)
    assert plain(both["test"]) == [{"9": 1}]
    assert list(both["test"].label_names) == ["0", "1", "2", "3", "9"]


def test_a_file_called_after_the_split_is_the_part_alone(tmp_path):
    for column, name in enumerate(["train.tfrecords", "a_train.tfrecords", "notes.tfrecords"]):
        put(tmp_path / name, framed(document([column], [column], [1])))
    assert {split: path.name for split, path in find_parts(tmp_path)[1].items()} == {
        "train": "train.tfrecords", "a_train": "a_train.tfrecords", "notes": "notes.tfrecords"
    }  # fmt: skip


def test_a_fault_in_one_of_several_files_names_that_file(tmp_path):
    put(tmp_path / "a_train.tfrecords", framed(document([1], [1], [1])))
    put(tmp_path / "b_train.tfrecords", framed(document([-1], [1], [1])))
    with pytest.raises(DataError, match=r"b_train\.tfrecords: record 1 at byte 0: 'labels' contains -1"):
        read(tmp_path, split="train")


def test_an_empty_file_among_several_is_refused(tmp_path):
    put(tmp_path / "a_train.tfrecords", framed(document([1], [1], [1])))
    (tmp_path / "b_train.tfrecords").touch()
    with pytest.raises(DataError, match=r"b_train\.tfrecords: the file is empty"):
        read(tmp_path, split="train")


@pytest.mark.parametrize("content", [b"", b"1 3 2\n0,1 0:1.5\n", b"short", bytes(12), framed(b"")[:11]])
def test_what_is_not_taken_for_it(tmp_path, content):
    assert tfrecord.recognises(put(tmp_path / "file.dat", content)) is False
