"""Stacked networks over sparse rows: against dense torch layers, and each against itself trained alone."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

from labelwise.nn.config import OptimiserConfig
from labelwise.nn.sparse_mlp import SparseMLP, SparseRows
from labelwise.nn.train.optim import make_optimisers
from labelwise.runtime.threads import using_threads


def rows_of(matrix, columns=None, count=1):
    every = np.tile(matrix.indices, (count, 1)) if columns is None else columns
    return SparseRows(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(every.astype(np.int64)),
        torch.from_numpy(matrix.data.astype(np.float32)),
    )


@pytest.fixture
def matrix():
    dense = sparse.random_array((23, 40), density=0.15, rng=np.random.default_rng(0), dtype=np.float32).toarray()
    dense[5] = 0
    return sparse.csr_array(dense)


def started(count, hidden, outputs=7, n_features=40):
    network = SparseMLP(count, n_features, hidden, outputs)
    return network.initialise(
        [(3, number) for number in range(count)], torch.arange(count * outputs).reshape(count, -1) / 50
    )


def dense_scores(network, place, matrix):
    """The same from torch's own layers."""
    layer = torch.from_numpy(matrix.toarray()) @ network.rows_of(place) + network.bias(0)[place]
    for number, weight in enumerate(network.weights, 1):
        layer = functional.linear(functional.relu(layer), weight[place], network.bias(number)[place])
    return layer


@pytest.mark.parametrize("hidden", [[], [5], [6, 4]])
@pytest.mark.parametrize("count", [1, 3])
def test_scores_and_gradients_are_those_of_dense_layers(matrix, hidden, count):
    network = started(count, hidden)
    weights = torch.randn(count, 23, 7, generator=torch.Generator().manual_seed(1))
    scores = network(rows_of(matrix, count=count))
    (scores * weights).sum().backward()
    assert network.table.grad.is_sparse
    found = {name: p.grad.to_dense() if p.grad.is_sparse else p.grad for name, p in network.named_parameters()}
    network.zero_grad()
    expected = torch.stack([dense_scores(network, place, matrix) for place in range(count)])
    torch.testing.assert_close(scores, expected)
    (expected * weights).sum().backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)


def test_only_rows_that_were_read_have_a_gradient(matrix):
    network = started(2, [4])
    network(rows_of(matrix, count=2)).sum().backward()
    used = np.unique(matrix.indices)
    assert network.table.grad.coalesce().indices()[0].tolist() == [*used, *(used + 40)]


def test_features_may_share_a_row_of_the_table(matrix):
    """Hashed features: two columns of a document fall together, and are added up."""
    columns = np.stack([matrix.indices % 6, matrix.indices % 5])
    network = started(2, [4], n_features=6)
    scores = network(rows_of(matrix, columns))
    scores.sum().backward()
    for place, divisor in enumerate((6, 5)):
        folded = np.zeros((23, 6), np.float32)
        np.add.at(folded, (np.repeat(np.arange(23), np.diff(matrix.indptr)), matrix.indices % divisor), matrix.data)
        expected = dense_scores(network, place, sparse.csr_array(folded))
        torch.testing.assert_close(scores[place], expected)


def test_scores_by_output_are_the_transpose(matrix):
    for hidden in ([], [5], [6, 4]):
        network = started(2, hidden)
        with torch.no_grad():
            rows = rows_of(matrix, count=2)
            torch.testing.assert_close(network.scores_by_output(rows), network(rows).mT)


def test_as_embedding_bags_do_it(matrix):
    """What GPUs use is the same."""
    network = started(1, [])
    bag = nn.EmbeddingBag.from_pretrained(network.table.detach(), mode="sum", freeze=False)
    rows = rows_of(matrix)
    expected = bag(rows.columns[0], rows.indptr[:-1], per_sample_weights=rows.values) + network.biases[0]
    torch.testing.assert_close(network(rows)[0], expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_first_weights_depend_on_the_own_seed_alone(threads):
    with using_threads(threads):
        both, second = started(2, [5]), SparseMLP(1, 40, [5], 7).initialise([(3, 1)], torch.zeros(1, 7))
    assert torch.equal(both.rows_of(1), second.table)
    assert torch.equal(both.weights[0][1], second.weights[0][0])
    assert not torch.equal(both.rows_of(0), second.table)


@pytest.mark.parametrize(
    ("decay_on", "pulled"), [("matrices", ["table", "weights.0"]), ("matrices_but_embeddings", ["weights.0"])]
)
def test_biases_are_no_matrices_to_weight_decay(decay_on, pulled):
    network = started(3, [5])
    names = {parameter: name for name, parameter in network.named_parameters()}
    config = OptimiserConfig(name="adam", weight_decay=0.1, decay_on=decay_on)
    optimisers = make_optimisers(network, config, rows=("table",))
    groups = [group for part in optimisers.parts for group in part.param_groups if group["weight_decay"] > 0]
    assert sorted(names[parameter] for group in groups for parameter in group["params"]) == pulled


def test_no_documents(matrix):
    assert started(2, [5])(rows_of(matrix[:0], count=2)).shape == (2, 0, 7)
