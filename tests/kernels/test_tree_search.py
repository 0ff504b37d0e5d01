"""Searching several levels in one call against a reference implementation, and tables of addresses."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse

import reference_kernels as reference
from labelwise.kernels.intrinsics import address_row, array_at
from labelwise.linear.search import LabelChoice, TreeSearch
from labelwise.linear.weights import ChunkedWeights, ChunkPart

N_FEATURES = 300


def level(rng, offsets):
    """A level whose numbers are quarters, so that sums and powers in float32 are exact, and dense as well."""
    n_children = offsets[-1]
    density = rng.random((N_FEATURES, 1)) * 0.3  # some features have weights for most children, some for none
    weights = np.where(
        rng.random((N_FEATURES, n_children)) < density, rng.integers(-3, 4, (N_FEATURES, n_children)) / 4, 0
    )
    bias = rng.integers(-4, 5, n_children) / 4
    parts = []
    for first, last in itertools.pairwise(offsets):
        rows, lanes = np.nonzero(weights[:, first:last])
        features, counts = np.unique(rows, return_counts=True)
        values = weights[:, first:last][rows, lanes]
        parts.append(ChunkPart(features.astype(np.int32), counts, lanes, values, bias[first:last].astype(np.float32)))
    return ChunkedWeights.joined(parts, N_FEATURES, np.asarray(offsets)), (weights, bias, offsets)


def random_tree(rng, widest):
    """Three levels; with `widest` above 256 the middle one needs two bytes a lane and the others one."""
    middle = [0, 5, 5 + widest]
    last = np.cumsum([0, *rng.integers(0, 5, middle[-1])])
    return zip(*(level(rng, offsets) for offsets in ([0, 2], middle, last.tolist())), strict=True)


def documents(rng, n):
    X = sparse.random_array((n, N_FEATURES), density=0.1, format="csr", rng=rng, dtype=np.float32)
    X.data = rng.integers(1, 4, len(X.data)).astype(np.float32)
    X.sort_indices()
    return X


@pytest.mark.parametrize("widest", [9, 300])
@given(seed=st.integers(0, 2**32 - 1), beam=st.integers(1, 12), k=st.integers(1, 9), choose=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_search_gives_what_its_reference_gives(widest, seed, beam, k, choose):
    rng = np.random.default_rng(seed)
    levels, dense = random_tree(rng, widest)
    names = rng.permutation(levels[-1].n_children)
    allowed = [np.ones(one.n_children, bool) for one in levels]
    if choose:
        allowed[-1] = rng.random(len(names)) < 0.3
        for depth in (2, 1):
            offsets = dense[depth][2]
            allowed[depth - 1] = np.array([allowed[depth][a:b].any() for a, b in itertools.pairwise(offsets)])
    X = documents(rng, 20)
    search = TreeSearch(levels, names, "log_l2_hinge")
    choice = LabelChoice(allowed[-1] if choose else None)
    together = search.best(X, beam, k, choice)
    for row in range(X.shape[0]):
        expected = reference.search_row(X[[row]].toarray()[0], dense, beam, k, 2, allowed, names)
        alone = search.best(X[row : row + 1], beam, k, choice)
        for ids, scores in ((together.ids[row], together.scores[row]), (alone.ids[0], alone.scores[0])):
            assert [(i, s) for i, s in zip(ids.tolist(), scores.tolist(), strict=True) if i >= 0] == expected


@pytest.mark.parametrize("again", [copy.deepcopy, lambda search: pickle.loads(pickle.dumps(search))])
def test_a_copy_has_addresses_of_its_own(again):
    rng = np.random.default_rng(3)
    levels, _ = random_tree(rng, 9)
    search = TreeSearch(levels, np.arange(levels[-1].n_children))
    X = documents(rng, 1)
    expected = search.best(X, 5, 5)
    other = again(search)
    mine, theirs = (
        {number for run in one._runs for number in run.levels[0][:, :38:2].ravel().tolist()} for one in (search, other)
    )
    assert not mine & theirs
    del search, levels
    found = other.best(X, 5, 5)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


@njit
def _added_up(row, integers, floats):
    return array_at(row, 0, integers).sum(), array_at(row, 1, floats).sum(), len(array_at(row, 2, integers))


def test_arrays_are_found_by_their_address():
    integers, floats, nothing = np.arange(7), np.arange(5, dtype=np.float32) / 2, np.empty(0, np.int64)
    row = np.array(address_row([integers, floats, nothing]), np.int64)
    assert _added_up(row, integers[:0], floats[:0]) == (21, 5.0, 0)


@pytest.mark.parametrize("array", [np.zeros((2, 2)), np.zeros(8)[::2], np.zeros(17, np.uint8)[1:].view(np.float64)])
def test_arrays_without_a_usable_address_are_refused(array):
    with pytest.raises(ValueError, match="aligned, contiguous vectors"):
        address_row([array])
