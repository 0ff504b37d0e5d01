"""Estimate the memory of training before it begins, and refuse what does not fit.

Everything but the kept weights follows from sizes that are known once the trees are built. The number of kept weights
is estimated from a sample of nodes: a feature is kept if its sum over the node's documents is large enough. Of several
trees only the first is examined.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from labelwise.config import Decides
from labelwise.data.csr import csr_of, pick_rows
from labelwise.errors import ConfigError
from labelwise.features.rows import ENTRY_BYTES, FeatureRows, batches_of, hold_rows, is_mapped, sparse_and_dense
from labelwise.formatting import size
from labelwise.io.tensors import mapping_of
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.solver import LANES, UNCOPIED, SolverConfig, held_bytes
from labelwise.runtime.memory import free_memory, own_memory
from labelwise.runtime.threads import threads

if TYPE_CHECKING:
    from labelwise.linear.settings import TrainingSettings

log = logging.getLogger("labelwise")


def _known_memory(given: Any) -> Any:
    """One message for all that is wrong: those of the single types would be listed otherwise."""
    if given in ("check", "ignore"):
        return given
    try:
        limit = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ValueError("should be check, ignore, or a limit in GB above 0, such as 2.5")
    return given


Memory = Annotated[
    Literal["check", "ignore"] | Annotated[float, Field(gt=0)], BeforeValidator(_known_memory), Decides.NOTHING
]
"""Whether training that does not fit is refused: `check`, `ignore`, or a limit in GB."""

SAMPLE = 40
"""Nodes per level whose weights are estimated from their documents."""
SAMPLE_ROWS = 500
"""Maximum documents per sampled node."""
TYPICAL_DUAL = 0.5
"""Typical dual variable of a positive example."""
NEGATIVES_FACTOR = 1.5
"""Kept weights per weight that positive examples alone would give."""
ROW_BYTES, COST_BYTES = 16 + 64 + 8 + 8 + 8 + 4, 64
"""Bytes per document in the solver: signs, duals, order, row, offsets and norm; costs too if examples are weighted."""
FEATURE_BYTES = 64 + 20
"""Bytes per feature in the solver: the weights of 16 siblings; number and counts."""
WEIGHT_BYTES = 6
"""Bytes per weight in training: a value of 32 bits and a lane of 16."""
PACKED = {"float32": 8, "float16": 5, "int8": 3.5}
"""Bytes per kept weight of a finished tree, rows and all: on eurlex57k, yso-en and planted data from 6.4 to 8.3, from
4.0 to 5.1 and from 2.1 to 3.5."""
PACKING = {"float32": 9, "float16": 8, "int8": 12}
"""Bytes per weight of a level that is packed, next to those of training: its packed form, or what rounds it."""
SHARED = 0.4
"""Features of a chunk with weights, per weight: siblings share features."""
FILLED = 1.6
"""Factor for a level next to its chunks: they are concatenated, then packed, which fills some rows with zeros."""
MARGIN = 1.05
"""Advised limit relative to what is needed now: the next attempt may hold a little more."""
OVERHEAD, FIXED = 1.15, 15_000_000
"""Factor for the overhead of the memory allocator, and bytes for everything small."""


@dataclass(frozen=True)
class MemoryNeed:
    """Peak bytes of memory beside the features and labels."""

    threads: float = 0
    """Scratch memory of the threads."""
    targets: float = 0
    """The documents of each node."""
    weights: float = 0
    """The learned weights."""
    label_features: float = 0
    """The features of labels for clustering."""
    similarities: float = 0
    """The similarities of labels to clusters."""

    @property
    def total(self) -> int:
        """The sum of all, with overhead."""
        parts = self.threads + self.targets + self.weights + self.label_features + self.similarities
        return FIXED + int(OVERHEAD * parts)


@dataclass(frozen=True)
class InUse:
    """Bytes that are in memory before training begins."""

    bytes: int = 0
    by: str = "the data"
    """What they are of, for messages."""

    def __str__(self) -> str:
        return f"{self.by} ({size(self.bytes)})"


def check_memory(need_of: Callable[..., MemoryNeed], memory: Memory, used: InUse, report: bool = True) -> None:
    """Report the needed and the free memory; raise ConfigError where it does not fit, unless `memory` is `ignore`.

    `need_of(hold=n)` is the need if so many bytes of mapped documents are in memory at a time. A limit in GB includes
    what is in use.
    """
    need, free = need_of(hold=held_bytes(memory)), free_memory()
    limited = isinstance(memory, float | int)
    if report:
        known = "" if free is None else f"; {size(free)} are free"
        set_to = f", memory is limited to {memory:g} GB" if limited else ""
        log.info("training needs about %s next to %s%s%s", size(need.total), used, known, set_to)
    if memory == "ignore":
        return
    left = max(0, int(memory * 1e9) - used.bytes) if limited else math.inf
    if need.total > left:
        available = "" if free is None else f", {size(free)} are free"
        less = f", or {_advice(need)}" if left else ""
        raise ConfigError(
            f"training needs about {size(need.total)} of memory, and the limit of {memory:g} GB (model.memory) leaves "
            f"{size(left)} next to {used}; raise the limit to {_enough(need, used, need_of):g} GB{available}{less}"
        )
    if free is not None and need.total > free:
        raise ConfigError(
            f"training needs about {size(need.total)} of memory, {size(free)} are free; {_advice(need)}, or set "
            "model.memory to ignore to train anyway"
        )


def _enough(need: MemoryNeed, used: InUse, need_of: Callable[..., MemoryNeed]) -> float:
    """A limit in GB, rounded up, under which the need fits."""
    while True:
        total = MARGIN * (need.total + used.bytes) / 1e9
        limit = math.ceil(total * 10) / 10 if total >= 1 else math.ceil(total * 100) / 100
        need = need_of(hold=held_bytes(limit))
        if need.total + used.bytes <= limit * 1e9:
            return limit


def _advice(need: MemoryNeed) -> str:
    """Advice for the parts that need most."""
    advice = {
        "threads": f"use fewer threads (now {threads()}) or fewer features (tfidf.max_features, a higher tfidf.min_df)",
        "weights": "keep fewer weights (a higher solver.threshold, solver.max_weights), fewer trees or less precision",
        "targets": "use fewer documents (data.limit)",
        "label_features": "describe labels by fewer features (label_features)",
        "similarities": "cluster labels into fewer groups at once (branching), or halve them (tree: balanced)",
    }
    ordered = sorted(advice, key=lambda part: -getattr(need, part))
    largest = [part for part in ordered if getattr(need, part) >= 0.2 * getattr(need, ordered[0])]
    return "; ".join(advice[part] for part in largest[:2])


def bytes_of(features: Any, labels: Any) -> InUse:
    """What features (of any type) and labels hold; of mapped ones, what the process does: a limit is for that."""
    csr, dense = sparse_and_dense(features)
    arrays = [] if dense is None else [dense]
    for matrix in (labels,) if csr is None else (labels, csr):
        arrays += [matrix.indptr, matrix.indices, matrix.data]
    if any(mapping_of(array) is not None for array in arrays):
        return InUse(own_memory(), "this process, whose data is mapped")
    return InUse(sum(array.nbytes for array in arrays))


def clusters_at_once(config: Any, n_labels: int) -> int:
    """Clusters of the root, if labels are not halved."""
    return min(config.branching, -(-n_labels // config.leaf_size)) if config.tree == "kway" else 0


def clustering_need(
    features: Any, labels: Any, keep: int | None, texts: Any = None, hold: int = 0, clusters: int = 0
) -> MemoryNeed:
    """Memory to compute label features and to cluster them, before training; `texts` are features of label texts.

    `hold`: of mapped features, bytes of documents that are in memory at a time; `clusters`: into which all labels are
    divided at once, by their similarity to each, if they are not halved.
    """
    csr, dense = sparse_and_dense(features)
    entries, held = np.zeros(labels.shape[1]), 0
    if csr is not None:
        held = min(hold, ENTRY_BYTES * csr.nnz) if dense is None and mapping_of(csr.indices) is not None else 0
        documents = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
        entries = np.bincount(labels.indices, np.diff(csr.indptr)[documents], labels.shape[1])
        entries = np.minimum(entries, min(keep or csr.shape[1], csr.shape[1]))
    width = 0 if dense is None else dense.shape[1]
    described = 2 * 8.0 * entries.sum() + 4.0 * width * labels.shape[1]  # sparse rows in parts, then concatenated
    if dense is not None and dense.dtype != np.float32:
        described += 4.0 * dense.size
    if texts is not None:  # the sum, next to what is added up
        described += 8.0 * texts.nnz + 4.0 * width * labels.shape[1]
    scratch, similarities = 8.0 * threads() * features.shape[1] + held, 4.0 * labels.shape[1] * clusters
    return MemoryNeed(scratch, 16.0 * labels.nnz, 0, described, similarities)


def encoding_need(documents: int, labels: int, width: int, trees: int, hold: int = 0) -> MemoryNeed:
    """Memory for the vectors of documents and their scaled copies, and for weights of all their numbers per label.

    For a check before documents are encoded, which takes most of the time; the trees are not known yet.
    """
    weights = trees * (FILLED * WEIGHT_BYTES + 12.0 / LANES) * width * labels
    return MemoryNeed(label_features=8.0 * width * documents, weights=weights)


def training_need(
    features: Any, targets: Sequence[Any], tree: LabelTree, settings: TrainingSettings, trees: int = 1, hold: int = 0
) -> MemoryNeed:
    """Memory to train some trees like this one; `targets` are the labels at each of its levels.

    `hold`: of mapped features, bytes of documents that are in memory at a time.
    """
    features = FeatureRows.of(features)
    held = hold if is_mapped(features) else 0
    n, n_features = features.shape[0], features.shape[1] - features.unused
    matched = int(np.max(settings.search.beam)) if settings.negatives == "matcher" else 0
    target_bytes = float(sum(12 * target.nnz + 4 * n for target in targets) + 4 * n + 40 * n * matched)
    row_bytes = ROW_BYTES + settings.relevance * COST_BYTES
    levels = []
    for depth, target in enumerate(targets):
        offsets = tree.children_offsets(depth)
        if depth == 0:
            tasks = min(threads(), -(-int(offsets[-1]) // LANES))
            work = tasks * float(row_bytes * n + FEATURE_BYTES * n_features)
            chunk_features = np.array([float(n_features)])
        else:
            work, chunk_features = _of_chunks(features, targets[depth - 1], row_bytes, held)
        levels.append((work, *_weights(features, target, offsets, chunk_features, settings.solver, held)))
    before = (trees - 1) * PACKED[settings.precision] * sum(weights for _, weights, _ in levels) / WEIGHT_BYTES
    needs, held = [], min(held, ENTRY_BYTES * len(features.indices))
    for work, weights, rows in levels:  # a level's chunks exist separately and, at the end, concatenated
        needs.append(MemoryNeed(work + held, target_bytes, before + 2 * (weights + rows)))
        before += weights + rows
    largest = max(weights for _, weights, _ in levels) / WEIGHT_BYTES
    needs.append(MemoryNeed(0, target_bytes, before + PACKING[settings.precision] * largest))
    return max(needs, key=lambda need: need.total)


def _of_chunks(features: FeatureRows, above: Any, row_bytes: int, held: int) -> tuple[float, np.ndarray]:
    """Bytes of the largest chunks, one per thread, and the approximate number of features of each chunk.

    Chunks with more than is `held` of mapped features are not copied to memory.
    """
    rows = np.bincount(above.indices, minlength=above.shape[1])
    entries = np.bincount(above.indices, np.repeat(np.diff(features.indptr), np.diff(above.indptr)), above.shape[1])
    largest = int(np.argmax(entries))
    holders = np.repeat(np.arange(above.shape[0]), np.diff(above.indptr))[above.indices == largest]
    step = max(1, len(holders) // SAMPLE_ROWS)
    sampled = pick_rows(features.sparse, holders[::step])
    # a vocabulary grows about as the square root of the text, so the sample's is scaled to each chunk's size
    known = np.count_nonzero(np.bincount(sampled.indices, minlength=1)) / np.sqrt(max(sampled.nnz, 1))
    n_features = features.shape[1] - features.unused
    chunk_features = np.minimum(np.minimum(entries, n_features), known * np.sqrt(entries)) + features.n_dense
    uncopied = entries >= UNCOPIED * len(features.indices)
    if held:
        uncopied |= ENTRY_BYTES * entries > held
    copies = np.where(uncopied, 0, ENTRY_BYTES * entries)
    tables = FEATURE_BYTES * np.where(uncopied, n_features, chunk_features)
    sizes = np.sort(copies + tables + row_bytes * rows)
    tasks = min(threads(), len(sizes))
    return float(sizes[-tasks:].sum() + tasks * 8 * n_features), chunk_features


def _weights(
    features: FeatureRows, target: Any, offsets: np.ndarray, chunk_features: np.ndarray, solver: SolverConfig, held: int
) -> tuple[float, float]:
    """Bytes of a level's weights, and of the lists of features with weights per chunk."""
    each = np.repeat(chunk_features, np.diff(offsets))
    if solver.threshold > 0:
        each = np.minimum(each, NEGATIVES_FACTOR * _frequent(features, target, solver.threshold / TYPICAL_DUAL, held))
    if solver.max_weights is not None:
        each = np.minimum(each, solver.max_weights)
    by_chunk = np.add.reduceat(each, offsets[:-1])
    rows = np.minimum(SHARED * by_chunk, chunk_features)
    return WEIGHT_BYTES * float(by_chunk.sum()), 12 * float(rows.sum())


