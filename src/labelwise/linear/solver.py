"""Train one level of a tree of linear classifiers, chunk by chunk on all threads.

A chunk is the children of one node; its examples are the documents of the node, so that a label only has to be
distinguished from its siblings. The largest chunks are trained first. The result does not depend on the number of
threads: every group of 16 siblings is a separate problem with a separate seed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from labelwise.config import Config
from labelwise.data.csr import read_only
from labelwise.features.rows import (
    ENTRY_BYTES,
    FeatureRows,
    HeldRows,
    batches_of,
    copy_rows_to_disk,
    hold_rows,
    is_mapped,
)
from labelwise.io import tensors as pages
from labelwise.io.tensors import counts_of, release_pages
from labelwise.kernels import solver as kernels
from labelwise.linear.weights import ChunkedWeights, ChunkPart, bits_of
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.memory import block_bytes
from labelwise.runtime.progress import progress
from labelwise.runtime.threads import run_all, threads

if TYPE_CHECKING:
    from labelwise.linear.settings import TrainingSettings

# --- local rows ---
# The documents of one chunk as the solver reads them.


class LocalRows(NamedTuple):
    """Documents with their features renumbered.

    Document i has the entries starts[i]..ends[i] of `indices` and `values`, and dense[dense_rows[i]] as the features
    from `first_dense` on.
    """

    rows: np.ndarray
    """Their indices among all documents."""
    starts: np.ndarray
    ends: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    dense: np.ndarray
    dense_rows: np.ndarray
    first_dense: int
    norms: np.ndarray
    """Squared norms."""
    features: np.ndarray
    """The index of each feature among all."""

    def scaled(self, steps: np.ndarray) -> LocalRows:
        """The same documents with each feature multiplied by a number."""
        values = self.values * steps[self.indices]
        ends = np.append(0, np.cumsum(np.square(values, dtype=np.float64)))
        norms = ends[self.ends] - ends[self.starts]
        dense = self.dense
        if dense.shape[1]:
            own = steps[self.first_dense : self.first_dense + dense.shape[1]]
            dense = np.ascontiguousarray(dense[self.dense_rows] * own, np.float32)
            norms += np.square(dense, dtype=np.float64).sum(axis=1)
        rows = np.arange(len(self.rows)) if dense.shape[1] else self.dense_rows
        return self._replace(values=values, dense=dense, dense_rows=rows, norms=norms.astype(np.float32))


# --- initial weights ---
# The weights of a trained level as the starting point of further training on a few new documents.
#
# The old documents are no longer at hand. Their losses are replaced by a quadratic function of the change of each
# weight, with the curvature that the statistics of the old documents give: weights of features that many old documents
# have change little. In the solver this is a scale per feature. Only weights of features of the new documents change.


@dataclass(frozen=True)
class InitialWeights:
    """The starting point of a level.

    Parameters
    ----------
    level
        Its weights in 32 bits.
    features
        For each feature of the new documents (numbered without gaps) its index in the level.
    curvature
        Per feature of the new documents, the mean curvature of one old document's loss in its weight.
    bias_curvature
        The same for the bias.
    documents
        Old documents of each chunk.
    """

    level: ChunkedWeights
    features: np.ndarray
    curvature: np.ndarray
    bias_curvature: float
    documents: np.ndarray

    def chunk(self, first: int, features: np.ndarray) -> ChunkStart:
        """The starting point of the chunk that has the child `first`, for some features of the new documents."""
        chunk = int(np.searchsorted(self.level.children_offsets, first, "right")) - 1
        count = self.documents[chunk]
        steps = 1 / np.sqrt(1 + count * self.curvature[features])
        bias_step = 1 / np.sqrt(1 + count * self.bias_curvature)
        return ChunkStart(self.level, chunk, self.features[features], steps.astype(np.float32), float(bias_step))


@dataclass(frozen=True)
class ChunkStart:
    """The starting point of one chunk. `features` are those of its new documents, as indices in the level.

    The solver works with documents multiplied by `steps`, and weights divided by them.
    """

    level: ChunkedWeights
    chunk: int
    features: np.ndarray
    steps: np.ndarray
    bias_step: float

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """For each feature the range of its entries in the level; empty if it has no weights."""
        level = self.level
        low, high = level.chunk_offsets[self.chunk : self.chunk + 2]
        own = level.features[low:high]
        index = np.searchsorted(own, self.features)
        found = np.append(own, -1)[index] == self.features
        rows = low + index[found]
        starts, ends = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
        starts[found], ends[found] = level.row_offsets[rows], level.row_offsets[rows + 1]
        return starts, ends

    def load(self, first: int, width: int, bias: float, weights: np.ndarray, offsets: np.ndarray) -> None:
        """Set weights [features, 16] and offsets [16], which hold zeros, to those of the children first..first+width.

        `bias` is the solver's constant feature, already multiplied by its step.
        """
        level = self.level
        begin = int(level.children_offsets[self.chunk])
        lanes, values = read_only(level.lanes), read_only(level.values)  # as those of a loaded model
        kernels.load_lanes(*self._entries, lanes, values, first - begin, width, weights)
        weights /= self.steps[:, None]
        if bias > 0:
            offsets[:width] = level.bias[first : first + width] / np.float32(bias)

    def completed(self, part: ChunkPart, first: int, max_weights: int | None) -> ChunkPart:
        """The children from `first` on with the weights of all features: those of `part`, and the others unchanged."""
        level, width = self.level, len(part.bias)
        low, high = level.chunk_offsets[self.chunk : self.chunk + 2]
        entries = slice(*level.row_offsets[[low, high]])
        counts = np.diff(level.row_offsets[low : high + 1])
        others = ~np.isin(level.features[low:high], self.features)
        lanes = level.lanes[entries].astype(np.int64) - (first - int(level.children_offsets[self.chunk]))
        kept = np.repeat(others, counts) & (lanes >= 0) & (lanes < width) & (level.values[entries] != 0)
        trained = np.repeat(part.features, part.row_counts)
        features = np.append(np.repeat(level.features[low:high], counts)[kept], trained)
        lanes = np.append(lanes[kept], part.lanes)
        values = np.append(level.values[entries][kept], part.values)
        if max_weights is not None:
            largest = _largest(lanes, values, max_weights)
            features, lanes, values = features[largest], lanes[largest], values[largest]
        order = np.argsort(features, kind="stable")  # keeps the lanes of a feature ascending
        unique, row_counts = np.unique(features, return_counts=True)
        return ChunkPart(
            unique.astype(np.int32), row_counts, lanes[order].astype(part.lanes.dtype), values[order], part.bias
        )


def _largest(lanes: np.ndarray, values: np.ndarray, limit: int) -> np.ndarray:
    """Mask of the `limit` entries per lane with the largest absolute values."""
    order = np.lexsort((-np.abs(values), lanes))
    counts = np.bincount(lanes)
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    mask = np.zeros(len(values), bool)
    mask[order] = ranks < limit
    return mask


# --- pass limit ---
# Limits the passes of the solver so that the classifiers of a level are trained before a time budget ends.
#
# The time per pass is measured while chunks are trained. As long as all of them can be trained to the end, nothing is
# limited; with less time the remaining chunks get fewer passes, and when it is over only constants: a label is then
# scored by its frequency among the documents of its node.

SECONDS_PER_ENTRY = 2e-8
"""Seconds per pass and non-zero feature for 16 labels, expected before anything is measured."""


class SolverPace:
    """How long a pass of the solver takes per unit of work, over all levels and trees.

    Before anything is measured, it is estimated from the number of features per document.
    """

    def __init__(self, features: FeatureRows) -> None:
        entries = len(features.indices) / max(features.shape[0], 1) + features.n_dense
        self.work, self.seconds = 1.0, SECONDS_PER_ENTRY * max(entries, 1.0)
        self.trained = 0
        self._lock = threading.Lock()

    def add(self, work: float, seconds: float) -> None:
        """Work times passes that have taken so many seconds on one thread."""
        with self._lock:
            self.work, self.seconds = self.work + work, self.seconds + seconds
            self.trained += 1


class PassLimit:
    """Passes for the chunks of a level.

    Parameters
    ----------
    budget, whole
        Time budget of this level, and of the whole tree: a chunk gets one pass at least until that one ends.
    pace
        What was measured so far.
    """

    def __init__(self, budget: Budget, whole: Budget, pace: SolverPace) -> None:
        self.budget, self.whole, self.pace = budget, whole, pace
        self.left = 0.0
        """Work of the chunks that have not begun."""
        self.cut: dict[int, int] = {}
        """Passes of the chunks that were not trained to the end, by first child."""
        self._lock = threading.Lock()

    def passes(self, work: float, max_passes: int) -> int:
        """Maximum number of passes for the next chunk; 0 if there is no time, except for the first chunk of all."""
        if not self.budget.is_limited or work == 0:  # a node whose labels have no documents takes no time
            return max_passes
        with self._lock:
            left, self.left = max(self.left, work), self.left - work
        available = self.budget.remaining() * min(threads(), left / work)
        allowed = int(min(available / (self.pace.seconds / self.pace.work * left), max_passes))
        return max(allowed, 0 if self.whole.expired() and self.pace.trained else 1)

    def add(self, first: int, work: float, passes: float, seconds: float, limit: int | None) -> None:
        """Record a chunk that has taken `passes` passes over `work`; with a `limit` it was not trained to the end."""
        if passes > 0:
            self.pace.add(work * passes, seconds)
        if limit is not None:
            self.whole.end_early()
            with self._lock:
                self.cut[first] = limit

    def __str__(self) -> str:
        few = [passes for passes in self.cut.values() if passes]
        parts = []
        if few:
            span = f"{min(few)}" if min(few) == max(few) else f"{min(few)} to {max(few)}"
            parts.append(f"{len(few):,} groups of classifiers to {span} passes")
        if len(few) < len(self.cut):
            parts.append(f"{len(self.cut) - len(few):,} groups to the frequencies of their labels")
        return f"the time budget limited {' and '.join(parts)}"


UNCOPIED = 0.05
"""Fraction of all entries from which a chunk uses the data without a copy of its rows."""
BLOCKED_FROM, BLOCK_ENTRIES = 1 << 23, 1 << 22
"""Entries of a chunk from which on the solver visits its rows in blocks, and entries per block. Rows that are read from
the disk in random order would be read one by one: with `hold`, smaller chunks of mapped features are always in memory,
see `held_bytes`."""
COPIED_BELOW = 0.5
"""Fraction of all entries below which a chunk that is not in memory is copied to a file of its own."""
HELD = 0.15
"""Fraction of the free memory for documents of mapped features."""
LANES = 16  # labels that the solver trains at a time, as in kernels.intrinsics
Positive = Annotated[float, Field(ge=1e-30, le=1e30)]


class SolverConfig(Config):
    """Training of a linear classifier by dual coordinate descent."""

    loss: Literal["squared_hinge", "hinge", "logistic"] = "squared_hinge"
    """Loss per example."""
    cost_positive: Positive = 1.0
    """Cost of positive examples relative to the regularization of weights (C)."""
    cost_negative: Positive = 1.0
    """Cost of negative examples relative to the regularization of weights (C)."""
    bias: Annotated[float, Field(ge=0)] = 1.0
    """Value of the constant feature of every document; 0 for no bias."""
    tolerance: Positive = 0.1
    """Stop when no dual variable violates its optimality condition by more than this."""
    max_passes: Annotated[int, Field(ge=1)] = 100
    """Maximum number of passes over the examples."""
    threshold: Annotated[float, Field(ge=0)] = 0.1
    """Drop weights with an absolute value below this."""
    max_weights: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of weights per label; the largest are kept."""


