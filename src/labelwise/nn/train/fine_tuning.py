"""Fine-tuning of an encoder through the levels of a label tree, from coarse to fine.

One encoder is trained level after level, each time with a new head: all nodes at the top, below it the children of a
document's true nodes and of those that are ranked highest above. A new head starts from linear classifiers on the
vectors that the encoder gives by then, so that it does not disturb what the encoder has learned. Every level resumes;
what is computed between two levels is kept as well.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import sparse
from torch import nn

from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError
from labelwise.features.rows import FeatureOrder, FeatureRows
from labelwise.features.vectors import VectorScaling
from labelwise.formatting import size
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import Memory
from labelwise.linear.search import beam_search
from labelwise.linear.settings import SearchSettings, TrainingSettings
from labelwise.linear.solver import LevelTrainer, PassLimit, SolverConfig, SolverPace, chunks_of, squared_norms
from labelwise.linear.train import TrainingExamples, train_tree
from labelwise.nn.config import LossConfig, TrainingConfig
from labelwise.nn.encode import encode_some_texts
from labelwise.nn.inputs import Vectors
from labelwise.nn.levels import EncoderLevel, Level, Parents, best_nodes
from labelwise.nn.train.fit import LevelData
from labelwise.nn.train.levels import VALID_TIME, TreeDocuments, TreeTraining
from labelwise.nn.vector_cache import cache_folder
from labelwise.runtime.device import computing_device
from labelwise.runtime.finished import find_finished, fingerprint, keep_finished
from labelwise.runtime.job import Job
from labelwise.runtime.memory import free_memory
from labelwise.runtime.progress import stage
from labelwise.runtime.ranks import on_rank_zero
from labelwise.runtime.tasks import current
from labelwise.runtime.time_budget import TimeBudget
from labelwise.topk import NO_LABEL, TopK

# --- linear heads ---
# Initial weights of a head: linear classifiers on the current vectors of the encoder, by the solver of the trees.


def linear_head(
    vectors: np.ndarray,
    targets: Any,
    parents: Parents | None,
    solver: SolverConfig,
    weighted: bool,
    seed: int,
    budget: TimeBudget,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [nodes, width] and biases of one classifier per node, each trained against its siblings.

    Parameters
    ----------
    vectors
        float32 [documents, width].
    targets
        CSR [documents, nodes].
    parents
        The nodes above whose children are candidates for a document: a node is trained on the documents that have its
        parent there. None: on all documents.
    solver, seed
        As in linear trees.
    weighted
        Multiply the cost of a positive example by its value in `targets`.
    budget
        With little time the solver makes fewer passes.
    """
    empty = sparse.csr_array((len(vectors), 0), dtype=np.float32)
    rows = FeatureRows.of(empty)._replace(shape=vectors.shape, dense=np.ascontiguousarray(vectors))
    offsets = np.array([0, targets.shape[1]]) if parents is None else parents.offsets
    chunks = chunks_of(offsets, None if parents is None else _documents(parents))
    limit = PassLimit(budget, budget, SolverPace(rows))
    trainer = LevelTrainer(rows, squared_norms(rows), targets, solver, weighted, seed, limit)
    weight = np.zeros((targets.shape[1], vectors.shape[1]), np.float32)
    bias = np.empty(targets.shape[1], np.float32)
    for chunk, part in zip(chunks, trainer.train(chunks, "initial weights"), strict=True):
        features = np.repeat(part.features, part.row_counts)
        weight[chunk.first + part.lanes.astype(np.int64), features] = part.values
        bias[chunk.first : chunk.last] = part.bias
    return weight, bias


def _documents(parents: Parents) -> Any:
    """CSC [documents, parents]: the documents of each parent."""
    rows, columns = np.nonzero(parents.nodes >= 0)
    nodes = parents.nodes[rows, columns]
    shape = (len(parents.nodes), len(parents.offsets) - 1)
    return sparse.csc_array((np.ones(len(nodes), np.float32), (rows, nodes)), shape=shape)


# --- linear matcher ---
# Which nodes of a level are likely for a document, by linear classifiers on its words and its vector together.
#
# Whenever the encoder has changed, the classifiers of all levels down to that one are trained; upper levels are small.

