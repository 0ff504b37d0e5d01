"""The cost of linear trees from the shape of the data: passes over non-zeros, kept weights, and their memory.

Training: TF-IDF, label features (one pass over the documents of every label), halving (passes over the label features
per layer), and per level a solver's passes over the documents of every node, 16 children at once. Kept weights per
label, and the time per unit of each of these, are measured (`Constants`); the size of a stored weight too.

A single document: its features are looked up in the chunks that the beam visits at each level, which takes longer the
less of the model is in the processor's caches; then children are scored, 16 at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from labelwise.features.rows import ENTRY_BYTES
from labelwise.labelspace.clustering import COPIED_WORK
from labelwise.linear.memory import (
    COST_BYTES,
    FEATURE_BYTES,
    FILLED,
    OVERHEAD,
    PACKED,
    ROW_BYTES,
    SHARED,
    WEIGHT_BYTES,
    clusters_at_once,
)
from labelwise.linear.solver import (
    BLOCKED_FROM,
    HELD,
    LANES,
    UNCOPIED,
    SolverConfig,
)
from labelwise.planning.costs import (
    BASE_BYTES,
    HASH_BYTES,
    NAME_BYTES,
    Constants,
    Cost,
    DataShape,
    Scratch,
)
from labelwise.runtime.memory import MOST_BYTES

SAMPLED_LAYER = 1.3
"""Cost of a layer of halving whose groups are split by a sample, relative to other layers: rows are not copied next to
each other, so that more of them are read from memory instead of caches."""
MEASURED_LEAF = 98
"""Labels per lowest node where `Constants.spread` is measured; smaller ones divide a document's labels more often."""
LARGE_NODE = 2.0
"""Documents of the nodes that threads work on when memory is at its peak, relative to the mean of their level."""
OFFSET_BYTES = 16 + 8 + 4
"""Per document whose text and features are in files: bounds of the text, offset and norm of the features."""
CHANGES = (
    "solver.threshold or solver.max_weights: fewer weights",
    "precision: float16 or int8",
    "trees: 1",
    "tfidf.min_df or tfidf.max_features: fewer features",
)
CLUSTERING = ("label_features: fewer features per label in clustering", "trees: 1")