class Chunk(NamedTuple):
    """The children first..last of one node, and the documents to train them on (None: all)."""

    first: int
    last: int
    rows: np.ndarray | None


class Group(NamedTuple):
    """Up to 16 children of a chunk, trained: the passes taken, the kept weights feature by feature, and the biases."""

    passes: int
    features: np.ndarray
    lanes: np.ndarray
    values: np.ndarray
    bias: np.ndarray


class LevelTrainer:
    """Trains the chunks of a level. Targets are CSR with columns in tree order.

    With `initial` the solver starts from these weights instead of zeros, and parts have all weights of their chunk:
    those of features that do not occur in its documents are unchanged. `folder`: of mapped features, whose documents
    are then in memory or, if a chunk has more than `held_bytes`, in copies there.
    """

    def __init__(
        self,
        features: FeatureRows,
        norms: np.ndarray,
        targets: Any,
        settings: TrainingSettings,
        seed: int,
        limit: PassLimit | None = None,
        initial: InitialWeights | None = None,
        folder: Path | None = None,
    ) -> None:
        self.features, self.norms, self.targets = features, norms, FeatureRows.of(targets)
        self.solver, self.weighted, self.seed = settings.solver, settings.relevance, seed
        self.limit = limit or PassLimit(NO_LIMIT, NO_LIMIT, SolverPace(features))
        self.initial, self.folder = initial, folder
        self.hold = held_bytes(settings.memory) if folder is not None and is_mapped(features) else None
        self._held: HeldRows | None = None
        self._scratch = threading.local()

    def train(self, chunks: Sequence[Chunk], what: str) -> list[ChunkPart]:
        """Train the chunks; returns them in order."""
        return whole(chunks, self.train_pieces(pieces_of(chunks), what))

    def train_pieces(
        self, pieces: Sequence[Chunk], what: str, finished: Callable[[int, ChunkPart], None] | None = None
    ) -> dict[int, ChunkPart]:
        """Train pieces of chunks (see `pieces_of`); returns them by first child.

        `finished` is called with each one that was trained to the end.
        """
        # the largest first, so that threads finish at about the same time; among equals the most frequent labels, in
        # case the time does not suffice for all
        pieces = sorted(pieces, key=lambda piece: (-self.work(piece), -self._counts[piece.first : piece.last].sum()))
        parts: dict[int, ChunkPart] = {}
        lock = threading.Lock()
        self.limit.left = sum(map(self.work, pieces))
        with progress(what, self.limit.left, "work", seconds_left=self.limit.budget.remaining) as step:

            def train(piece: Chunk) -> None:
                part = self._train_piece(piece)
                with lock:
                    parts[piece.first] = part
                    step(self.work(piece))
                if finished is not None and piece.first not in self.limit.cut:
                    finished(piece.first, part)

            for batch in self._batches(pieces):
                run_all(train, batch)
        return parts

    def _batches(self, pieces: list[Chunk]) -> Iterator[list[Chunk]]:
        """All pieces at once or, if features are mapped, in batches whose documents are in memory meanwhile."""
        if self.hold is None:
            yield pieces
            return
        rank = {piece.first: number for number, piece in enumerate(pieces)}
        neighbours = sorted(pieces, key=lambda piece: piece.first)  # they share documents
        every = np.arange(self.features.shape[0])
        documents = (every if piece.rows is None else piece.rows for piece in neighbours)
        for batch, rows in batches_of(neighbours, documents, self.features, self.hold):
            self._held = None  # freed before others are read
            self._held = hold_rows(self.features, rows) if len(rows) else None
            yield sorted(batch, key=lambda piece: rank[piece.first])
        self._held = None

    def work(self, chunk: Chunk) -> float:
        """The work of a pass, compared with other chunks."""
        return float(work_per_pass(self._n_rows(chunk), chunk.last - chunk.first))

    def _n_rows(self, chunk: Chunk) -> int:
        return self.features.shape[0] if chunk.rows is None else len(chunk.rows)

    def _train_piece(self, chunk: Chunk) -> ChunkPart:
        begin, work, whole_passes = time.monotonic(), self.work(chunk), self.solver.max_passes
        max_passes = self.limit.passes(work, whole_passes)
        if max_passes == 0:
            self.limit.add(chunk.first, work, 0, 0.0, 0)
            return self._constant(chunk)
        local = self._local(chunk)
        start, bias = None, self.solver.bias
        if self.initial is not None:
            start = self.initial.chunk(chunk.first, local.features)
            local, bias = local.scaled(start.steps), bias * start.bias_step
        row_counts = np.zeros(len(local.features), np.int32)
        groups = [
            self._train_group(chunk, first, local, start, bias, max_passes, row_counts)
            for first in range(chunk.first, chunk.last, LANES)
        ]
        passes = [group.passes for group in groups]
        complete = max_passes == whole_passes or max(passes) < max_passes
        seconds = time.monotonic() - begin
        self.limit.add(chunk.first, work, sum(passes) / len(passes), seconds, None if complete else max_passes)
        part = _assembled(local.features if start is None else start.features, row_counts, groups)
        return part if start is None else start.completed(part, chunk.first, self.solver.max_weights)

    def _train_group(
        self,
        chunk: Chunk,
        first: int,
        local: LocalRows,
        start: ChunkStart | None,
        bias: float,
        max_passes: int,
        row_counts: np.ndarray,
    ) -> Group:
        """Train up to 16 children of a chunk from `first` on, and add their kept weights to the counts per feature."""
        solver, width = self.solver, min(LANES, chunk.last - first)
        count, n = len(local.features), len(local.rows)
        weights = self._buffer("weights", (count, LANES), np.float32)
        signs = self._buffer("signs", (n, LANES), np.int8)
        plain = np.array([[solver.cost_negative, solver.cost_positive]], np.float32)
        costs = self._buffer("costs", (n, LANES), np.float32) if self.weighted else plain
        entries = int((local.ends - local.starts).sum())
        block = max(n, 1) if entries < BLOCKED_FROM else max(1, n * BLOCK_ENTRIES // entries)
        dense = read_only(bits_of(local.dense))
        loss = ("squared_hinge", "hinge", "logistic").index(solver.loss)
        kernels.lane_targets(
            self.targets.indptr, self.targets.indices, self.targets.data, local.rows, first, width, signs, costs,
            self.weighted, np.float32(solver.cost_positive), np.float32(solver.cost_negative),
        )  # fmt: skip
        weights[:] = 0
        offsets = np.zeros(LANES, np.float32)
        if start is not None:
            start.load(first, width, bias, weights, offsets)
        passes = kernels.solve_lanes(
            local.starts, local.ends, local.indices, local.values, local.dense_rows, dense, local.first_dense,
            local.norms, signs, costs, self.weighted, width, loss, np.float32(bias), np.float32(solver.tolerance),
            max_passes, self.seed + first, block, weights, offsets,
        )  # fmt: skip
        if start is not None:
            weights *= start.steps[:, None]
        cuts = np.full(LANES, solver.threshold, np.float32)
        if solver.max_weights is not None and solver.max_weights < count:
            kernels.limit_weights(weights, count, width, solver.max_weights, cuts)
        before = int(row_counts.sum())
        kernels.count_kept(weights, count, width, cuts, row_counts)
        kept = int(row_counts.sum()) - before
        lanes = np.empty(kept, np.uint16 if chunk.last - chunk.first <= 1 << 16 else np.uint32)
        group = Group(
            passes, np.empty(kept, np.int32), lanes, np.empty(kept, np.float32), offsets[:width] * np.float32(bias)
        )
        kernels.write_kept(weights, count, width, cuts, first - chunk.first, group.features, lanes, group.values)
        return group

    def _constant(self, chunk: Chunk) -> ChunkPart:
        """Only the constant margins that fit best: without any pass a label is scored by its frequency in the node."""
        mean = 2 * np.minimum(self._counts[chunk.first : chunk.last] / max(self._n_rows(chunk), 1), 1.0) - 1
        margins = 2 * np.arctanh(mean.clip(-0.9999, 0.9999)) if self.solver.loss == "logistic" else mean
        lanes = np.empty(0, np.uint16 if len(mean) <= 1 << 16 else np.uint32)
        nothing = np.empty(0, np.int32)
        return ChunkPart(nothing, nothing, lanes, np.empty(0, np.float32), margins.astype(np.float32))

    @cached_property
    def _counts(self) -> np.ndarray:
        """Documents of each child."""
        return counts_of(self.targets.indices, self.targets.shape[1])

    def _local(self, chunk: Chunk) -> LocalRows:
        """The chunk's rows with features renumbered; chunks with much of the data use it without a copy.

        Dense columns are never copied; they are numbered after the sparse features.
        """
        X = self.features
        rows = np.arange(X.shape[0]) if chunk.rows is None else chunk.rows.astype(np.int64)
        (indptr, indices, values), given = (X.indptr, X.indices, X.data), rows
        held = self._held if self._held is not None else self._copy_to_disk(rows)
        if held is not None:
            (indptr, indices, values), given = held[1:], held.positions(rows)
        starts, ends = indptr[given].astype(np.int64), indptr[given + 1].astype(np.int64)
        total = int((ends - starts).sum())
        n_features, first_dense = X.shape[1] - X.unused, X.first_dense
        if total >= UNCOPIED * len(X.indices) or (self.hold is not None and self._held is None):
            features = np.arange(n_features, dtype=np.int32)
        else:
            numbers = self._buffer("numbers", (n_features,), np.int32, fill=-1)
            features = self._buffer("features", (n_features,), np.int32)
            source = indptr, read_only(indices), read_only(values), given
            indptr = np.empty(len(rows) + 1, np.int64)
            indices = self._buffer("indices", (total,), np.int32)
            values = self._buffer("values", (total,), np.float32)
            first_dense = kernels.gather_rows(*source, numbers, features, indptr, indices, values)
            starts, ends = indptr[:-1], indptr[1:]
            columns = np.arange(X.first_dense, X.first_dense + X.n_dense, dtype=np.int32)
            features = np.concatenate([features[:first_dense], columns])
        arrays = starts, ends, read_only(indices), read_only(values), X.dense, rows
        return LocalRows(rows, *arrays, first_dense, self.norms[rows], features)

    def _copy_to_disk(self, rows: np.ndarray) -> HeldRows | None:
        """Copy the rows of a chunk that are not in memory to a file of their own, unless they are most of the features.

        A copy only saves time: after one that was not possible no other is tried.
        """
        X = self.features
        if self.hold is None or self.folder is None:
            return None
        if int((X.indptr[rows + 1] - X.indptr[rows]).sum()) >= COPIED_BELOW * len(X.indices):
            return None
        copy = copy_rows_to_disk(X, rows, self.folder)
        if copy is None:
            self.folder = None
        return copy

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: Any, fill: int | None = None) -> np.ndarray:
        """Scratch memory of this thread, reused for all chunks: new pages are expensive."""
        size = int(np.prod(shape))
        buffer = getattr(self._scratch, name, None)
        if buffer is None or len(buffer) < size:
            buffer = None
            setattr(self._scratch, name, None)  # freed before the larger one is allocated
            buffer = pages.empty(size, dtype)  # freed with the trainer of the level
            if fill is not None:
                buffer[:] = fill
            setattr(self._scratch, name, buffer)
        return buffer[:size].reshape(shape)


