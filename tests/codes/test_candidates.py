"""Candidates of a level against plain sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from labelwise.labelspace import tree as module
from labelwise.labelspace.tree import candidate_targets, children_of, training_nodes


@st.composite
def cases(draw):
    documents, nodes = draw(st.integers(0, 5)), draw(st.integers(1, 8))
    true = [sorted(draw(st.sets(st.integers(0, nodes - 1)))) for _ in range(documents)]
    n_ranks = draw(st.integers(1, nodes))
    ranked = [draw(st.permutations(range(nodes)))[: draw(st.integers(0, n_ranks))] for _ in range(documents)]
    return nodes, true, n_ranks, ranked, draw(st.integers(1, 9)), draw(st.integers(1, 3))


def matrix(true, nodes):
    indptr = np.cumsum([0, *map(len, true)])
    indices = np.array([node for row in true for node in row], np.int32)
    return sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(true), nodes))


@given(cases())
def test_true_nodes_first_then_the_highest_ranked(case):
    nodes, true, n_ranks, ranked, count, batch = case
    table = np.full((len(true), n_ranks), -1, np.int32)
    for row, own in enumerate(ranked):
        table[row, : len(own)] = own
    before, module.BATCH_DOCUMENTS = module.BATCH_DOCUMENTS, batch
    try:
        chosen = training_nodes(matrix(true, nodes), table, count)
    finally:
        module.BATCH_DOCUMENTS = before
    for row, (own, order) in enumerate(zip(true, ranked, strict=True)):
        both = [node for node in order if node in own]
        rest = [node for node in own if node not in order]
        others = [node for node in order if node not in own]
        expected = [*both, *rest, *others][:count]
        assert chosen[row].tolist() == expected + [-1] * (count - len(expected))


@given(cases())
def test_children_and_which_of_them_are_true(case):
    nodes, true, n_ranks, ranked, count, _ = case
    sizes = np.random.default_rng(count).integers(1, 4, nodes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    table = np.full((len(true), n_ranks), -1, np.int32)
    for row, own in enumerate(ranked):
        table[row, : len(own)] = own
    children = children_of(table, offsets)
    assert children.shape == (len(true), n_ranks * sizes.max())
    for row, own in zip(children.tolist(), ranked, strict=True):
        assert [child for child in row if child >= 0] == [c for p in own for c in range(offsets[p], offsets[p + 1])]
    below = [[int(offsets[node]) for node in own] for own in true]
    order = np.arange(len(true))[::-1].copy()
    targets = candidate_targets(children[order], matrix(below, int(offsets[-1])), order)
    for row, document in enumerate(order.tolist()):
        assert targets[row].tolist() == [float(child in below[document]) for child in children[document].tolist()]