MATCHER = "the matcher"


def matched_nodes(
    tree: LabelTree,
    targets: Sequence[Any],
    features: Mapping[str, Blocks],
    k: int,
    seed: int,
    budget: TimeBudget,
) -> dict[str, TopK]:
    """The k best nodes of a level for the documents of each split; classifiers are trained on the split `train`.

    `targets` are those of the training documents at each level, down to the one whose nodes are ranked.
    """
    depth = len(targets)
    width = tree.sizes[depth - 1]
    top = LabelTree(tree.parents[:depth], np.arange(width, dtype=np.int32))
    ordered = FeatureOrder.learn(features["train"])
    settings = TrainingSettings(search=SearchSettings(beam=k), negatives="matcher")
    examples = TrainingExamples(ordered.rows, targets[-1], tasks=current())
    with stage(MATCHER):
        levels = train_tree(examples, top, targets, settings, Job(budget=budget), seed)
    ranked = {}
    for name, part in features.items():
        rows = ordered.rows if name == "train" else ordered.order.rows(part)
        ranked[name] = beam_search(rows, levels, np.arange(width), k, min(k, width), settings.search.post_processor)
    return ranked


HEAD_KIND, HEAD_FILE = "initial head", "head.safetensors"
HEAD_TIME = 0.3
"""Fraction of a level's time budget that the initial weights of its head may take."""

Bootstrap = Literal["linear", "weighted", "inherit", "none"]


@dataclass(frozen=True)
class LevelRecipe:
    """How the levels of an encoder are trained.

    Parameters
    ----------
    loss, weighted, dropout
        The loss, whether a true node counts as often as a document has labels below it, dropout of the vector.
    bootstrap, first_bootstrap
        Initial weights of heads, and of the first one.
    bootstrap_solver
        Settings of their classifiers.
    matcher
        What ranks nodes for negatives: linear classifiers on words and vectors, the network itself, or None: only
        siblings of true nodes are negatives.
    vector_scale
        Norm of vectors next to words in these classifiers.
    trainings
        Settings of the loop for each level.
    """

    loss: LossConfig
    weighted: bool
    dropout: float
    bootstrap: Bootstrap
    first_bootstrap: Bootstrap
    bootstrap_solver: SolverConfig
    matcher: Literal["linear", "network"] | None
    vector_scale: float
    trainings: tuple[TrainingConfig, ...]