def held_bytes(memory: float | str) -> int:
    """Bytes of documents of mapped features that are in memory at a time: all of a chunk that has no blocks."""
    return max(block_bytes(memory, HELD), ENTRY_BYTES * BLOCKED_FROM)


def pieces_of(chunks: Iterable[Chunk]) -> list[Chunk]:
    """What is trained as one task: a chunk, or 16 siblings each if it uses all documents, which are not copied."""
    pieces = []
    for chunk in chunks:
        step = LANES if chunk.rows is None else max(chunk.last - chunk.first, 1)
        edges = range(chunk.first, chunk.last, step)
        pieces += [Chunk(first, min(first + step, chunk.last), chunk.rows) for first in edges]
    return pieces


def whole(chunks: Iterable[Chunk], parts: dict[int, ChunkPart]) -> list[ChunkPart]:
    """The chunks in order from their pieces, by first child; these are removed from `parts`."""
    return [ChunkPart.side_by_side([parts.pop(piece.first) for piece in pieces_of([chunk])]) for chunk in chunks]


def chunks_of(offsets: np.ndarray, documents: Any) -> list[Chunk]:
    """The children of each node, with the node's documents; None: one node with all documents."""
    if documents is None:
        return [Chunk(0, int(offsets[-1]), None)]
    return [
        Chunk(int(offsets[p]), int(offsets[p + 1]), documents.indices[documents.indptr[p] : documents.indptr[p + 1]])
        for p in range(len(offsets) - 1)
    ]