def tree_nodes(labels: int, leaf_size: int, branching: int) -> list[int]:
    """Nodes per level of a balanced tree, from the root to the labels."""
    nodes = [1]
    while labels > leaf_size * nodes[0]:
        nodes[0] *= 2
    while nodes[0] > 1:
        nodes.insert(0, -(-nodes[0] // branching))
    return [*nodes, labels]


def occupied(shape: DataShape, nodes: int, constants: Constants) -> float:
    """Different nodes per document among the nodes of a level."""
    if nodes >= shape.labels:
        return shape.labels_per_document
    together = (1 - constants.spread) * min(1.0, shape.labels / nodes / MEASURED_LEAF)
    return 1 + max(0.0, shape.labels_per_document - 1) * (1 - together) * (1 - 1 / nodes)


def halving_layers(described: float, leaves: int) -> float:
    """Layers of halving as many label features into leaves; those split by a sample count as `SAMPLED_LAYER` each."""
    layers = math.log2(max(1, leaves))
    exact = min(layers, max(1.0, math.log2(max(2.0, COPIED_WORK * leaves / max(described, 1)))))
    return exact + SAMPLED_LAYER * (layers - exact)


def kept_weights(shape: DataShape, nodes: list[int], solver: SolverConfig, constants: Constants) -> list[float]:
    """Kept weights of each level: part of the non-zeros of its nodes' documents, at most all features of all nodes."""
    part = constants.kept_at(solver.threshold)
    counts = []
    for count in nodes[1:]:
        each = part * (constants.inner if count < shape.labels else 1)
        weights = min(each * shape.entries * occupied(shape, count, constants), float(count) * shape.features)
        counts.append(weights if solver.max_weights is None else min(weights, float(count) * solver.max_weights))
    return counts


def groups_of_children(nodes: int, children: int) -> int:
    """Groups of 16 that the children of one of so many nodes are scored in."""
    return math.ceil(children / nodes / LANES)


def visited(nodes: Sequence[int], beam: int) -> tuple[int, int]:
    """Chunks that a search visits in a tree with so many nodes per level, and groups of 16 children that it scores."""
    chunks = groups = 0
    for above, count in pairwise(nodes):
        chunks += min(beam, above)
        groups += min(beam, above) * groups_of_children(above, count)
    return chunks, groups


def solver_scratch(
    shape: DataShape, nodes: Sequence[int], constants: Constants, width: int, weighted: bool
) -> list[Scratch]:
    """What the solver's threads need at each level: tables of all features, and the documents of a node.

    Those of the root are not copied, nor those of nodes with a large fraction of all; 16 of its children are a task.
    """
    row = ROW_BYTES + weighted * COST_BYTES
    tables = (FEATURE_BYTES + 8) * (shape.features + width)
    found = [Scratch(OVERHEAD * (tables + row * shape.documents), math.ceil(nodes[1] / LANES))]
    for above in nodes[1:-1]:
        fraction = min(1.0, LARGE_NODE * occupied(shape, above, constants) / above)
        copied = 0 if fraction >= UNCOPIED else ENTRY_BYTES * shape.nonzeros
        found.append(Scratch(OVERHEAD * (tables + fraction * shape.documents * (row + copied)), above))
    return found


def held_documents(shape: DataShape, memory: float | str) -> float:
    """Bytes of documents of mapped features that are in memory at a time, as `held_bytes` in the training process.

    Without a limit it is the least: more is held only where it is free.
    """
    left = memory * 1e9 - BASE_BYTES if isinstance(memory, float | int) else 0.0
    return min(shape.feature_bytes, max(min(HELD * left, MOST_BYTES), ENTRY_BYTES * BLOCKED_FROM))


def linear_cost(
    shape: DataShape,
    constants: Constants,
    solver: SolverConfig,
    *,
    nodes: list[int],
    trees: int,
    beam: int,
    precision: str,
    label_features: int | None,
    clusters: bool,
    width: int = 0,
    weighted: bool = False,
    memory: float | str = "check",
    at_once: int = 0,
) -> Cost:
    """The cost of some equal trees with so many nodes per level.

    `width`: dense columns next to the sparse features; `weighted`: examples have costs; `memory`: the limit in GB, by
    which documents of mapped features are held; `at_once`: clusters into which labels are divided, if not halved.
    """
    dense = shape.documents * width
    entries = shape.entries + dense
    weights = kept_weights(shape, nodes, solver, constants)
    weights = [count + width * level for count, level in zip(weights, nodes[1:], strict=True)]
    text = constants.tfidf * shape.text_bytes
    cluster, described = 0.0, 0.0
    if clusters:
        each = min(constants.distinct * shape.ones * shape.nonzeros / shape.labels, label_features or math.inf)
        described = shape.labels * (min(each, shape.features) + width)
        halving = constants.cluster * described * halving_layers(described, nodes[-2])
        cluster = constants.pifa * shape.ones * (shape.nonzeros + width) + trees * halving
    solve = 0.0
    for above, count in pairwise(nodes):
        solve += entries * occupied(shape, above, constants) * groups_of_children(above, count)
    total, largest = sum(weights), max(weights)
    stored = trees * total * constants.weight_bytes[precision]
    chunks, scored = visited(nodes, beam)
    feature = chunks * constants.lookup_at(stored) + scored * constants.search
    size = stored + shape.labels * (NAME_BYTES + 8) + shape.documents * HASH_BYTES + 16 * shape.features
    solving = (
        WEIGHT_BYTES * (largest + FILLED * total) + 24 * SHARED * largest + (trees - 1) * PACKED[precision] * total
    )
    solving += 24 * shape.ones
    clustering = 16 * described + 4 * at_once * shape.labels
    if shape.mapped:
        held = shape.label_bytes + OFFSET_BYTES * shape.documents + held_documents(shape, memory)
    else:
        held = shape.bytes + shape.feature_bytes + (shape.feature_bytes if shape.words is not None else 0) + 8 * dense
    stages = [(solving, scratch) for scratch in solver_scratch(shape, nodes, constants, width, weighted)]
    copied = min(described, COPIED_WORK)
    stages.append((clustering, Scratch(OVERHEAD * 16 * copied, math.ceil(described / max(copied, 1)))))
    peak = max(solving, clustering)
    advice = CLUSTERING + CHANGES[1:2] if clustering > solving else CHANGES
    return Cost(
        cpu=text + cluster + trees * constants.solve * solve,
        memory=BASE_BYTES + held + OVERHEAD * peak + NAME_BYTES * shape.labels,
        scratch=tuple(replace(scratch, below=OVERHEAD * (peak - own)) for own, scratch in stages),
        disk=shape.bytes + size + (shape.text_bytes + 2 * shape.feature_bytes if shape.mapped else 0),
        model=size,
        latency=constants.call + trees * (shape.nonzeros + width) * feature,
        shares=max(1, trees * nodes[1]),
        changes=advice,
    )


def linear_tree_cost(config: Any, shape: DataShape, constants: Constants, width: int = 0) -> Cost:
    """The cost of a label tree; `width`: dense columns next to TF-IDF."""
    own = config.tree == "hierarchy"  # its shape is not known before the labels are
    return linear_cost(
        shape, constants, config.solver, nodes=tree_nodes(shape.labels, config.leaf_size, config.branching),
        trees=1 if own else config.trees, beam=int(np.max(config.beam)), precision=config.precision,
        label_features=config.label_features, clusters=not own, width=width,
        at_once=clusters_at_once(config, shape.labels), weighted=config.relevance, memory=config.memory,
    )  # fmt: skip


def linear_flat_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """The cost of a classifier per label on all documents."""
    return linear_cost(
        shape, constants, config.solver, nodes=[1, shape.labels], trees=1, beam=1, precision=config.precision,
        label_features=None, clusters=False, weighted=config.relevance, memory=config.memory,
    )  # fmt: skip