def _frequent(features: FeatureRows, target: Any, minimum: float, held: int) -> np.ndarray:
    """Features per node whose sum over its documents reaches `minimum`; counted for some nodes, else interpolated.

    Nodes with about the same number of documents are assumed to be similar. Documents of mapped features are read for
    many nodes at a time, at most `held` bytes.
    """
    order = np.argsort(np.bincount(target.indices, minlength=target.shape[1]), kind="stable")
    sampled = np.unique(np.linspace(0, len(order) - 1, SAMPLE).astype(np.int64))
    columns = target[:, order[sampled]].tocsc()
    steps = np.maximum(1, np.diff(columns.indptr) // SAMPLE_ROWS)
    documents = [columns.indices[columns.indptr[n] : columns.indptr[n + 1] : steps[n]] for n in range(len(sampled))]
    counts = np.empty(len(sampled))
    for number, rows in _sampled_rows(features, documents, held):
        counts[number] = (np.bincount(rows.indices, np.abs(rows.data), 1) * steps[number] >= minimum).sum()
        if features.n_dense:
            sums = np.abs(features.dense[documents[number]].sum(axis=0, dtype=np.float32))  # opposite signs cancel
            counts[number] += (sums * steps[number] >= minimum).sum()
    each = np.empty(len(order))
    each[order] = np.interp(np.arange(len(order)), sampled, counts)
    return each


def _sampled_rows(features: FeatureRows, documents: list[np.ndarray], held: int) -> Iterator[tuple[int, Any]]:
    """The number of each sample and its documents as CSR, in any order."""
    for batch, rows in batches_of(range(len(documents)), documents, features, held or math.inf):
        copies = csr = None  # freed before others are read
        copies = hold_rows(features, rows)
        csr = csr_of(copies.data, copies.indices, copies.indptr, (len(rows), features.shape[1]))
        for number in batch:
            chosen = documents[number]
            yield number, pick_rows(csr, copies.positions(chosen)) if len(rows) else pick_rows(features.sparse, chosen)
