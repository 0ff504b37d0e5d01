"""Training of a label tree with a network at every level, from the top down.

A level is trained on the children of the true parents and of those that the level above ranks highest. Every level
is a stage with checkpoints of its own; the nodes that a finished level ranks highest are kept as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from labelwise.data.dataset import Dataset
from labelwise.labelspace.tree import LabelTree, training_nodes
from labelwise.nn.config import TrainingConfig
from labelwise.nn.encode import EncoderHead
from labelwise.nn.inputs import Part, texts_of
from labelwise.nn.level_networks import best_nodes, free_buffers, mean_states, new_network
from labelwise.nn.levels import LevelTree, Parents
from labelwise.nn.train.fit import NetworkFitting
from labelwise.nn.train.loop import History, train
from labelwise.nn.train.optim import check_by_row
from labelwise.nn.words.vocabulary import Vocabulary, word_table
from labelwise.runtime.job import Arrays, Job
from labelwise.topk import TopK

STATES_PER_EPOCH, STEPS_BETWEEN_STATES = 10, 100

NewLevel = Callable[[int, Any, EncoderHead | None], EncoderHead]
"""From the depth of a level, its targets and the network of the level above to its network."""


def train_levels(
    tree: LabelTree, new_level: NewLevel, parts: Sequence[Part], beam: int, training: TrainingConfig, job: Job
) -> tuple[LevelTree, list[History]]:
    """Train all levels of a tree; `parts` are to train on and, if there are two, to validate with.

    `nn/fine_tuning.py` trains one encoder through all levels, each of which begins from vectors of the one before.
    """
    if tree.depth > 1:
        check_by_row(training.optimiser)  # before the first level is trained: lower ones have gradients of a few rows
    targets = [level_targets(tree, part.labels) for part in parts]
    levels: list[EncoderHead] = []
    histories = []
    for depth in range(tree.depth):
        title = f"level {depth + 1} of {tree.depth}" if tree.depth > 1 else ""
        with job.stage(f"level{depth}", 1 / (tree.depth - depth), title) as level_job:
            nodes = min(beam, tree.sizes[depth - 1]) if depth else 0
            if depth:
                parts = with_ranked_parents(parts, tree, depth, level_job, partial(_ranked, levels[-1], parts, nodes))
                free_buffers(levels[-1])
            parts = [replace(one, labels=own[depth]) for one, own in zip(parts, targets, strict=True)]
            levels.append(new_level(depth, targets[0][depth], levels[-1] if levels else None))
            to_train, valid = parts[0], parts[1] if len(parts) > 1 else None
            if depth:
                to_train = with_candidates(to_train, targets[0][depth - 1], nodes)
            fit = NetworkFitting(levels[-1], to_train, valid, training, of_level=True)
            histories.append(train(fit, training, job=level_job, title="training"))
            free_buffers(levels[-1])
    return LevelTree(tree, levels, beam), histories


def _ranked(above: EncoderHead, parts: Sequence[Part], count: int) -> list[TopK]:
    """The nodes that a level ranks highest for the documents of each part."""
    return [best_nodes(above, part, count, "ranking") for part in parts]


def with_ranked_parents(
    parts: Sequence[Part], tree: LabelTree, depth: int, job: Job, rank: Callable[[], Sequence[TopK]]
) -> list[Part]:
    """The parts with ranked nodes of the level above as parents; the ranking, one per part, is kept."""

    def arrays() -> Arrays:
        tops = enumerate(rank())
        return {f"{number}.{name}": getattr(top, name) for number, top in tops for name in ("ids", "scores")}

    kept = job.kept("ranking", arrays)
    found = [TopK(kept[f"{number}.ids"], kept[f"{number}.scores"]) for number in range(len(parts))]
    return [replace(part, parents=Parents.ranked(top, tree, depth)) for part, top in zip(parts, found, strict=True)]


def with_candidates(part: Part, true: Any, count: int) -> Part:
    """Training documents with `count` parents each: those above true nodes, then the highest ranked."""
    nodes = training_nodes(true, part.parents.nodes, count)
    return replace(part, parents=Parents(nodes, np.empty((len(nodes), 0), np.float32), part.parents.offsets))


def level_targets(tree: LabelTree, labels: Any, counts: bool = False) -> list[Any]:
    """Targets of each level, with `counts` the number of labels below a node; unknown labels stay at the end."""
    labels = labels.copy()
    labels.data = np.ones(len(labels.data), np.float32)
    known, unknown = labels[:, : tree.n_labels], labels[:, tree.n_labels :]
    targets = tree.aggregate(known)
    if unknown.shape[1]:
        targets[-1] = sparse.csr_array(sparse.hstack([targets[-1], unknown]))
        targets[-1].sort_indices()
    for matrix in [] if counts else targets:
        matrix.data = np.ones(len(matrix.data), np.float32)
    return targets


# --- documents as words ---


class WordData(NamedTuple):
    """Documents as words, with what depends on them alone.

    `documents` are those to train on, `parts` the words of these and of held-out ones; there is a vector per word.
    `training` are the settings for this number of documents and this split.
    """

    documents: Dataset
    parts: list[Part]
    vocabulary: Vocabulary
    vectors: Tensor
    training: TrainingConfig


def word_data(config: Any, train: Dataset, held_out: Dataset | None, training: TrainingConfig, job: Job) -> WordData:
    """Learn the vocabulary, and read or draw the word vectors; with little time, for some of the documents."""

    def learned(part: Dataset) -> tuple[Vocabulary, Any, Tensor]:
        vocabulary, words = Vocabulary.learned(texts_of(part), config.words)
        return vocabulary, words, torch.from_numpy(word_table(vocabulary, words, part.labels, training.seed))

    def prepare(part: Dataset) -> None:
        """Read words and compute their states, as the ranking for each level but the first does."""
        _, words, vectors = learned(part)
        mean_states([new_network(vectors, config, 1, training.seed).encoder], words)

    train, held_out = job.some((train, held_out), prepare)
    training = _with_averaging_interval(training, len(train))
    vocabulary, words, vectors = learned(train)
    parts = [Part(words, train.labels)]
    if held_out is not None:
        parts.append(Part(vocabulary.encode(texts_of(held_out)), held_out.labels))
    return WordData(train, parts, vocabulary, vectors, training)


def _with_averaging_interval(training: TrainingConfig, n_documents: int) -> TrainingConfig:
    """Set the steps between two averaged states, if the config does not."""
    averaging = training.averaging
    if averaging.kind != "swa" or averaging.every is not None:
        return training
    steps = n_documents // (training.batch_size * training.accumulate)
    every = min(max(steps // STATES_PER_EPOCH, 1), STEPS_BETWEEN_STATES)
    return training.model_copy(update={"averaging": averaging.model_copy(update={"every": every})})