def work_per_pass(rows: Any, children: Any) -> Any:
    """Documents of a node times groups of children that are trained at a time: numbers or arrays."""
    return rows * -(-children // LANES)


def squared_norms(features: FeatureRows) -> np.ndarray:
    """The squared norm of each row, float32; computed in blocks of rows to save memory."""
    norms, block = np.zeros(features.shape[0], np.float32), 1 << 12
    for first in range(0, len(norms), block):
        bounds = features.indptr[first : first + block + 1]
        data = features.data[bounds[0] : bounds[-1]]
        filled = np.flatnonzero(np.diff(bounds))
        if len(filled):
            norms[first + filled] = np.add.reduceat(data * data, (bounds[:-1] - bounds[0])[filled])
        if first % (block << 6) == 0:
            release_pages(features.data)
        if features.n_dense:
            dense = features.dense[first : first + block].astype(np.float32)
            norms[first : first + block] += np.square(dense, out=dense).sum(axis=1)
    return norms


def _assembled(features: np.ndarray, row_counts: np.ndarray, groups: Sequence[Group]) -> ChunkPart:
    """Merge the groups' kept weights feature by feature; features without any are left out."""
    offsets = np.concatenate([[0], np.cumsum(row_counts)])
    lanes = np.empty(int(offsets[-1]), groups[0].lanes.dtype)
    values = np.empty(int(offsets[-1]), np.float32)
    next_entries = offsets[:-1].copy()
    for group in groups:
        kernels.merge_kept(group.features, group.lanes, group.values, next_entries, lanes, values)
    used = row_counts > 0
    return ChunkPart(features[used], row_counts[used], lanes, values, np.concatenate([group.bias for group in groups]))
