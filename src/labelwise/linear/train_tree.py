"""Training a whole label tree: level by level from the top, each node's children against each other.

What a node's children learn from: with `teacher` the documents that have a label below the node; with `matcher` the
documents that the levels above send there by mistake as well, so that the level learns what it will really be shown.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy import sparse

from labelwise.codes.tree import LabelTree
from labelwise.features.rows import Rows
from labelwise.linear.beam import beam_search
from labelwise.linear.level_trainer import Chunk, LevelTrainer, SolverConfig, pieces_of, squared_norms
from labelwise.linear.shards import ChunkShards
from labelwise.linear.weights import ChunkedWeights, ChunkPart

log = logging.getLogger("labelwise")

Negatives = Literal["teacher", "matcher"]


def train_tree(
    features: Any,
    labels: Any,
    tree: LabelTree,
    solver: SolverConfig,
    *,
    negatives: Negatives = "teacher",
    user_negatives: Any = None,
    relevance: bool = False,
    beam: int = 10,
    post_processor: str = "l3_hinge",
    seed: int = 0,
    shards: ChunkShards | None = None,
    number: int = 0,
) -> list[ChunkedWeights]:
    """The weights of every level, top down.

    Parameters
    ----------
    features, labels
        CSR [documents, features] with sorted indices or `Rows` with the dense columns last, CSR [documents, labels].
    user_negatives
        CSR [documents, labels]: further documents to learn a label's siblings from.
    relevance
        Weigh a positive example by the label's value (a node's by the sum of those below), rows scaled to sum 1 and
        then to the number of the document's labels, so that costs keep their size.
    shards, number
        Where finished chunks are kept, those of an earlier, stopped try too, and the tree's number among them.
    """
    features = Rows.of(features)
    norms = squared_norms(features)
    targets = tree.aggregate(labels)
    further = tree.aggregate(user_negatives) if user_negatives is not None else None
    levels: list[ChunkedWeights] = []
    for depth, target in enumerate(targets):
        if relevance:
            target = _scaled(target)
        offsets = tree.children_offsets(depth)
        chunks = _chunks(offsets, _seen_by(depth, targets, further, levels, features, negatives, beam, post_processor))
        trainer = LevelTrainer(features, norms, target, solver, relevance, seed)
        what = f"level {depth + 1} of {len(targets)}"
        if shards is None:
            parts = trainer.train(chunks, what)
        else:
            widths = {piece.first: piece.last - piece.first for chunk in chunks for piece in pieces_of(chunk)}
            done = shards.level(number, depth, widths, features.shape[1])
            parts = trainer.train(chunks, what, done, partial(_keep, shards, number, depth))
        levels.append(ChunkedWeights.joined(parts, features.shape[1], offsets).filled())
        log.info("level %d of %d: %s nodes, %s weights", depth + 1, len(targets),
                 f"{levels[-1].n_children:,}", f"{levels[-1].n_weights:,}")  # fmt: skip
    return levels


def _keep(shards: ChunkShards, number: int, depth: int, first: int, part: ChunkPart) -> None:
    shards.add((number, depth, first), part)


def _seen_by(
    depth: int,
    targets: list,
    further: list | None,
    levels: list,
    features: Any,
    negatives: Negatives,
    beam: int,
    post: str,
) -> Any:
    """CSC [documents, nodes above]: which documents each node's children learn from; None at the top (all)."""
    if depth == 0:
        return None
    seen = targets[depth - 1]
    if further is not None:
        seen = seen + further[depth - 1]
    if negatives == "matcher":
        width = levels[-1].n_children
        top = beam_search(features, levels, np.arange(width), beam, min(beam, width), post)
        sent = top.to_csr(width)
        sent.data[:] = 1  # a score of 0 was sent there all the same
        seen = seen + sent
    return sparse.csc_array(seen)


def _chunks(offsets: np.ndarray, seen: Any) -> list[Chunk]:
    if seen is None:
        return [Chunk(0, int(offsets[-1]), None)]
    return [
        Chunk(int(offsets[p]), int(offsets[p + 1]), seen.indices[seen.indptr[p] : seen.indptr[p + 1]])
        for p in range(len(offsets) - 1)
    ]


def _scaled(target: Any) -> Any:
    """Rows scaled so that their values average 1."""
    counts = np.diff(target.indptr)
    sums = np.asarray(target.sum(axis=1)).ravel()
    factors = np.divide(counts, sums, out=np.ones(len(counts)), where=sums > 0)
    scaled = target.copy()
    scaled.data = (target.data * np.repeat(factors, counts)).astype(np.float32)
    return scaled
