"""Hierarchical clustering of labels: recursive halving (balanced spherical 2-means), or recursive k-means.

Both return the labels in an order in which every group of every layer is contiguous, and the bounds of the groups.
The result depends on the seed only: random numbers are drawn before work is distributed, and no sum depends on how
rows or columns are divided among threads. Memory: the rows twice at most, and one dense vector of all features per
thread (k-way: also the similarities of one group's labels to its k centres).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from labelwise.data.csr import read_only
from labelwise.errors import ConfigError, DataError
from labelwise.features.labels import two_blocks, unsigned
from labelwise.runtime import threads as parallel
from labelwise.runtime.progress import progress

SHARED_WORK = 500_000
"""Groups with more entries than this are halved by all threads together, smaller ones by one thread each."""
COPIED_WORK = 2_500_000
"""Up to so many entries, one thread each is better as soon as all threads have groups: it copies the rows and renumbers
the columns that occur, so that a centre fits a core's cache. Larger groups are split by a sample first."""
SHARED_COMPARISONS = 8_000_000
"""The same limit for k-way: entries times clusters."""
SAMPLE_WORK = 500_000
"""Entries of the labels from which the split of a larger group is learned."""
MAX_ITERATIONS = 20
"""Iterations per split; it ends earlier when no label moves."""
REFINEMENTS = 8
"""Iterations over all labels of a group after those over its sample."""
STARTS, FEW_LABELS = 4, 1000
"""Pairs of labels from which a split is tried, if there are at most so many labels: one of many splits may be poor, not
one of a few, and time does not matter. Otherwise one pair."""
COLUMN_SAMPLE = 1_000_000
"""Entries sampled to divide the columns into ranges of about equal work."""


