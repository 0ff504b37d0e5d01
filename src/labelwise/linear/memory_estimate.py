"""How much memory training will take, told before it begins: better a sentence now than a killed process at night.

Everything but the weights kept follows from sizes that are known once the trees are made. How many weights will be
kept is guessed from a sample of nodes: a feature is kept if the node's documents hold enough of it. Of several trees
the first stands for all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.codes.tree import LabelTree
from labelwise.data.blocks import Blocks
from labelwise.errors import ConfigError
from labelwise.features.label_features import two_blocks
from labelwise.features.rows import Rows
from labelwise.formatting import size
from labelwise.free_memory import free_memory
from labelwise.linear.level_trainer import LANES, UNCOPIED, SolverConfig
from labelwise.parallel import threads
from labelwise.result_fields import Decides

log = logging.getLogger("labelwise")

Memory = Annotated[Literal["check", "ignore"] | Annotated[float, Field(gt=0)], Decides.NOTHING]
"""Whether what does not fit is refused: yes, no, or yes with a limit of one's own in GB."""

SAMPLE = 40
"""Nodes of a level whose weights are guessed from their documents."""
SAMPLE_ROWS = 500
"""Documents of a sampled node at most."""
TYPICAL_DUAL = 0.5
"""What a positive example is usually multiplied by in a classifier's weights."""
BY_NEGATIVES = 1.5
"""Weights kept in all for one that positive examples alone would bring."""
ROW_BYTES, COST_BYTES = 16 + 64 + 8 + 8 + 8 + 4, 64
"""Of a document in the solver: signs, duals, order, number, place and length; costs too if examples are weighed."""
FEATURE_BYTES = 64 + 20
"""Of a feature in the solver: the weights of 16 siblings; number and counts."""
STORED = {"float32": 6, "float16": 4, "int8": 3}
"""Bytes of a weight."""
SHARED = 0.5
"""Features of a chunk with weights, for one weight: siblings share them."""
FILLED = 1.6
"""Weights stored for one that is kept: rows that are nearly full are filled up with zeros."""
SLACK, ALWAYS = 1.15, 15_000_000
"""For what the memory allocator wastes; and for all that is small."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that are held at once when most is held, beside the features and labels."""

    threads: float = 0
    """What the threads work on."""
    targets: float = 0
    """Which documents belong to which nodes."""
    weights: float = 0
    """What is learned."""
    label_features: float = 0
    """What labels are described by to cluster them."""

    @property
    def total(self) -> int:
        """All together."""
        return ALWAYS + int(SLACK * (self.threads + self.targets + self.weights + self.label_features))


def check_memory(need: MemoryNeed, memory: Memory, held: int = 0, report: bool = True) -> None:
    """Report what is needed and what is there; refuse what does not fit, unless `memory` says otherwise.

    A limit of one's own is for everything, the `held` bytes of features and labels too.
    """
    free = free_memory()
    if isinstance(memory, float | int):
        limit = int(memory * 1e9) - held
        free = limit if free is None else min(limit, free)
    known = "" if free is None else f"; {size(max(0, free))} are free"
    if report:
        log.info("training needs about %s beside the data (%s)%s", size(need.total), size(held), known)
    if memory != "ignore" and free is not None and need.total > free:
        raise ConfigError(
            f"training needs about {size(need.total)} of memory, {size(max(0, free))} are free; {_advice(need)}, "
            "or set memory to ignore to try all the same"
        )


def _advice(need: MemoryNeed) -> str:
    """What to change, by what takes most."""
    advice = {
        "threads": f"use fewer threads (now {threads()}) or fewer features (tfidf.max_features, a higher tfidf.min_df)",
        "weights": "keep fewer weights (a higher solver.threshold, solver.max_weights), fewer trees or less precision",
        "targets": "use fewer documents (data.limit)",
        "label_features": "describe labels by fewer features (label_features)",
    }
    ordered = sorted(advice, key=lambda part: -getattr(need, part))
    worth = [part for part in ordered if getattr(need, part) >= 0.2 * getattr(need, ordered[0])]
    return "; ".join(advice[part] for part in worth[:2])


def bytes_of(features: Any, labels: Any) -> int:
    """Bytes that features (of any kind) and labels hold."""
    blocks = [features.sparse, features.dense] if isinstance(features, Blocks | Rows) else [features]
    arrays = [block for block in blocks if isinstance(block, np.ndarray)]
    for matrix in [labels, *(block for block in blocks if sparse.issparse(block))]:
        arrays += [matrix.indptr, matrix.indices, matrix.data]
    return sum(array.nbytes for array in arrays)


def clustering_need(features: Any, labels: Any, keep: int | None) -> MemoryNeed:
    """For describing labels by their documents and clustering them, before training begins."""
    csr, dense = two_blocks(features)
    documents = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
    entries = np.bincount(labels.indices, np.diff(csr.indptr)[documents], labels.shape[1])
    entries = np.minimum(entries, min(keep or csr.shape[1], csr.shape[1]))
    described = 3 * (8.0 * entries.sum() + 4.0 * dense.shape[1] * labels.shape[1])
    return MemoryNeed(8.0 * threads() * features.shape[1], 16.0 * labels.nnz, 0, described)


