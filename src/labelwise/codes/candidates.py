"""Which nodes of a level a document looks at: the children of a few nodes above. Does not import torch.

To learn from, a document has the nodes above its true labels, and beside them those that the level above ranks highest:
the mistakes it is likely to make. To predict, it has only the latter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labelwise.topk import NO_LABEL

AT_ONCE = 1 << 16
"""Documents handled at a time."""


def nodes_to_learn_from(true: Any, ranked: np.ndarray, count: int) -> np.ndarray:
    """For each document `count` nodes: its true ones, then the highest ranked of the others.

    Where there are more true ones, those that are ranked come first.

    Parameters
    ----------
    true
        CSR [documents, nodes], columns sorted.
    ranked
        Predicted nodes [documents, places], best first, NO_LABEL after the last.
    count
        Nodes wanted.

    Returns
    -------
    int32 [documents, count]; NO_LABEL where there are not enough.
    """
    chosen = np.full((true.shape[0], count), NO_LABEL, np.int32)
    for begin in range(0, true.shape[0], AT_ONCE):
        end = min(begin + AT_ONCE, true.shape[0])
        first, last = true.indptr[begin], true.indptr[end]
        own_rows = np.repeat(np.arange(end - begin), np.diff(true.indptr[begin : end + 1]))
        _choose(own_rows, true.indices[first:last], true.shape[1], ranked[begin:end], chosen[begin:end])
    return chosen


def _choose(
    true_rows: np.ndarray, true_nodes: np.ndarray, n_nodes: int, ranked: np.ndarray, chosen: np.ndarray
) -> None:
    places = ranked.shape[1]
    rows = np.repeat(np.arange(len(ranked)), places)
    nodes, ranks = ranked.ravel(), np.tile(np.arange(places), len(ranked))
    rows, ranks, nodes = (part[nodes != NO_LABEL] for part in (rows, ranks, nodes))
    true_keys = true_rows.astype(np.int64) * n_nodes + true_nodes
    keys = rows.astype(np.int64) * n_nodes + nodes
    is_true, was_ranked = _in(keys, true_keys), _in(true_keys, np.sort(keys))
    # first true and ranked, then only true, then only ranked
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
    place = np.arange(len(all_rows)) - np.searchsorted(all_rows, np.arange(len(ranked)))[all_rows]
    kept = place < chosen.shape[1]
    chosen[all_rows[kept], place[kept]] = all_nodes[kept]


def _in(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which values are among sorted others."""
    if len(among) == 0:
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return among[places] == values


def children_of(nodes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The children of each document's nodes: int64 [documents, nodes x most children], NO_LABEL where there is none.

    The children of node p are ``offsets[p]`` to ``offsets[p + 1]``. Places go node by node, each as many as the node
    with the most children has.
    """
    most = int(np.diff(offsets).max())
    known = np.maximum(nodes, 0)
    begins, ends = offsets[known], np.where(nodes == NO_LABEL, 0, offsets[known + 1])
    grid = begins[..., None] + np.arange(most)
    return np.where(grid < ends[..., None], grid, NO_LABEL).reshape(len(nodes), nodes.shape[1] * most)


def wanted_among(candidates: np.ndarray, true: Any, documents: np.ndarray) -> np.ndarray:
    """Which candidates [documents, places] are true of the given rows of a CSR matrix, as float32 0 and 1."""
    picked = true[documents]
    rows = np.repeat(np.arange(len(documents)), np.diff(picked.indptr))
    n_nodes = true.shape[1]
    keys = np.arange(len(documents))[:, None] * n_nodes + candidates
    found = _in(keys.ravel(), rows.astype(np.int64) * n_nodes + picked.indices).reshape(candidates.shape)
    return (found & (candidates != NO_LABEL)).astype(np.float32)