@dataclass(frozen=True)
class EncoderTreeTraining(TreeTraining):
    """Trains an encoder through the levels of a tree; TreeData has the texts and their TF-IDF."""

    encoder: Any
    recipe: LevelRecipe
    _vectors: dict[str, np.ndarray] = field(default_factory=dict)
    """Vectors of the documents by the current encoder, for the level that is about to be trained."""

    @property
    def counts_labels(self) -> bool:
        """Targets count the labels below a node, for weights of losses and costs."""
        return True

    def _settings(self, depth: int) -> TrainingConfig:
        return self.recipe.trainings[depth]

    def _nodes_per_document(self, true: Any) -> int:
        """All true nodes, and as many ranked ones as the beam has."""
        most = int(np.diff(true.indptr).max(initial=0))
        return min(most + (self.beam if self.recipe.matcher else 0), true.shape[1])

    # --- the documents for a level ---

    def _rankings(
        self, tree: LabelTree, depth: int, above: Level, documents: list[TreeDocuments], budget: TimeBudget
    ) -> dict[str, tuple[np.ndarray, TopK]]:
        self._vectors.clear()
        by_name = {part.name: part for part in documents}
        rankings: dict[str, TopK] = {}
        rows_of: dict[str, np.ndarray] = {}

        def rank(name: str) -> tuple[np.ndarray, TopK]:
            if name not in rankings:
                rows_of.update(self._encode_all(above, documents, budget))
                encoded = {one: _some(by_name[one], rows) for one, rows in rows_of.items()}
                rankings.update(self._ranked(tree, depth, above, encoded, budget))
            return rows_of[name], rankings[name]

        found = {}
        # a matcher depends on more than the level: words, norm of the vectors, precision of the encoder
        settings = [self.identity, min(self.beam, tree.sizes[depth - 1]), self.recipe.matcher]
        for part in documents:
            if part.name == "valid" and part.name not in rankings and budget.expired():
                continue  # there will be no time to validate
            rows, top = self._kept_ranking(depth - 1, part, above, budget, partial(rank, part.name), *settings)
            if part.name in rows_of and not np.array_equal(rows, rows_of[part.name]):
                self._vectors.pop(part.name)  # the ranking is that of an earlier attempt, of other documents
            found[part.name] = rows, top
        return found

    def _encode_all(self, level: Any, documents: list[TreeDocuments], budget: TimeBudget) -> dict[str, np.ndarray]:
        """Encode the documents, held-out ones first and in little time; returns the indices of those encoded."""
        rows = {}
        for part in reversed(documents):
            own = budget.part(VALID_TIME) if part.name == "valid" else budget
            rows[part.name], self._vectors[part.name] = encode_some_texts(
                level.encoder, part.texts, folder=self._vector_folder, budget=own, seed=self.training.seed,
                inputs=part.inputs,
            )  # fmt: skip
        return rows

    @property
    def _vector_folder(self) -> Path | None:
        """Where vectors of an encoder in training are kept, for an attempt that is interrupted while encoding."""
        return None if self.job.folder is None else self.job.folder / "vectors"

    def _ranked(
        self, tree: LabelTree, depth: int, above: Any, encoded: dict[str, TreeDocuments], budget: TimeBudget
    ) -> dict[str, TopK]:
        """The nodes of the level above that are ranked highest for each document."""
        count = min(self.beam, tree.sizes[depth - 1])
        if self.recipe.matcher == "linear":
            scaling = VectorScaling.learn(self._vectors["train"], self.recipe.vector_scale)
            features = {
                name: Blocks(part.features, scaling.apply(self._vectors[name])) for name, part in encoded.items()
            }
            targets = encoded["train"].targets[:depth]
            return matched_nodes(tree, targets, features, count, self.training.seed, budget)
        on_vectors = EncoderLevel(nn.Identity(), above.head, above.hinge, above.weighted)
        ranked = {}
        for name, part in encoded.items():
            if name == "train" and self.recipe.matcher is None:
                none = np.full((len(part.inputs), 1), NO_LABEL, np.int32)
                ranked[name] = TopK(none, np.full(none.shape, -np.inf, np.float32))
            else:
                ranked[name] = best_nodes(on_vectors, Vectors(self._vectors[name]), count, part.parents, "ranking")
        return ranked

    # --- a new level ---

    def _new_level(
        self,
        tree: LabelTree,
        depth: int,
        documents: TreeDocuments,
        data: LevelData,
        above: Level | None,
        job: Job,
    ) -> Level:
        recipe, seed = self.recipe, self.training.seed + depth
        level = EncoderLevel.new(
            self.encoder, tree.sizes[depth], recipe.loss, recipe.weighted, recipe.dropout, has_candidates=depth > 0
        )
        level.initialise(data.targets, seed)
        how = recipe.first_bootstrap if above is None else recipe.bootstrap
        if how == "inherit" and above is not None:
            head: Any = above.head
            parents = tree.parents[depth]
            level.initialise_head(*(part.detach().cpu().numpy()[parents] for part in (head.weight, head.bias)))
        elif how in ("linear", "weighted"):
            weighted = how == "weighted"
            level.initialise_head(
                *on_rank_zero(lambda: self._linear_head(depth, documents, data, level, weighted, job))
            )
        self._vectors.clear()
        return level

    def _linear_head(
        self,
        depth: int,
        documents: TreeDocuments,
        data: LevelData,
        level: EncoderLevel,
        weighted: bool,
        job: Job,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Linear classifiers on the current vectors, from disk if an earlier attempt has saved them."""
        folder, budget = job.folder, job.budget.part(HEAD_TIME)
        own = ""
        if folder is not None:
            solver = self.recipe.bootstrap_solver.model_dump(mode="json")
            seconds = self.job.budget.seconds if budget.is_limited else None
            weights = level.encoder.state_dict().values()
            own = fingerprint(self.identity, weighted, solver, seconds, data.identity(), *weights)
            held = find_finished(folder / f"{self.name}level{depth}-head", HEAD_KIND, own)
            arrays = {} if held is None else held.tensors(HEAD_FILE)
            if {"weight", "bias"} <= arrays.keys():
                return np.array(arrays["weight"]), np.array(arrays["bias"])
        seed, targets = self.training.seed + depth, data.targets
        vectors = self._vectors.get("train")
        parents = data.parents
        if vectors is None:  # nothing is encoded before the first level, or an earlier attempt has kept the ranking
            as_published = depth == 0 and not level.encoder.config.starts_random
            kept_in = cache_folder(len(documents.inputs)) if as_published else self._vector_folder
            rows, vectors = encode_some_texts(
                level.encoder, documents.texts, folder=kept_in, budget=budget, seed=seed, inputs=documents.inputs
            )
            targets, parents = targets[rows], None if parents is None else parents.of(rows)
        head = linear_head(vectors, targets, parents, self.recipe.bootstrap_solver, weighted, seed, budget)
        if folder is not None:
            path = folder / f"{self.name}level{depth}-head"
            keep_finished(path, HEAD_KIND, own, HEAD_FILE, dict(zip(("weight", "bias"), head, strict=True)))
        return head


def _some(part: TreeDocuments, rows: np.ndarray) -> TreeDocuments:
    """Some documents with the parents they have now."""
    return part.some(rows, None if part.parents is None else part.parents.of(rows))


# --- fine tuning memory ---
# Estimate the memory of fine-tuning an encoder before it begins, and refuse what does not fit.

log = logging.getLogger("labelwise")

STATES = 4
"""Weights, gradients, two moments."""
KEPT_PER_TOKEN = 18
"""Activations per layer and token that the backward pass needs, as a multiple of the hidden size (and of 1 if they are
recomputed): projections, attention output, feed-forward layers, norms, dropout."""
FLOAT = 4


def fine_tuning_bytes(
    encoder: Any, sizes: Sequence[int], n_documents: int, training: TrainingConfig
) -> tuple[int, int]:
    """Bytes on the device and bytes for the documents' vectors, which are always in the memory of the host.

    `sizes` are the numbers of nodes of the levels.
    """
    settings, config = encoder.backbone.config, encoder.config
    layers, hidden = settings.num_hidden_layers, settings.hidden_size
    heads = getattr(settings, "num_attention_heads", 1)
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    windows = config.windows if config.long_texts == "windows" else 1
    length = config.max_length
    tokens = training.batch_size * length * windows
    if training.tokens_per_batch is not None:
        tokens = max(min(tokens, training.tokens_per_batch), length)
    per_token = (1 if config.gradient_checkpointing else KEPT_PER_TOKEN) * hidden + heads * length
    outputs = max(sizes) * (encoder.width + 1)
    device = FLOAT * (STATES * (weights + outputs) + layers * tokens * per_token)
    return device, 2 * FLOAT * n_documents * encoder.width


def check_fine_tuning_memory(
    encoder: Any, sizes: Sequence[int], n_documents: int, training: TrainingConfig, memory: Memory
) -> None:
    """Report the needed and the free memory; raise ConfigError where it does not fit, unless `memory` is `ignore`."""
    on_device, vectors = fine_tuning_bytes(encoder, sizes, n_documents, training)
    on_gpu = computing_device().type != "cpu"
    need, free = vectors + (0 if on_gpu else on_device), free_memory()
    if isinstance(memory, float | int):
        limit = int(memory * 1e9)
        free = limit if free is None else min(limit, free)
    known = "" if free is None else f"; {size(free)} are free"
    gpu = f", and {size(on_device)} on the GPU" if on_gpu else ""
    log.info("fine-tuning needs about %s%s%s", size(need), gpu, known)
    if memory != "ignore" and free is not None and need > free:
        raise ConfigError(
            f"fine-tuning needs about {size(need)} of memory, {size(free)} are free; use a smaller "
            "fine_tuning.training.batch_size with accumulate, encoder.gradient_checkpointing, a smaller "
            "encoder.max_length or fine_tuning.documents, or set memory to ignore to train anyway"
        )