def training_need(
    features: Any,
    labels: Any,
    tree: LabelTree,
    solver: SolverConfig,
    *,
    trees: int = 1,
    weighted: bool = False,
    matched: int = 0,
    precision: str = "float32",
) -> MemoryNeed:
    """For training some trees like this one.

    `matched` is the beam if documents are also sent down by what is learned; `weighted` if examples have costs.
    """
    features = Rows.of(features)
    n, n_features = features.shape[0], features.shape[1] - features.unused
    targets = tree.aggregate(labels)
    target_bytes = float(sum(12 * target.nnz + 4 * n for target in targets) + 4 * n + 40 * n * matched)
    row_bytes = ROW_BYTES + weighted * COST_BYTES
    levels = []
    for depth, target in enumerate(targets):
        offsets = tree.children_offsets(depth)
        if depth == 0:
            at_once = min(threads(), -(-int(offsets[-1]) // LANES))
            work = at_once * float(row_bytes * n + FEATURE_BYTES * n_features)
            chunk_features = np.array([float(n_features)])
        else:
            work, chunk_features = _of_chunks(features, targets[depth - 1], row_bytes)
        levels.append((work, *_kept(features, target, offsets, chunk_features, solver)))
    smaller = STORED[precision] / STORED["float32"]
    before = (trees - 1) * sum(FILLED * weights * smaller + rows for _, weights, rows in levels)
    needs = []
    for work, weights, rows in levels:  # a level's chunks are there one by one and, at the end, joined
        needs.append(MemoryNeed(work, target_bytes, before + (1 + FILLED) * weights + 2 * rows))
        before += FILLED * weights + rows
    if precision == "int8":  # every weight's node is written down to scale it
        needs.append(MemoryNeed(0, 0, before + max(weights for _, weights, _ in levels) * 4 * FILLED))
    return max(needs, key=lambda need: need.total)


def _of_chunks(features: Rows, above: Any, row_bytes: int) -> tuple[float, np.ndarray]:
    """Bytes of the largest chunks, one a thread; and about how many features each chunk has."""
    rows = np.bincount(above.indices, minlength=above.shape[1])
    entries = np.bincount(above.indices, np.repeat(np.diff(features.indptr), np.diff(above.indptr)), above.shape[1])
    largest = int(np.argmax(entries))
    holders = np.repeat(np.arange(above.shape[0]), np.diff(above.indptr))[above.indices == largest]
    step = max(1, len(holders) // SAMPLE_ROWS)
    sampled = features.sparse[holders[::step]]
    # a vocabulary grows about as the root of the text, so the sample's is scaled to each chunk's size
    known = np.count_nonzero(np.bincount(sampled.indices, minlength=1)) / np.sqrt(max(sampled.nnz, 1))
    n_features = features.shape[1] - features.unused
    chunk_features = np.minimum(np.minimum(entries, n_features), known * np.sqrt(entries)) + features.n_dense
    uncopied = entries >= UNCOPIED * len(features.indices)
    copies = np.where(uncopied, 0, 8 * entries)
    tables = FEATURE_BYTES * np.where(uncopied, n_features, chunk_features)
    sizes = np.sort(copies + tables + row_bytes * rows)
    at_once = min(threads(), len(sizes))
    return float(sizes[-at_once:].sum() + at_once * 8 * n_features), chunk_features


def _kept(
    features: Rows, target: Any, offsets: np.ndarray, chunk_features: np.ndarray, solver: SolverConfig
) -> tuple[float, float]:
    """Bytes of a level's weights, and of the lists of features that each chunk has weights for."""
    each = np.repeat(chunk_features, np.diff(offsets))
    if solver.threshold > 0:
        each = np.minimum(each, BY_NEGATIVES * _enough(features, target, solver.threshold / TYPICAL_DUAL))
    if solver.max_weights is not None:
        each = np.minimum(each, solver.max_weights)
    by_chunk = np.add.reduceat(each, offsets[:-1])
    rows = np.minimum(SHARED * by_chunk, chunk_features)
    return STORED["float32"] * float(by_chunk.sum()), 12 * float(rows.sum())


def _enough(features: Rows, target: Any, least: float) -> np.ndarray:
    """Features that each node's documents hold at least so much of; looked up for some nodes, guessed for others.

    Nodes with about the same number of documents are taken to be alike.
    """
    order = np.argsort(np.bincount(target.indices, minlength=target.shape[1]), kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, SAMPLE).astype(np.int64))
    columns, csr = target[:, order[places]].tocsc(), features.sparse
    found = np.empty(len(places))
    for number in range(len(places)):
        holders = columns.indices[columns.indptr[number] : columns.indptr[number + 1]]
        step = max(1, len(holders) // SAMPLE_ROWS)
        rows = csr[holders[::step]]
        found[number] = (np.bincount(rows.indices, np.abs(rows.data), 1) * step >= least).sum()
        if features.n_dense:
            sums = np.abs(features.dense[holders[::step]]).sum(axis=0, dtype=np.float32)
            found[number] += (sums * step >= least).sum()
    each = np.empty(len(order))
    each[order] = np.interp(np.arange(len(order)), places, found)
    return each
