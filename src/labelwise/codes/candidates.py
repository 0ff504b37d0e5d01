"""The candidate nodes of a document in a level: the children of a few nodes of the level above. Does not import torch.

For training these are the ancestors of the true labels and the nodes that the level above ranks highest, which give
hard negatives; for prediction only the latter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labelwise.topk import NO_LABEL

BATCH_DOCUMENTS = 1 << 16
"""Documents processed at a time."""


def training_nodes(true: Any, ranked: np.ndarray, count: int) -> np.ndarray:
    """For each document `count` nodes: its true ones, then the highest ranked others.

    Where there are more than `count` true ones, those that are ranked come first.

    Parameters
    ----------
    true
        CSR [documents, nodes], columns sorted.
    ranked
        Predicted nodes [documents, ranks], best first, padded with NO_LABEL.
    count
        Nodes per document.

    Returns
    -------
    int32 [documents, count], padded with NO_LABEL.
    """
    chosen = np.full((true.shape[0], count), NO_LABEL, np.int32)
    for begin in range(0, true.shape[0], BATCH_DOCUMENTS):
        end = min(begin + BATCH_DOCUMENTS, true.shape[0])
        first, last = true.indptr[begin], true.indptr[end]
        true_rows = np.repeat(np.arange(end - begin), np.diff(true.indptr[begin : end + 1]))
        _choose(true_rows, true.indices[first:last], true.shape[1], ranked[begin:end], chosen[begin:end])
    return chosen


def _choose(
    true_rows: np.ndarray, true_nodes: np.ndarray, n_nodes: int, ranked: np.ndarray, chosen: np.ndarray
) -> None:
    """Write to `chosen` the nodes of some documents."""
    n_ranks = ranked.shape[1]
    rows = np.repeat(np.arange(len(ranked)), n_ranks)
    nodes, ranks = ranked.ravel(), np.tile(np.arange(n_ranks), len(ranked))
    rows, ranks, nodes = (part[nodes != NO_LABEL] for part in (rows, ranks, nodes))
    true_keys = true_rows.astype(np.int64) * n_nodes + true_nodes
    keys = rows.astype(np.int64) * n_nodes + nodes
    is_true, was_ranked = _in(keys, true_keys), _in(true_keys, np.sort(keys))
    # true and ranked nodes first, then those only true, then those only ranked
    all_rows = np.concatenate([rows, true_rows[~was_ranked]])
    all_nodes = np.concatenate([nodes, true_nodes[~was_ranked]])
    order = np.lexsort(
        (
            np.concatenate([ranks, np.zeros(int((~was_ranked).sum()), ranks.dtype)]),
            np.concatenate([np.where(is_true, 0, 2), np.ones(int((~was_ranked).sum()), np.int64)]),
            all_rows,
        )
    )
    all_rows, all_nodes = all_rows[order], all_nodes[order]
    column = np.arange(len(all_rows)) - np.searchsorted(all_rows, np.arange(len(ranked)))[all_rows]
    kept = column < chosen.shape[1]
    chosen[all_rows[kept], column[kept]] = all_nodes[kept]


def _in(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Mask of the values that are in the sorted array `among`."""
    if len(among) == 0:
        return np.zeros(len(values), bool)
    indices = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return among[indices] == values


def children_of(nodes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The children of each document's nodes: int64 [documents, nodes x maximum children], padded with NO_LABEL.

    The children of node p are ``offsets[p]`` to ``offsets[p + 1]``; each node is padded to the maximum.
    """
    max_children = int(np.diff(offsets).max())
    known = np.maximum(nodes, 0)
    begins, ends = offsets[known], np.where(nodes == NO_LABEL, 0, offsets[known + 1])
    grid = begins[..., None] + np.arange(max_children)
    return np.where(grid < ends[..., None], grid, NO_LABEL).reshape(len(nodes), nodes.shape[1] * max_children)


def candidate_targets(candidates: np.ndarray, true: Any, documents: np.ndarray) -> np.ndarray:
    """Targets, float32, of candidates [documents, n]: the values of the rows `documents` of the CSR matrix `true`."""
    picked = true[documents]
    if len(picked.indices) == 0:
        return np.zeros(candidates.shape, np.float32)
    rows = np.repeat(np.arange(len(documents)), np.diff(picked.indptr))
    n_nodes = true.shape[1]
    keys = np.arange(len(documents))[:, None] * n_nodes + candidates
    true_keys = rows.astype(np.int64) * n_nodes + picked.indices
    indices = np.minimum(np.searchsorted(true_keys, keys), len(true_keys) - 1)
    is_true = (true_keys[indices] == keys) & (candidates != NO_LABEL)
    return np.where(is_true, picked.data[indices], 0).astype(np.float32)
