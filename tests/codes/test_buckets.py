"""Hash tables: against known values, scikit-learn's hash, formulas, and the original's files."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

import reference_kernels as reference
from labelwise.errors import ConfigError, DataError
from labelwise.kernels.buckets import murmur_buckets
from labelwise.labelspace.buckets import (
    PRIME,
    BucketTables,
    expected_collisions,
    members,
    read_lookups,
    repetitions_needed,
    universal_factors,
)

HASHES = [593689054, -68075478, 1085422463, 847579505, 1889779975, 236698494, -975490194, 1343918321, -1822472975]
BUCKETS = [9054, 4522, 2463, 9505, 9975, 8494, 9806, 8321, 7025, 6131, 1021, 3498]


def hashes(keys, seed):
    """With so many buckets that the signed hash can be read off the bucket."""
    found = np.empty(1, np.int64)
    numbers = []
    for key in keys:
        murmur_buckets(key, 1, seed, 1 << 40, found)
        numbers.append(int(found[0]) - (1 << 40 if found[0] >= 1 << 39 else 0))
    return numbers


def test_known_hashes():
    assert hashes(range(9), 0) == HASHES
    assert [reference.murmur(key, 0) for key in range(9)] == HASHES


def test_known_buckets():
    assert BucketTables(12, 10_000, (0,)).table(0).tolist() == BUCKETS


@given(keys=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50), seed=st.integers(0, 2**31 - 1))
def test_the_hash_is_scikit_learns(keys, seed):
    found = hashes(keys, seed)
    assert found == murmurhash3_32(np.array(keys, np.int32), seed=seed).tolist()
    assert found == [reference.murmur(key, seed) for key in keys]


@given(n_items=st.integers(1, 5000), n_buckets=st.integers(1, 100_000), number=st.integers(0, 40))
@settings(max_examples=40)
def test_universal_tables_follow_their_formula(n_items, n_buckets, number):
    tables = BucketTables(n_items, n_buckets, (number,), "universal", seed=5)
    a, b = universal_factors(5, number)
    assert tables.table(number).tolist() == [(a * x + b) % PRIME % n_buckets for x in range(n_items)]


@pytest.mark.parametrize("kind", ["murmur", "universal"])
def test_rows_are_columns_of_the_tables(kind):
    tables = BucketTables(1000, 37, (4, 0, 7), kind)
    whole = tables.side_by_side()
    assert whole.dtype == np.uint16
    np.testing.assert_array_equal(tables.rows(120, 340), whole[120:340])
    for column, number in enumerate((4, 0, 7)):
        np.testing.assert_array_equal(whole[:, column], tables.of([number]).table(number))


def test_balanced_tables_have_equal_buckets():
    table = BucketTables(1003, 10, (0, 1), "balanced").table(1)
    assert sorted(Counter(table.tolist()).values()) == [100] * 7 + [101] * 3
    assert (table != BucketTables(1003, 10, (0, 1), "balanced").table(0)).mean() > 0.8


def test_two_labels_share_a_bucket_as_often_as_expected():
    tables = BucketTables(400, 20, tuple(range(30)), "universal", seed=3).side_by_side()
    met = (tables[:, None] == tables[None]).mean(2)[np.triu_indices(400, 1)]
    assert abs(met.mean() - 1 / 20) < 0.003


def test_more_buckets_than_16_bits():
    tables = BucketTables(300, 70_000, (0,))
    assert tables.dtype == np.uint32
    assert tables.table(0).tolist() == [reference.murmur(label, 0) % 70_000 for label in range(300)]


def test_members_of_buckets():
    table = np.array([2, 0, 2, 1, 0], np.uint16)
    order, offsets = members(table, 4)
    assert order.tolist() == [1, 4, 3, 0, 2]
    assert offsets.tolist() == [0, 2, 3, 5, 5]


def test_files_of_the_original(tmp_path):
    tables = BucketTables(50, 7, (0, 3))
    tables.write_lookups(tmp_path)
    for number in (0, 3):
        bucket_order = np.load(tmp_path / f"bucket_order_{number}.npy")
        class_order = np.load(tmp_path / f"class_order_{number}.npy")
        counts = np.load(tmp_path / f"counts_{number}.npy")
        assert {bucket_order.dtype, class_order.dtype, counts.dtype} == {np.dtype(np.int64)}
        for bucket in range(7):
            assert set(class_order[counts[bucket] : counts[bucket + 1]]) == set(np.flatnonzero(bucket_order == bucket))
    found = read_lookups(tmp_path, 50, 7, [0, 3])
    np.testing.assert_array_equal(found[3], tables.table(3))
    assert found[3].dtype == np.uint16


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(49) % 7, "50 integers"),
        (np.zeros(50), "integers"),
        (np.full(50, 7), "must be from 0 to 6"),
        (np.full(50, -1), "must be from 0 to 6"),
        (None, "cannot read a table"),
    ],
)
def test_bad_files_are_reported(tmp_path, array, message):
    if array is not None:
        np.save(tmp_path / "bucket_order_0.npy", array)
    with pytest.raises(DataError, match=message) as error:
        read_lookups(tmp_path, 50, 7, [0])
    assert "bucket_order_0.npy" in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"PK\x03\x04" + content,
        lambda content: content.replace(b"(50,)", b"(50  "),
        lambda content: content.replace(b"(50,)", b"(99999999999999999999,)"),
        lambda content: content[:90],
    ],
)
def test_damaged_files_are_reported(tmp_path, change):
    """Headers are Python text, and other files may have the name: every exception becomes a DataError."""
    path = tmp_path / "bucket_order_0.npy"
    np.save(path, np.arange(50) % 7)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="cannot read a table of buckets"):
        read_lookups(tmp_path, 50, 7, [0])


def test_files_that_could_run_code_are_refused(tmp_path):
    np.save(tmp_path / "bucket_order_0.npy", np.array([{}] * 50), allow_pickle=True)
    with pytest.raises(DataError, match="cannot read a table"):
        read_lookups(tmp_path, 50, 7, [0])


@pytest.mark.parametrize(
    ("labels", "buckets", "bound"),
    [
        (105_033, 32, 8.0),
        (21_841, 512, 3.9),
        (670_091, 10_000, 3.4),
        (2_812_281, 10_000, 3.7),
        (49_460_000, 20_000, 4.0),
    ],
)
def test_repetitions_for_known_tasks(labels, buckets, bound):
    """The bound of the theory at a probability of 0.01."""
    assert repetitions_needed(labels, buckets, 0.01) in (math.ceil(bound - 0.05), math.ceil(bound + 0.05))


def test_expected_collisions():
    found = []
    for seed in range(40):
        tables = BucketTables(300, 6, (0, 1), "universal", seed).side_by_side()
        counts = np.unique(tables, axis=0, return_counts=True)[1]
        found.append((counts * (counts - 1) / 2).sum())
    assert np.mean(found) == pytest.approx(expected_collisions(300, 6, 2), rel=0.1)


def test_bad_sizes():
    with pytest.raises(ConfigError, match="labels"):
        BucketTables(0, 5, (0,))
    with pytest.raises(ConfigError, match="buckets"):
        BucketTables(5, 0, (0,))
    with pytest.raises(ConfigError, match="one bucket"):
        repetitions_needed(100, 1, 0.01)