def halve(features: Any, leaf_size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split labels into two halves recursively until no group has more than `leaf_size` labels.

    Parameters
    ----------
    features
        [labels, features]: CSR, dense or `Blocks`; rows are normalized to unit norm. Rows may be empty or equal.
    leaf_size
        Maximum labels per group.
    seed
        Seed of the initial pairs of labels of each split.

    Returns
    -------
    The order of the labels, group after group, and the bounds of the groups in it. Sizes differ by one at most.
    """
    rows = _checked_rows(features, leaf_size)
    depth = 0
    while len(rows) > leaf_size << depth:
        depth += 1
    starts = STARTS if len(rows) <= FEW_LABELS else 1
    draws = np.random.default_rng(seed).integers(0, 2**62, (2**depth - 1, starts, 2))
    order = np.arange(len(rows))
    alone: list[tuple[int, int, int, int]] = []
    together = [(0, 0, len(rows))]
    for layers in range(depth, 0, -1):
        halved = []
        most = COPIED_WORK if len(together) >= 2 * parallel.threads() else SHARED_WORK
        for node, begin, end in together:
            group = order[begin:end]
            if rows.work(group) <= most:
                alone.append((node, begin, end, layers))
                continue
            _halve_together(rows, group, draws[node])
            middle = begin + (end - begin) // 2
            halved += [(2 * node + 1, begin, middle), (2 * node + 2, middle, end)]
        together = halved

    def halve_alone(task: tuple[int, int, int, int]) -> None:
        from labelwise.kernels.clustering import halve_recursively

        node, begin, end, layers = task
        group_rows = rows.take(order[begin:end])
        group_order = np.arange(end - begin)
        halve_recursively(*group_rows.arrays, group_rows.n_columns, layers, draws, node, MAX_ITERATIONS, group_order)
        order[begin:end] = order[begin:end][group_order]

    _largest_first(halve_alone, alone, lambda task: rows.work(order[task[1] : task[2]]))
    edges = [0, len(rows)]
    for _ in range(depth):
        edges = sorted({*edges, *(begin + (end - begin) // 2 for begin, end in pairwise(edges))})
    return order, np.array(edges)


def cluster(features: Any, branching: int, leaf_size: int, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Split labels into `branching` clusters recursively until no group has more than `leaf_size` labels.

    Sizes of clusters differ by one at most.

    Parameters
    ----------
    features, seed
        As for `halve`.
    branching
        Clusters per group; fewer where fewer are enough to reach `leaf_size`.
    leaf_size
        Maximum labels in a group that is not split further.

    Returns
    -------
    The order of the labels, and for each layer from the top the bounds of its groups in it.
    """
    check_branching(branching)
    rows = _checked_rows(features, leaf_size)
    random = np.random.default_rng(seed)
    order = np.arange(len(rows))
    layers: list[np.ndarray] = []
    edges = np.array([0, len(rows)])
    while (np.diff(edges) > leaf_size).any():
        groups = []
        for begin, end in pairwise(edges.tolist()):
            if end - begin > leaf_size:
                draws = random.random(min(branching, -(-(end - begin) // leaf_size)))
                groups.append(_Group(begin, end, draws))
        edges = np.unique(np.concatenate([edges, *_cluster_layer(rows, order, groups)]))
        layers.append(edges)
    return order, layers


def check_branching(branching: int) -> None:
    """Refuse groups that would not become smaller."""
    if branching < 2:
        raise ConfigError(f"branching must be 2 or more, got {branching}")


class _Group(NamedTuple):
    """Labels to cluster: their range in the order, and a random number per cluster."""

    begin: int
    end: int
    draws: np.ndarray

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest size of a cluster."""
        rows, count = self.end - self.begin, len(self.draws)
        return rows // count, -(-rows // count)


def _cluster_layer(rows: LabelRows, order: np.ndarray, groups: list[_Group]) -> list[np.ndarray]:
    """Split all groups of a layer and reorder their labels; returns the bounds of each group's clusters."""
    bounds: dict[int, np.ndarray] = {}

    def work(group: _Group) -> int:
        return rows.work(order[group.begin : group.end]) * len(group.draws)

    def split(group: _Group, clusters_of: Callable[[LabelRows, np.ndarray, _Group], np.ndarray]) -> None:
        members = order[group.begin : group.end]
        clusters = clusters_of(rows, members, group)
        order[group.begin : group.end] = members[np.argsort(clusters, kind="stable")]
        bounds[group.begin] = group.begin + np.cumsum(np.bincount(clusters))

    alone = []
    for group in groups:
        if work(group) > SHARED_COMPARISONS:
            split(group, _cluster_together)
        else:
            alone.append(group)
    _largest_first(lambda group: split(group, _cluster_alone), alone, work)
    return [bounds[group.begin] for group in groups]


def _largest_first(work: Callable[[Any], None], tasks: list, size: Callable[[Any], int]) -> None:
    ordered = sorted(tasks, key=size, reverse=True)
    with progress("clustering labels", len(ordered)) as step:
        for _ in parallel.run_stream(work, ordered):
            step(1)


# --- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelRows:
    """Label features as kernels take them: a CSR block and a dense block; either may have no columns."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    dense: np.ndarray
    n_columns: int

    def __post_init__(self) -> None:
        for name in ("indptr", "indices", "data", "dense"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The first arguments of every kernel."""
        return self.indptr, self.indices, self.data, self.dense

    @property
    def width(self) -> int:
        """Columns of both blocks."""
        return self.n_columns + self.dense.shape[1]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def work(self, members: np.ndarray) -> int:
        """The cost of one pass over some of the rows."""
        return int((self.indptr[members + 1] - self.indptr[members]).sum()) + len(members) * (self.dense.shape[1] + 1)

    def take(self, members: np.ndarray) -> LabelRows:
        """Copy some of the rows with only the columns that occur in them: a centre then fits a core's cache."""
        from labelwise.kernels.clustering import copy_rows

        entries = int((self.indptr[members + 1] - self.indptr[members]).sum())
        indptr = np.empty(len(members) + 1, np.int64)
        indices, data = np.empty(entries, np.uint32), np.empty(entries, np.float32)
        used = copy_rows(*self.arrays[:3], self.n_columns, members, indptr, indices, data)
        return LabelRows(indptr, indices, data, self.dense[members], used)

    @cached_property
    def column_ranges(self) -> list[tuple[int, int]]:
        """Ranges of the columns of both blocks with about equal work, one per thread."""
        step = max(1, len(self.indices) // COLUMN_SAMPLE)
        work = np.full(self.width, len(self) / step)
        work[: self.n_columns] = np.bincount(self.indices[::step], minlength=self.n_columns)
        total = np.cumsum(work)
        targets = np.linspace(0, total[-1], parallel.threads() + 1)[1:-1] if self.width else []
        return list(pairwise(np.unique([0, *np.searchsorted(total, targets), self.width]).tolist()))


def _checked_rows(features: Any, leaf_size: int) -> LabelRows:
    """Rows of unit norm from CSR, dense or `Blocks`."""
    from labelwise.kernels.clustering import row_norms

    if leaf_size < 1:
        raise ConfigError(f"leaf_size must be 1 label or more, got {leaf_size}")
    csr, dense = two_blocks(features)
    if csr.shape[0] == 0:
        raise DataError("there are no labels to cluster: the label features have no rows")
    indptr, data = csr.indptr.astype(np.int64), csr.data
    norms = np.empty(csr.shape[0])
    row_norms(read_only(indptr), read_only(data), read_only(dense), norms)
    norms[norms == 0] = 1
    if (np.abs(norms - 1) > 1e-3).any():
        data = (data / np.repeat(norms, np.diff(indptr))).astype(np.float32)
        dense = (dense / norms[:, None]).astype(np.float32)
    return LabelRows(indptr, unsigned(csr.indices), data, dense, csr.shape[1])


# --- one group ----------------------------------------------------------------------------------------------------


def _halve_together(rows: LabelRows, members: np.ndarray, draws: np.ndarray) -> None:
    """Move the left half of a large group before the right one; all threads work on each step.

    Bitwise the same as the kernel `halve_recursively`, unless the group is so large that a sample of it is split first:
    then a few iterations over all labels are enough.
    """
    from labelwise.kernels import clustering as kernels

    count = len(members)
    centre = np.zeros(rows.width, np.float32)
    column_ranges, row_ranges = rows.column_ranges, parallel.ranges(count, 4 * parallel.threads())
    signs, best = np.ones(count, np.int8), np.zeros(count, np.bool_)

    def products() -> np.ndarray:
        """Add the rows with their signs to the centre; returns the dot products of all rows with it."""
        dots = np.empty(count, np.float32)
        parallel.run_all(lambda part: kernels.add_to_centre(*rows.arrays, members, signs, *part, centre), column_ranges)
        _dot_together(rows, members, centre, dots, row_ranges)
        return dots

    with_all = products()
    scores, spare = np.empty(count), np.empty(count)
    work, more = rows.work(members), MAX_ITERATIONS
    if work > COPIED_WORK:
        centre[:] = _sampled_centre(rows, members[:: work // SAMPLE_WORK], draws)
        signs[:] = 0  # nothing is added to the centre
        scores[:], more = products(), REFINEMENTS
        kernels.choose_half(scores, spare, best, signs)
    else:
        trial, highest = kernels.TRIAL, -1.0
        more -= trial
        for pair in draws:
            one, other = kernels.first_pair(pair, count)
            centre[:], signs[:], left = 0, 0, np.zeros(count, np.bool_)
            signs[one], signs[other] = 1, -1
            scores[:], centre[:], objective = products(), 0, 0.0
            for iteration in range(trial):
                if iteration > 0:
                    objective = kernels.score_rows(with_all, products(), left, scores)
                if kernels.choose_half(scores, spare, left, signs) == 0:
                    break
            if objective > highest:
                highest, best = objective, left
    centre[:], signs[:] = 0, best
    for _ in range(more):
        kernels.score_rows(with_all, products(), best, scores)
        if kernels.choose_half(scores, spare, best, signs) == 0:
            break
    kernels.partition_members(members, best, np.empty(count, np.int64))


def _sampled_centre(rows: LabelRows, members: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The difference between the directions of both halves of some rows; the lower products with it are left."""
    from labelwise.kernels.clustering import add_to_centre, halve_recursively

    some, order = rows.take(members), np.arange(len(members))
    halve_recursively(*some.arrays, some.n_columns, 1, draws[None], 0, MAX_ITERATIONS, order)
    difference = np.zeros(rows.width, np.float32)
    middle = len(members) // 2
    for half, sign in ((order[:middle], -1), (order[middle:], 1)):
        total = np.zeros(rows.width, np.float32)
        add_to_centre(*rows.arrays, members[half], np.ones(len(half), np.int8), 0, rows.width, total)
        norm = np.linalg.norm(total)
        difference += sign * total / (norm if norm > 0 else 1)
    return difference


def _cluster_alone(rows: LabelRows, members: np.ndarray, group: _Group) -> np.ndarray:
    """The cluster of each of the group's rows."""
    from labelwise.kernels.clustering import cluster_rows

    group_rows, clusters = rows.take(members), np.empty(len(members), np.int64)
    cluster_rows(
        *group_rows.arrays, group_rows.n_columns, np.arange(len(members)),
        group.draws, *group.sizes, MAX_ITERATIONS, clusters,
    )  # fmt: skip
    return clusters


def _cluster_together(rows: LabelRows, members: np.ndarray, group: _Group) -> np.ndarray:
    """`_cluster_alone` for a large group: threads divide its rows, then its centres. The steps of `cluster_rows`."""
    from labelwise.kernels import clustering as kernels

    count = len(members)
    similarities = np.empty((len(group.draws), count), np.float32)
    nearest = np.full(count, -np.inf, np.float32)
    row_ranges = parallel.ranges(count, 4 * parallel.threads())
    for similar, draw in zip(similarities, group.draws, strict=True):
        chosen = kernels.draw_distant(nearest, draw)
        centre = np.zeros(rows.width, np.float32)
        kernels.add_to_centre(*rows.arrays, members[chosen : chosen + 1], np.ones(1, np.int8), 0, rows.width, centre)
        _dot_together(rows, members, centre, similar, row_ranges)
        kernels.update_nearest(similar, chosen, nearest)
    clusters = np.full(count, -1)

    def compare(cluster: int) -> None:
        centre = np.zeros(rows.width, np.float32)
        kernels.similar_to_cluster(*rows.arrays, members, clusters, cluster, centre, similarities[cluster])

    for iteration in range(MAX_ITERATIONS):
        moved = kernels.choose_clusters(similarities, *group.sizes, clusters)
        if moved == 0 or iteration == MAX_ITERATIONS - 1:
            break
        parallel.run_all(compare, range(len(group.draws)))
    return clusters


def _dot_together(
    rows: LabelRows, members: np.ndarray, centre: np.ndarray, products: np.ndarray, row_ranges: list[tuple[int, int]]
) -> None:
    from labelwise.kernels.clustering import dot_with_centre

    parallel.run_all(lambda part: dot_with_centre(*rows.arrays, members, *part, centre, products), row_ranges)
