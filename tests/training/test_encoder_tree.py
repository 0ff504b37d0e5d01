"""Parts of fine-tuning through a tree: initial heads compared with scikit-learn, levels, matched nodes, candidates."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.svm import LinearSVC
from torch import nn

from labelwise.data.csr import Blocks
from labelwise.labelspace.tree import LabelTree, candidate_targets
from labelwise.linear.solver import SolverConfig
from labelwise.nn.config import HeadConfig, LossConfig, TrainingConfig
from labelwise.nn.encode import EncoderHead
from labelwise.nn.fine_tuning import NodeOutputs, linear_head, matched_nodes
from labelwise.nn.inputs import Part, Vectors
from labelwise.nn.level_networks import best_of_batch
from labelwise.nn.levels import Parents
from labelwise.nn.train.fit import NetworkFitting
from labelwise.runtime.budget import NO_LIMIT

SOLVER = SolverConfig(cost_positive=1.5, cost_negative=1.5, tolerance=1e-4, max_passes=3000, threshold=0.0)


@pytest.fixture(scope="module")
def planted():
    """Vectors of documents, and their nodes below two parents with three children each, as counts."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(80, 6)).astype(np.float32)
    scores = vectors @ rng.normal(size=(6, 6)) + 0.3 * rng.normal(size=(80, 6))
    counts = np.where(scores > 1.2, rng.integers(1, 4, scores.shape), 0)
    return vectors, sparse.csr_array(counts.astype(np.float32))


@pytest.mark.parametrize("weighted", [False, True])
def test_initial_weights_are_those_of_support_vector_machines(planted, weighted):
    vectors, targets = planted
    parents = np.where(
        np.arange(80)[:, None] % 3 == 0, [[0, 1]], np.where(np.arange(80) % 2, 0, 1)[:, None] * [[1, -1]]
    )
    offsets = np.array([0, 3, 6])
    part = Part(Vectors(vectors), targets, parents=Parents(parents, np.empty((80, 0)), offsets))
    weight, bias = linear_head(vectors, part, SOLVER, weighted, 0, NO_LIMIT).values()
    for node in range(6):
        rows = np.flatnonzero((parents == node // 3).any(1))
        counts = targets.toarray()[rows, node]
        oracle = LinearSVC(C=1.5, loss="squared_hinge", dual=True, tol=1e-6, max_iter=100_000)
        oracle.fit(vectors[rows], counts > 0, np.where(counts > 0, counts, 1) if weighted else None)
        np.testing.assert_allclose(weight[node], oracle.coef_[0], atol=5e-3)
        np.testing.assert_allclose(bias[node], oracle.intercept_[0], atol=5e-3)


def test_the_first_level_is_trained_on_all_documents(planted):
    vectors, targets = planted
    weight = linear_head(vectors, Part(Vectors(vectors), targets), SOLVER, False, 0, NO_LIMIT)["weight"]
    oracle = LinearSVC(C=1.5, loss="squared_hinge", dual=True, tol=1e-6, max_iter=100_000)
    oracle.fit(vectors, targets.toarray()[:, 2] > 0)
    np.testing.assert_allclose(weight[2], oracle.coef_[0], atol=5e-3)


@pytest.mark.parametrize("has_candidates", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_a_level_is_that_of_its_scores(planted, has_candidates, weighted):
    vectors, targets = planted[0][:5], planted[1][:5]
    parents = Parents(np.zeros((5, 1), np.int32), np.ones((5, 1)), np.array([0, 3, 6])) if has_candidates else None
    loss = LossConfig(name="squared_hinge", reduction="mean")
    head = NodeOutputs(6, 6, HeadConfig(loss=loss, dropout=0.0)).initialise(np.ones(6), 10, 0)
    part = Part(Vectors(vectors), targets, parents=parents)
    fit = NetworkFitting(
        EncoderHead(nn.Identity(), head), part, None, TrainingConfig(), of_level=True, weighted=weighted
    )
    found = fit.loss(fit.load(np.arange(5), 0))
    own = torch.from_numpy(targets.toarray())[:, : 3 if has_candidates else 6]
    with torch.no_grad():
        scores = (torch.from_numpy(vectors) @ head.weight.T + head.bias)[:, : own.shape[1]]
    sign = torch.where(own > 0, 1.0, -1.0)
    weights = own.clamp_min(1) if weighted else torch.ones_like(own)
    torch.testing.assert_close(found, (weights * (1 - sign * scores).clamp_min(0) ** 2).mean())


def test_a_flat_level_has_no_array_of_documents_times_labels():
    n_labels = 1_000_000
    labels = sparse.csr_array((np.ones(4, np.float32), ([0, 1, 1, 3], [5, 7, n_labels - 1, 0])), shape=(4, n_labels))
    head = NodeOutputs(1, n_labels, HeadConfig())
    fit = NetworkFitting(
        EncoderHead(nn.Identity(), head), Part(Vectors(np.ones((4, 1))), labels), None, TrainingConfig()
    )
    loaded = fit.load(np.array([3, 0, 1]), 0)
    assert loaded.candidates is None
    assert loaded.targets.labels.tolist() == [0, 5, 7, n_labels - 1]
    assert loaded.targets.documents.tolist() == [0, 1, 2, 2]


def test_best_children_are_ranked_by_the_product_along_the_path():
    head = NodeOutputs(1, 4, HeadConfig(loss=LossConfig(name="squared_hinge"), dropout=0.0))
    head.load(np.array([[0.9], [0.2], [2.0], [-1.0]], np.float32), np.zeros(4, np.float32))
    parents = Parents(np.array([[1, 0]]), np.array([[0.5, 1.0]], np.float32), np.array([0, 2, 4]))
    nodes, scores = best_of_batch(EncoderHead(nn.Identity(), head), (torch.ones(1, 1),), 3, parents)
    assert nodes.tolist() == [[0, 1, 2]]
    assert scores[0].tolist() == pytest.approx([np.exp(-(0.1**3)), np.exp(-(0.8**3)), 0.5], rel=1e-5)


def test_matched_nodes_use_words_and_vectors():
    rng = np.random.default_rng(1)
    labels = np.eye(8, dtype=np.float32)[rng.integers(0, 8, 240)]
    tree = LabelTree.from_bounds(np.arange(8), [np.array([0, 4, 8])])
    targets = tree.aggregate(sparse.csr_array(labels))
    words = sparse.csr_array(labels[:, ::2])  # words know the even labels only
    vectors = labels + 0.05 * rng.normal(size=labels.shape).astype(np.float32)
    features = [Blocks(words, vectors.astype(np.float32)), Blocks(words[:20], vectors[:20])]
    ranked = matched_nodes(tree, targets, features, 2, 0, NO_LIMIT)
    assert ranked[0].ids.shape == (240, 2)
    np.testing.assert_array_equal(ranked[1].ids[:, 0], labels[:20].argmax(1))


def test_targets_of_candidates_have_the_values_of_the_matrix():
    true = sparse.csr_array(np.array([[0, 3, 0, 1], [0, 0, 0, 0], [2, 0, 0, 0]], np.float32))
    candidates = np.array([[3, 1, -1], [0, 1, 2], [1, 0, -1]])
    expected = [[1, 3, 0], [0, 0, 0], [0, 2, 0]]
    np.testing.assert_array_equal(candidate_targets(candidates, true, np.arange(3)), expected)
    np.testing.assert_array_equal(candidate_targets(candidates[1:2], true, np.array([1])), [[0, 0, 0]])
