"""Packed weights: the same weights as by row, damage that is found at opening or at first use, folders of version 1."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import ModelFormatError
from labelwise.linear.search import beam_search
from labelwise.linear.weights import ChunkedWeights, ChunkPart, PackedWeights

PRECISIONS = ("float32", "float16", "int8")
N_FEATURES = 700
OFFSETS = np.array([0, 5, 5, 45, 60])


def random_level(rng, n_features=N_FEATURES, offsets=OFFSETS):
    """Frequent features have weights for most children, and are in front."""
    density = np.exp(-np.arange(n_features) / (n_features / 5))[:, None]
    parts = []
    for width in np.diff(offsets):
        dense = np.where(rng.random((n_features, width)) < density, rng.normal(size=(n_features, width)), 0)
        rows, lanes = np.nonzero(dense)
        features, counts = np.unique(rows, return_counts=True)
        bias = rng.normal(size=width).astype(np.float32)
        parts.append(ChunkPart(features.astype(np.int32), counts, lanes, dense[rows, lanes], bias))
    return ChunkedWeights.joined(parts, n_features, np.asarray(offsets))


@pytest.mark.parametrize("offsets", [OFFSETS, [0, 300], [0, 0, 1]])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_packing_and_unpacking_changes_nothing(precision, offsets):
    level = random_level(np.random.default_rng(1), offsets=np.asarray(offsets)).stored_as(precision)
    packed = PackedWeights.of(level)
    again = packed.unpacked()
    for name in ("chunk_offsets", "features", "row_offsets", "lanes", "values", "bias", "scales"):
        np.testing.assert_array_equal(getattr(again, name), getattr(level, name), err_msg=name)
        assert getattr(again, name).dtype == getattr(level, name).dtype
    assert packed.n_weights == level.n_weights
    assert len(packed.full_values) > 16, "some rows are full"


def test_an_8_bit_level_takes_little_more_than_its_weights():
    packed = PackedWeights.of(random_level(np.random.default_rng(2), 20_000, np.array([0, 64])).stored_as("int8"))
    total = sum(array.nbytes for array in packed.to_tensors("x").values())
    assert total < 2.2 * packed.n_weights + 1000


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_a_changed_file_is_refused_or_searched_without_harm(tmp_path_factory, seed):
    """One bit or one number of any array, at opening, at the first search, and when everything is checked."""
    rng = np.random.default_rng(seed)
    level = PackedWeights.of(random_level(np.random.default_rng(3)).stored_as("int8"))
    tensors = {name: array.copy() for name, array in level.to_tensors("x").items()}
    name = str(rng.choice([name for name, array in tensors.items() if array.size]))
    array = tensors[name]
    if rng.random() < 0.2:
        tensors[name] = array[:-1] if rng.random() < 0.5 else np.append(array, array[:1])
    elif array.dtype.kind in "iu" and rng.random() < 0.5:
        limits = np.iinfo(array.dtype)
        array[rng.integers(len(array))] = (limits.min, limits.max, 0, limits.max // 2)[rng.integers(4)]
    else:
        array.view(np.uint8)[rng.integers(array.nbytes)] ^= 1 << int(rng.integers(8))
    documents = planted_documents(rng)
    path = tmp_path_factory.getbasetemp()
    for eager in (True, False):
        try:
            opened = PackedWeights.from_tensors("x", tensors, N_FEATURES, level.children_offsets, path)
            if eager:
                opened.check()
            top = beam_search(documents, [root(), opened], np.arange(60), 4, 5, "log_l3_hinge")
            assert (top.ids < 60).all()
            opened.unpacked()
        except ModelFormatError as error:
            assert "the weights of x are damaged" in str(error)


def root():
    """A level of four nodes without weights."""
    empty = np.empty(0, np.int64)
    part = ChunkPart(empty.astype(np.int32), empty, empty, empty, np.zeros(4, np.float32))
    return ChunkedWeights.joined([part], N_FEATURES, np.array([0, 4]))


def planted_documents(rng):
    from scipy import sparse

    X = sparse.random_array((20, N_FEATURES), density=0.1, format="csr", rng=rng, dtype=np.float32)
    X.sort_indices()
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int64)
    return X


def test_damage_is_found_when_the_chunk_is_used_first(tmp_path):
    level = PackedWeights.of(random_level(np.random.default_rng(3)))
    tensors = level.to_tensors("x")
    lanes = tensors["x.lanes"].copy()
    lanes[-1] = 59
    opened = PackedWeights.from_tensors(
        "x", {**tensors, "x.lanes": lanes}, N_FEATURES, level.children_offsets, tmp_path
    )
    documents = planted_documents(np.random.default_rng(0))
    first = beam_search(documents, [root(), opened], np.arange(60), 1, 3)
    assert (first.ids < 5).all(), "the first node wins all ties, and its children are sound"
    assert opened.checked.tolist() == [1, 0, 0, 0]
    with pytest.raises(ModelFormatError, match="the weights of x are damaged"):
        beam_search(documents, [root(), opened], np.arange(60), 4, 3)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", ["values", "full_values"])
@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_values_that_are_no_numbers_are_damage(precision, name, number):
    level = random_level(np.random.default_rng(0)).stored_as(precision)
    tensors = {key: np.array(array) for key, array in PackedWeights.of(level).to_tensors("w").items()}
    sound = PackedWeights.from_tensors("w", tensors, N_FEATURES, OFFSETS, Path("file"))
    last = len(OFFSETS) - 2
    sound.check(np.array([last]))
    tensors[f"w.{name}"][0] = number  # of the first chunk
    for chunks in (np.array([0]), None):
        damaged = PackedWeights.from_tensors("w", tensors, N_FEATURES, OFFSETS, Path("file"))
        damaged.check(np.array([last]))
        for _ in range(2):  # it stays damaged
            with pytest.raises(ModelFormatError, match="damaged: some are not finite"):
                damaged.check(chunks)


def test_chunks_are_sound_for_other_threads_only_after_all_checks(monkeypatch):
    level = random_level(np.random.default_rng(0))
    weights = PackedWeights.from_tensors(
        "w", PackedWeights.of(level).to_tensors("w"), N_FEATURES, OFFSETS, Path("file")
    )
    seen, plain = [], PackedWeights._are_finite

    def are_finite(self, chunks):
        seen.append(self.checked.copy())
        return plain(self, chunks)

    monkeypatch.setattr(PackedWeights, "_are_finite", are_finite)
    weights.check()
    assert (seen[0] == 0).all()
    assert (weights.checked == 1).all()
