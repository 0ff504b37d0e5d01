"""When linear trees that have learned more documents should be trained from the beginning."""

from __future__ import annotations

import math

import numpy as np

from labelwise.linear.learn import MAX_GROWTH, Learned, TrainingStatistics
from labelwise.linear.trees import LinearTrees

MAX_DOCUMENTS = 0.2
"""Learned documents as a fraction of those of the full training. `benchmarks/learn.py` measures what they cost."""
MAX_LABELS = 0.1
"""New labels as a fraction of those of the full training."""
MAX_LABELS_ALONE = 0.01
"""The same for labels learned without old documents, which are predicted too often."""
MAX_FEATURES = 0.25
"""New features as a fraction of those of the full training."""
MAX_DROP = 0.03
"""Difference in P@5, on documents before they were learned, to the first ones that were learned."""


def retraining_reasons(trees: LinearTrees) -> tuple[str, ...]:
    """Why a full training is due; empty if it is not."""
    statistics = trees.statistics
    if statistics is None or not statistics.learned:
        return ()
    total = Learned(*np.sum(statistics.learned, axis=0))
    n_labels = trees.trees[0][0].n_labels
    reasons = [
        _exceeding("documents", total.documents, int(statistics.documents[0][0]), MAX_DOCUMENTS),
        _exceeding("labels", total.labels, n_labels, MAX_LABELS),
        _exceeding("labels without old documents", total.labels_alone, n_labels, MAX_LABELS_ALONE),
        _exceeding("features", total.features, len(trees.order.original), MAX_FEATURES),
        _full_nodes(trees, int(total.labels)),
        _drop(statistics),
    ]
    return tuple(reason for reason in reasons if reason is not None)


def _exceeding(what: str, learned: float, now: int, limit: float) -> str | None:
    before = now - learned
    if learned <= limit * before:
        return None
    return f"{learned:,.0f} {what} learned since, {learned / max(before, 1):.0%} of {before:,.0f} (limit {limit:.0%})"


def _full_nodes(trees: LinearTrees, n_new: int) -> str | None:
    """Whether all lowest nodes of a tree may have been full: then labels are where they do not belong."""
    for tree, _ in trees.trees:
        if tree.depth == 1 or not n_new:
            continue
        sizes = np.diff(tree.children_offsets(tree.depth - 1))
        mean = (sizes.sum() - n_new) / len(sizes)
        if sizes.max() > 2 * MAX_GROWTH * mean:
            return f"a node has {sizes.max():,} labels, {sizes.max() / mean:.0f} times the mean of the full training"
    return None


def _drop(statistics: TrainingStatistics) -> str | None:
    first, last = statistics.learned[0], statistics.learned[-1]
    if not first.predicted or not last.predicted:
        return None
    before, now = first.hits / first.predicted, last.hits / last.predicted
    fewest = max(min(first.documents, last.documents), 1)
    noise = 2 * math.sqrt(0.25 / fewest)  # at most: half a document's P@5 is its deviation
    if before - now <= max(MAX_DROP, noise):
        return None
    return f"P@5 on new documents before learning them fell from {100 * before:.1f} to {100 * now:.1f}"
