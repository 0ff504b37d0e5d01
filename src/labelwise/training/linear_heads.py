"""Initial weights of a head: linear classifiers on the current vectors of the encoder, by the solver of the trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from labelwise.features.rows import FeatureRows
from labelwise.linear.level_trainer import LevelTrainer, SolverConfig, chunks_of, squared_norms
from labelwise.linear.pass_limit import PassLimit, SolverPace
from labelwise.networks.levels import Parents
from labelwise.time_budget import TimeBudget


def linear_head(
    vectors: np.ndarray,
    targets: Any,
    parents: Parents | None,
    solver: SolverConfig,
    weighted: bool,
    seed: int,
    budget: TimeBudget,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [nodes, width] and biases of one classifier per node, each trained against its siblings.

    Parameters
    ----------
    vectors
        float32 [documents, width].
    targets
        CSR [documents, nodes].
    parents
        The nodes above whose children are candidates for a document: a node is trained on the documents that have its
        parent there. None: on all documents.
    solver, seed
        As in linear trees.
    weighted
        Multiply the cost of a positive example by its value in `targets`.
    budget
        With little time the solver makes fewer passes.
    """
    empty = sparse.csr_array((len(vectors), 0), dtype=np.float32)
    rows = FeatureRows.of(empty)._replace(shape=vectors.shape, dense=np.ascontiguousarray(vectors))
    offsets = np.array([0, targets.shape[1]]) if parents is None else parents.offsets
    chunks = chunks_of(offsets, None if parents is None else _documents(parents))
    limit = PassLimit(budget, budget, SolverPace(rows))
    trainer = LevelTrainer(rows, squared_norms(rows), targets, solver, weighted, seed, limit)
    weight = np.zeros((targets.shape[1], vectors.shape[1]), np.float32)
    bias = np.empty(targets.shape[1], np.float32)
    for chunk, part in zip(chunks, trainer.train(chunks, "initial weights"), strict=True):
        features = np.repeat(part.features, part.row_counts)
        weight[chunk.first + part.lanes.astype(np.int64), features] = part.values
        bias[chunk.first : chunk.last] = part.bias
    return weight, bias


def _documents(parents: Parents) -> Any:
    """CSC [documents, parents]: the documents of each parent."""
    rows, columns = np.nonzero(parents.nodes >= 0)
    nodes = parents.nodes[rows, columns]
    shape = (len(parents.nodes), len(parents.offsets) - 1)
    return sparse.csc_array((np.ones(len(nodes), np.float32), (rows, nodes)), shape=shape)
