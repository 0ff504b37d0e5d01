"""Spherical k-means with minimum and maximum cluster sizes: split one group of rows into k clusters.

Rows that lose most by missing their best cluster are assigned first. Only one centre exists at a time: dot products
with it are stored (clusters x rows), and a cluster's |sum|^2 is the sum of its own rows' products, so norms need no
pass over the features. Initial centres are rows drawn with a preference for distant ones, as in k-means++.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.cluster.rows import add_to_centre, dot_with_centre
from labelwise.kernels.jit import inner, jit


@jit
def cluster_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    n_columns: int,
    members: np.ndarray,
    draws: np.ndarray,
    smallest: int,
    largest: int,
    max_iterations: int,
    clusters: np.ndarray,
) -> None:
    """Write the cluster of each member, one of ``len(draws)``, each of `smallest` to `largest` members."""
    centre = np.zeros(n_columns + dense.shape[1], np.float32)
    similarities = np.empty((len(draws), len(members)), np.float32)
    nearest = np.full(len(members), -np.inf, np.float32)
    for cluster in range(len(draws)):
        chosen = draw_distant(nearest, draws[cluster])
        similar_to_row(indptr, indices, data, dense, members, chosen, centre, similarities[cluster])
        update_nearest(similarities[cluster], chosen, nearest)
    clusters[:] = -1
    for iteration in range(max_iterations):
        moved = choose_clusters(similarities, smallest, largest, clusters)
        if moved == 0 or iteration == max_iterations - 1:
            break
        for cluster in range(len(draws)):
            similar_to_cluster(
                indptr, indices, data, dense, members, clusters, cluster, centre, similarities[cluster]
            )  # fmt: skip


@jit
def draw_distant(nearest: np.ndarray, draw: float) -> int:
    """Draw a row with weight 1 - its similarity to the nearest row drawn before (inf marks the drawn rows)."""
    total = 0.0
    for i in range(len(nearest)):
        total += _weight(nearest[i])
    remaining = draw * total
    last = -1
    for i in range(len(nearest)):
        weight = _weight(nearest[i])
        if weight > 0 or (total == 0 and nearest[i] != np.inf):
            remaining -= weight
            last = i
            if remaining < 0 or total == 0:
                break
    return last


@inner
def _weight(similarity: np.float32) -> float:
    return 1.0 if similarity == -np.inf else max(0.0, 1.0 - np.float64(similarity))


@jit
def update_nearest(similarities: np.ndarray, chosen: int, nearest: np.ndarray) -> None:
    """Update the similarity to the nearest drawn row with a row just drawn, and mark it as drawn."""
    for i in range(len(nearest)):
        nearest[i] = max(nearest[i], similarities[i])
    nearest[chosen] = np.inf


@inner
def similar_to_row(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    chosen: int,
    centre: np.ndarray,
    similarities: np.ndarray,
) -> None:
    """Dot products of all members with one of them; the centre is zero before and after."""
    signs = np.ones(1, np.int8)
    add_to_centre(indptr, indices, data, dense, members[chosen : chosen + 1], signs, 0, len(centre), centre)
    dot_with_centre(indptr, indices, data, dense, members, 0, len(members), centre, similarities)
    centre[:] = 0


@jit
def similar_to_cluster(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    clusters: np.ndarray,
    cluster: int,
    centre: np.ndarray,
    similarities: np.ndarray,
) -> None:
    """Dot products of all members with a cluster's normalized sum; the centre is zero before and after."""
    signs = np.empty(len(members), np.int8)
    for i in range(len(members)):
        signs[i] = clusters[i] == cluster
    add_to_centre(indptr, indices, data, dense, members, signs, 0, len(centre), centre)
    dot_with_centre(indptr, indices, data, dense, members, 0, len(members), centre, similarities)
    centre[:] = 0
    squares = 0.0
    for i in range(len(members)):
        if signs[i]:
            squares += similarities[i]
    scale = 1 / np.sqrt(squares) if squares > 0 else 0.0
    for i in range(len(members)):
        similarities[i] = similarities[i] * scale


@jit
def choose_clusters(similarities: np.ndarray, smallest: int, largest: int, clusters: np.ndarray) -> int:
    """Assign each row to its best cluster that is not full, in order of loss; returns how many changed cluster.

    Ties in similarity go to the lower cluster, ties in loss to the lower row. A cluster with `smallest` members
    takes more, up to `largest`, only while enough rows are left for the others.
    """
    n_clusters, count = similarities.shape
    losses = np.empty(count, np.float32)
    for i in range(count):
        best, second = similarities[0, i], np.float32(-np.inf)
        for cluster in range(1, n_clusters):
            similarity = similarities[cluster, i]
            if similarity > best:
                best, second = similarity, best
            elif similarity > second:
                second = similarity
        losses[i] = second - best
    sizes = np.zeros(n_clusters, np.int64)
    extra = count - n_clusters * smallest
    moved = 0
    for i in np.argsort(losses, kind="mergesort"):
        chosen = -1
        for cluster in range(n_clusters):
            is_open = sizes[cluster] < smallest or (sizes[cluster] < largest and extra > 0)
            if is_open and (chosen < 0 or similarities[cluster, i] > similarities[chosen, i]):
                chosen = cluster
        extra -= sizes[chosen] >= smallest
        sizes[chosen] += 1
        moved += clusters[i] != chosen
        clusters[i] = chosen
    return moved
