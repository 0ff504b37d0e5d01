"""Fine-tuning of an encoder through the levels of a label tree, from coarse to fine.

One encoder is trained level after level, each time with a new head: all nodes at the top, below it the children of a
document's true nodes and of those that are ranked highest above. A new head starts from linear classifiers on the
vectors that the encoder gives by then, so that it does not disturb what the encoder has learned. Every level resumes;
what is computed between two levels is kept as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.features.featurizers import VectorScaling
from labelwise.features.rows import FeatureOrder, FeatureRows
from labelwise.formatting import size
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import Memory
from labelwise.linear.search import beam_search
from labelwise.linear.settings import SearchSettings, TrainingSettings
from labelwise.linear.solver import LevelTrainer, PassLimit, SolverConfig, SolverPace, chunks_of, squared_norms
from labelwise.linear.train import TrainingExamples, train_tree
from labelwise.nn.config import LEVEL_TRAINING, FineTuningConfig, HeadConfig, TrainingConfig, without_validation
from labelwise.nn.encode import EncoderHead, cache_folder, encode_some_texts
from labelwise.nn.heads.linear import Outputs
from labelwise.nn.inputs import Part, Vectors, texts_of
from labelwise.nn.level_networks import best_nodes
from labelwise.nn.levels import Parents
from labelwise.nn.train.fit import NetworkFitting
from labelwise.nn.train.levels import level_targets, with_candidates, with_ranked_parents
from labelwise.nn.train.loop import History, train
from labelwise.nn.train.optim import check_by_row
from labelwise.runtime.budget import Budget
from labelwise.runtime.device import computing_device, torch_threads
from labelwise.runtime.job import Arrays, Job
from labelwise.runtime.memory import free_memory
from labelwise.runtime.progress import stage as shown_stage
from labelwise.topk import NO_LABEL, TopK

log = logging.getLogger("labelwise")

# --- memory ---
# Estimate the memory of fine-tuning an encoder before it begins, and refuse what does not fit.

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


ENCODING_TIME = 0.25
"""Fraction of the time budget that encoding the documents, once per level, may take."""
MATCHER_TIME, HEAD_TIME = 0.25, 0.3
"""Fractions of a level's time budget that classifiers which rank the nodes above may take, and those that its outputs
start from."""


class NodeOutputs(Outputs):
    """Outputs of a level's nodes; probabilities of margins are those of linear trees."""

    def loss(self, states: Tensor, targets: Any, candidates: Tensor | None = None) -> Tensor:
        """As `Outputs`; ranks of candidates that no document of the batch has take no time."""
        if candidates is not None:
            used = (candidates >= 0).any(0)
            candidates, targets = candidates[:, used], targets[:, used]
        return super().loss(states, targets, candidates)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Margins as exp(-max(0, 1 - margin)^3), log-odds as probabilities."""
        if "hinge" in self.config.loss.name:
            return torch.exp(-((1 - scores).clamp_min(0) ** 3))
        return torch.sigmoid(scores)


def fine_tune(encoder: Any, tree: LabelTree, parts: Sequence[Dataset | None], config: Any, job: Job) -> list[History]:
    """Train the encoder through the levels of a tree; the training of each level.

    `parts` are the training documents and held-out ones, or None, with their TF-IDF as features.
    """
    fine: FineTuningConfig = config.fine_tuning
    sizes = fine.trained_levels(tree.sizes)
    trainings = fine.trainings(sizes)
    if len(sizes) > 1:
        check_by_row(fine.training.optimiser)  # lower levels, trained later, have gradients of a few rows
    check_fine_tuning_memory(encoder, sizes, len(parts[0] or ()), fine.training, config.memory)
    log.info("fine-tuning: %d levels of %s nodes", len(sizes), ", ".join(f"{size:,}" for size in sizes))
    encoder.to(computing_device())  # all documents are encoded before the first level is trained
    with torch_threads():
        share = ENCODING_TIME / len(sizes)
        found = job.some(parts, lambda part: encode_some_texts(encoder, texts_of(part)), share)
        documents = [part for part in found if part is not None]
        if len(documents) == 1:
            trainings = tuple(without_validation(training, LEVEL_TRAINING) for training in trainings)
        return _Levels(encoder, tree, documents, fine, config.vector_scale).train(trainings, job)


@dataclass(frozen=True)
class _Levels:
    """The levels of a tree that an encoder is trained through, with documents to train on and held-out ones."""

    encoder: Any
    tree: LabelTree
    documents: Sequence[Dataset]
    fine: FineTuningConfig
    vector_scale: float

    def train(self, trainings: Sequence[TrainingConfig], job: Job) -> list[History]:
        """Train one level after the other; its outputs rank the nodes for the next."""
        encoder, fine = self.encoder, self.fine
        targets = [level_targets(self.tree, part.labels, counts=True) for part in self.documents]
        tokens = [encoder.tokenizer.encode(texts_of(part), encoder.config) for part in self.documents]
        parts = [Part(ids, features=part.features) for ids, part in zip(tokens, self.documents, strict=True)]
        above: Any = None
        histories = []
        for depth, training in enumerate(trainings):
            title = f"level {depth + 1} of {len(trainings)}" if len(trainings) > 1 else ""
            with job.stage(f"level{depth}", 1 / (len(trainings) - depth), title) as level_job:
                folder = None if job.folder is None else job.folder / "vectors"
                if depth == 0 and not encoder.config.starts_random:
                    folder = cache_folder(len(self.documents[0]))  # the encoder is as it was published
                # computed when first asked for: an earlier attempt may have kept what follows from them
                vectors = [cache(partial(self._encoded, number, ids, folder)) for number, ids in enumerate(tokens)]
                if depth:
                    rank = partial(self._ranked, above, depth, parts, targets[0], vectors, level_job.budget)
                    parts = with_ranked_parents(parts, self.tree, depth, level_job, rank)
                parts = [replace(one, labels=own[depth]) for one, own in zip(parts, targets, strict=True)]
                to_train, valid = parts[0], parts[1] if len(parts) > 1 else None
                if depth:
                    true = targets[0][depth - 1]
                    to_train = with_candidates(to_train, true, _nodes_per_document(true, fine))
                head = self._new_head(to_train, depth)
                how = _initial_weights(depth, fine)
                if how == "inherit":
                    rows = self.tree.parents[depth]
                    head.load(*(table.detach().cpu().numpy()[rows] for table in (above.weight, above.bias)))
                elif how != "none":
                    first = partial(self._linear_head, vectors[0], to_train, how == "weighted", depth, level_job.budget)
                    kept = level_job.kept("head", first)
                    head.load(kept["weight"], kept["bias"])
                vectors.clear()
                network = EncoderHead(encoder, head)
                fit = NetworkFitting(network, to_train, valid, training, of_level=True, weighted=fine.weighted)
                histories.append(train(fit, training, job=level_job, title="training"))
                above = head
        return histories

    def _encoded(self, number: int, tokens: Any, folder: Path | None) -> np.ndarray:
        """Vectors of some of the documents by the current encoder; those known in the folder are read from it."""
        texts = texts_of(self.documents[number])
        return encode_some_texts(self.encoder, texts, folder=folder, inputs=tokens)[1]

    def _new_head(self, part: Part, depth: int) -> NodeOutputs:
        """Outputs of the nodes of a level, drawn at random."""
        n_documents, n_nodes = part.labels.shape
        settings = HeadConfig(loss=self.fine.loss, dropout=self.fine.dropout, bias="zero" if depth else "prior")
        counts, seed = np.bincount(part.labels.indices, minlength=n_nodes), self.fine.training.seed + depth
        return NodeOutputs(self.encoder.width, n_nodes, settings).initialise(counts, n_documents, seed)

    def _ranked(
        self,
        above: Any,
        depth: int,
        parts: Sequence[Part],
        targets: Sequence[Any],
        vectors: Sequence[Callable[[], np.ndarray]],
        budget: Budget,
    ) -> list[TopK]:
        """The best nodes of the level above, by linear classifiers on words and vectors or by its own head."""
        fine, budget = self.fine, budget.part(MATCHER_TIME)
        count = min(fine.beam, self.tree.sizes[depth - 1])
        encoded = [vectors_of() for vectors_of in vectors]
        if fine.negatives == "linear":
            scaling = VectorScaling.learn(encoded[0], self.vector_scale)
            features = [Blocks(part.features, scaling.apply(own)) for part, own in zip(parts, encoded, strict=True)]
            return matched_nodes(self.tree, targets[:depth], features, count, fine.training.seed, budget)
        on_vectors, tops = EncoderHead(nn.Identity(), above), []  # type: ignore[bad-argument-type]
        for number, (part, own) in enumerate(zip(parts, encoded, strict=True)):
            if fine.negatives == "teacher" and number == 0:  # only siblings of true nodes are negatives
                none = np.full((len(part), 1), NO_LABEL, np.int32)
                tops.append(TopK(none, np.full(none.shape, -np.inf, np.float32)))
            else:
                tops.append(best_nodes(on_vectors, Part(Vectors(own), parents=part.parents), count, "ranking"))
        return tops

    def _linear_head(
        self, vectors: Callable[[], np.ndarray], part: Part, weighted: bool, depth: int, budget: Budget
    ) -> Arrays:
        """Weights and biases of linear classifiers on the vectors, one per node of a level."""
        cost = self.fine.bootstrap_cost
        solver = SolverConfig(cost_positive=cost, cost_negative=cost, threshold=0.0)
        return linear_head(vectors(), part, solver, weighted, self.fine.training.seed + depth, budget.part(HEAD_TIME))


def _initial_weights(depth: int, fine: FineTuningConfig) -> str:
    """How the outputs of a level begin: a value of `bootstrap`."""
    if depth:
        return fine.bootstrap
    return "linear" if fine.first_head == "linear" else "none"


def _nodes_per_document(true: Any, fine: FineTuningConfig) -> int:
    """Parents per document whose children are scored: all true nodes, and as many ranked ones as the beam has."""
    most = int(np.diff(true.indptr).max(initial=0))
    return min(most + (0 if fine.negatives == "teacher" else fine.beam), true.shape[1])


# --- nodes that are ranked highest ---


def matched_nodes(
    tree: LabelTree, targets: Sequence[Any], features: Sequence[Blocks], k: int, seed: int, budget: Budget
) -> list[TopK]:
    """The k best nodes of a level for the documents of each part; classifiers are trained on the first one.

    Whenever the encoder has changed, those of all levels down to that one are trained; upper levels are small.
    `targets` are those of the training documents at each level, down to the one whose nodes are ranked.
    """
    depth = len(targets)
    width = tree.sizes[depth - 1]
    top = LabelTree(tree.parents[:depth], np.arange(width, dtype=np.int32))
    ordered = FeatureOrder.learn(features[0])
    settings = TrainingSettings(search=SearchSettings(beam=k), negatives="matcher")
    examples = TrainingExamples(ordered.rows)
    with shown_stage("the matcher"):  # not kept, only its ranking is
        levels = train_tree(examples, top, targets, settings, Job(budget=budget), seed)
    ranked = []
    for number, part in enumerate(features):
        rows = ordered.order.rows(part) if number else ordered.rows
        ranked.append(beam_search(rows, levels, np.arange(width), k, min(k, width), settings.search.post_processor))
    return ranked


# --- initial weights of a head ---


def linear_head(
    vectors: np.ndarray, part: Part, solver: SolverConfig, weighted: bool, seed: int, budget: Budget
) -> Arrays:
    """Weights [nodes, width] and biases of one classifier per node, each trained against its siblings.

    Parameters
    ----------
    vectors
        float32 [documents, width].
    part
        The documents: their nodes as labels, and the parents whose children are candidates. A node is trained on the
        documents that have its parent there; without parents on all documents.
    solver, seed
        As in linear trees.
    weighted
        Multiply the cost of a positive example by its value in the labels.
    budget
        With little time the solver makes fewer passes.
    """
    targets, parents = part.labels, part.parents
    empty = sparse.csr_array((len(vectors), 0), dtype=np.float32)
    rows = FeatureRows.of(empty)._replace(shape=vectors.shape, dense=np.ascontiguousarray(vectors))
    offsets = np.array([0, targets.shape[1]]) if parents is None else parents.offsets
    chunks = chunks_of(offsets, None if parents is None else _documents(parents))
    limit = PassLimit(budget, budget, SolverPace(rows))
    settings = TrainingSettings(solver, relevance=weighted)
    trainer = LevelTrainer(rows, squared_norms(rows), targets, settings, seed, limit)
    weight = np.zeros((targets.shape[1], vectors.shape[1]), np.float32)
    bias = np.empty(targets.shape[1], np.float32)
    for chunk, own in zip(chunks, trainer.train(chunks, "initial weights"), strict=True):
        features = np.repeat(own.features, own.row_counts)
        weight[chunk.first + own.lanes.astype(np.int64), features] = own.values
        bias[chunk.first : chunk.last] = own.bias
    return {"weight": weight, "bias": bias}


def _documents(parents: Parents) -> Any:
    """CSC [documents, parents]: the documents of each parent."""
    rows, columns = np.nonzero(parents.nodes >= 0)
    nodes = parents.nodes[rows, columns]
    shape = (len(parents.nodes), len(parents.offsets) - 1)
    return sparse.csc_array((np.ones(len(nodes), np.float32), (rows, nodes)), shape=shape)
