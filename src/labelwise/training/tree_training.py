"""Training of a label tree with a network at every level, from the top down.

A level is trained on the children of the true parents and of those that the level above ranks highest, and is
initialised from the weights of that level. Every level is a separate stage for checkpoints; the nodes a finished level
ranks highest are saved as well, so that a resumed run does not rank all documents again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.codes.candidates import training_nodes
from labelwise.codes.tree import LabelTree
from labelwise.encoders.base import Inputs
from labelwise.finished import find_finished, fingerprint, keep_finished
from labelwise.fit_context import FitContext
from labelwise.networks.attention_tree import AttentionTree, parents_of
from labelwise.networks.level_factory import LevelFactory
from labelwise.networks.levels import Level, Parents, best_nodes
from labelwise.networks.settings import TrainingConfig
from labelwise.topk import TopK
from labelwise.training.callbacks import History
from labelwise.training.level_fitting import LevelData, LevelFitting
from labelwise.training.loop import train

RANKING_KIND, RANKING_FILE = "ranking", "ranking.safetensors"


@dataclass(frozen=True)
class TreeData:
    """Inputs and labels of a split."""

    inputs: Inputs
    labels: Any
    """CSR [documents, labels]; labels unknown to the tree may follow at the end."""


@dataclass(frozen=True)
class TreeTraining:
    """How the levels of one tree are trained.

    Parameters
    ----------
    levels
        Builds the networks.
    beam
        Nodes kept per document and level.
    training
        Settings of the loop, for each level; levels share the time budget.
    context, name, identity
        Where to keep checkpoints, under which name prefix, and a fingerprint of all else that affects the result.
    """

    levels: LevelFactory
    beam: int
    training: TrainingConfig
    context: FitContext
    name: str
    identity: str

    def run(self, tree: LabelTree, train_on: TreeData, valid: TreeData | None) -> tuple[AttentionTree, list[History]]:
        """Train all levels."""
        targets = _targets(tree, train_on.labels)
        valid_targets = None if valid is None else _targets(tree, valid.labels)
        levels: list[Level] = []
        histories = []
        ranked: list[Parents | None] = [None, None]
        for depth, size in enumerate(tree.sizes):
            learn_from = ranked[0]
            if learn_from is not None:
                count = min(self.beam, tree.sizes[depth - 1])
                nodes = training_nodes(targets[depth - 1], learn_from.nodes, count)
                learn_from = Parents(nodes, np.empty((len(nodes), 0), np.float32), learn_from.offsets)
            part = LevelData(train_on.inputs, targets[depth], learn_from)
            held_out = None
            if valid is not None and valid_targets is not None:
                held_out = LevelData(valid.inputs, valid_targets[depth], ranked[1])
            level = self._new_level(size, self.training.seed + depth, targets[depth], levels[-1] if levels else None)
            spent = sum(history.seconds for history in histories)
            training = with_time_left(self.training, spent, tree.depth - depth)
            histories.append(self._train(depth, LevelFitting(level, part, held_out, training)))
            levels.append(level)
            if depth + 1 < tree.depth:
                documents = [train_on.inputs, *([] if valid is None else [valid.inputs])]
                tops = [self._rank(tree, depth, level, d, ranked[n], n) for n, d in enumerate(documents)]
                ranked = [parents_of(top, tree, depth + 1) for top in tops] + [None] * (2 - len(tops))
            level.free_memory()
        return AttentionTree(tree, levels, self.beam), histories

    def _new_level(self, size: int, seed: int, targets: Any, above: Level | None) -> Level:
        level = self.levels.new(size, seed)
        if above is None:
            level.initialise(targets, seed)
        else:
            level.initialise_from(above, seed)
        return level

    def _train(self, depth: int, fitting: LevelFitting) -> History:
        return train(
            fitting,
            fitting.config,
            context=self.context,
            head=("head.",),
            rows=fitting.level.row_tables(has_candidates=depth > 0),
            stage=f"{self.name}level{depth}",
            identity=self.identity + fitting.identity(),
        )

    def _rank(
        self, tree: LabelTree, depth: int, level: Level, inputs: Inputs, above: Parents | None, part: int
    ) -> TopK:
        """The best nodes of a trained level; read from disk if an earlier attempt has saved them."""
        count = min(self.beam, tree.sizes[depth])
        folder = self.context.checkpoints
        if folder is None:
            return best_nodes(level, inputs, count, above, "ranking")
        path = folder / f"{self.name}level{depth}-{('train', 'valid')[part]}-ranking"
        nodes = [] if above is None else [above.nodes]
        own = fingerprint(count, *inputs.identity(), *nodes, *level.state_dict().values())
        held = find_finished(path, RANKING_KIND, own)
        arrays = {} if held is None else held.tensors(RANKING_FILE)
        if {"ids", "scores"} <= arrays.keys():
            return TopK(arrays["ids"], arrays["scores"])
        top = best_nodes(level, inputs, count, above, "ranking")
        keep_finished(path, RANKING_KIND, own, RANKING_FILE, {"ids": top.ids, "scores": top.scores})
        return top


def train_trees(
    trees: Sequence[LabelTree],
    seeds: Sequence[int],
    levels: LevelFactory,
    beam: int,
    training: TrainingConfig,
    data: tuple[TreeData, TreeData | None],
    context: FitContext,
    identity: str,
) -> tuple[list[AttentionTree], list[list[History]]]:
    """Train the networks of several trees, each with its own seed; `data` is to train on and to validate with.

    Trees share the time budget. The other parameters are those of `TreeTraining`.
    """
    trained: list[AttentionTree] = []
    histories: list[list[History]] = []
    for number, (tree, seed) in enumerate(zip(trees, seeds, strict=True)):
        spent = sum(history.seconds for of_tree in histories for history in of_tree)
        own = with_time_left(training.model_copy(update={"seed": seed}), spent, len(trees) - number)
        name = f"tree{number}-" if len(trees) > 1 else ""
        one, of_levels = TreeTraining(levels, beam, own, context, name, identity).run(tree, *data)
        trained.append(one)
        histories.append(of_levels)
    return trained, histories


def with_time_left(training: TrainingConfig, spent: float, left: int) -> TrainingConfig:
    """The settings of the next of `left` stages, with an equal part of the remaining time budget."""
    if training.time_budget is None:
        return training
    return training.model_copy(update={"time_budget": max((training.time_budget - spent) / left, 1e-9)})


def _targets(tree: LabelTree, labels: Any) -> list[Any]:
    """Targets of each level; labels unknown to the tree stay at the end of the last."""
    known, unknown = labels[:, : tree.n_labels], labels[:, tree.n_labels :]
    targets = tree.aggregate(known)
    if unknown.shape[1]:
        targets[-1] = sparse.csr_array(sparse.hstack([targets[-1], unknown]))
        targets[-1].sort_indices()
    for matrix in targets:
        matrix.data = np.ones(len(matrix.data), np.float32)
    return targets
