"""Training of a label tree with a network at every level, from the top down.

A level is trained on the children of the true parents and of those that the level above ranks highest, and is
initialised from the weights of that level. Every level is a separate stage for checkpoints; the nodes a finished level
ranks highest are saved as well, so that a resumed run does not rank all documents again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.labelspace.tree import LabelTree, training_nodes
from labelwise.nn.config import TrainingConfig
from labelwise.nn.inputs import Inputs, Part
from labelwise.nn.levels import AttentionTree, Level, LevelFactory, Parents, best_nodes, parents_of
from labelwise.nn.train.callbacks import History
from labelwise.nn.train.fit import LevelData, LevelFitting
from labelwise.nn.train.loop import train
from labelwise.runtime.finished import find_finished, fingerprint, fingerprint_by_budget, keep_finished
from labelwise.runtime.job import Job
from labelwise.runtime.progress import progress, stage, stage_name
from labelwise.runtime.ranks import on_rank_zero
from labelwise.runtime.time_budget import TimeBudget, timed_blocks
from labelwise.strings import Strings
from labelwise.topk import TopK

log = logging.getLogger("labelwise")

RANKING_TIME, VALID_TIME = 0.25, 0.1
"""Fraction of a level's time budget that ranking the documents for it may take, and of that for held-out ones. Training
on a document takes about three times as long as ranking it."""
RANKING_KIND, RANKING_FILE = "ranking", "ranking.safetensors"


@dataclass(frozen=True)
class TreeData:
    """Inputs and labels of a split."""

    inputs: Inputs
    labels: Any
    """CSR [documents, labels]; labels unknown to the tree may follow at the end."""
    texts: Strings = field(default_factory=partial(Strings.of, ()))
    features: Any = None
    """The texts, and CSR [documents, features], for trainings that need them next to the inputs."""


@dataclass(frozen=True)
class TreeDocuments:
    """Documents of a split with their targets at each level, and the nodes that the level above ranks highest."""

    name: str
    inputs: Inputs
    targets: Sequence[Any]
    parents: Parents | None = None
    texts: Strings = field(default_factory=partial(Strings.of, ()))
    features: Any = None

    def some(self, rows: np.ndarray, parents: Parents | None) -> TreeDocuments:
        """Those that have been ranked, all or some of them, with their parents at the next level."""
        if len(rows) == len(self.inputs):
            return replace(self, parents=parents)
        targets = [target[rows] for target in self.targets]
        texts = self.texts[rows] if len(self.texts) else self.texts
        features = None if self.features is None else self.features[rows]
        return TreeDocuments(self.name, Part(self.inputs, rows=rows), targets, parents, texts, features)


@dataclass(frozen=True)
class TreeTraining:
    """How the levels of one tree are trained; subclasses make the levels.

    Parameters
    ----------
    beam
        Nodes kept per document and level.
    training
        Settings of the loop, for each level.
    job, name, identity
        Where to keep checkpoints, under which name prefix, and a fingerprint of all else that affects the result.

    Levels have equal parts of the time budget. Ranking the documents for a level takes at most a part of its time: with
    little time the level is trained on the documents that were ranked, which are drawn at random.
    """

    beam: int
    training: TrainingConfig
    job: Job
    name: str
    identity: str

    def train_levels(
        self, tree: LabelTree, count: int, train_on: TreeData, valid: TreeData | None
    ) -> tuple[list[Level], list[History]]:
        """Train the first levels of a tree, `count` of them."""
        documents = [
            TreeDocuments(name, data.inputs, level_targets(tree, data.labels, counts), None, data.texts, data.features)
            for name, data, counts in (("train", train_on, self.counts_labels), ("valid", valid, False))
            if data is not None
        ]
        levels: list[Level] = []
        histories = []
        for depth in range(count):
            with stage(f"level {depth + 1} of {count}" if count > 1 else ""):
                job = self.job.within(self.job.budget.part(1 / (count - depth)))
                if depth > 0:
                    documents = self._rank_all(tree, depth, levels[-1], documents, job.budget.part(RANKING_TIME))
                    levels[-1].free_memory()
                fitting = self._fitting(tree, depth, documents, levels[-1] if levels else None, job)
                histories.append(self._train(depth, fitting, job))
                levels.append(fitting.level)
        levels[-1].free_memory()
        return levels, histories

    def _fitting(
        self, tree: LabelTree, depth: int, documents: list[TreeDocuments], above: Level | None, job: Job
    ) -> LevelFitting:
        """A new level and the documents to train it on."""
        parts = [LevelData(part.inputs, part.targets[depth], part.parents) for part in documents]
        ranked = documents[0].parents
        if ranked is not None:
            true = documents[0].targets[depth - 1]
            nodes = training_nodes(true, ranked.nodes, self._nodes_per_document(true))
            parents = Parents(nodes, np.empty((len(nodes), 0), np.float32), ranked.offsets)
            parts[0] = replace(parts[0], parents=parents)
        level = self._new_level(tree, depth, documents[0], parts[0], above, job)
        return LevelFitting(level, parts[0], parts[1] if len(parts) > 1 else None, self._settings(depth))

    # --- what subclasses do differently ---

    @property
    def counts_labels(self) -> bool:
        """Whether targets count the labels below a node; otherwise true nodes have 1."""
        return False

    def _settings(self, depth: int) -> TrainingConfig:
        """Settings of training a level."""
        return self.training

    def _nodes_per_document(self, true: Any) -> int:
        """Parents per document whose children are scored in training; `true` are the targets at their level."""
        return min(self.beam, true.shape[1])

    def _new_level(
        self,
        tree: LabelTree,
        depth: int,
        documents: TreeDocuments,
        data: LevelData,
        above: Level | None,
        job: Job,
    ) -> Level:
        """A level with its initial weights; `data` is what it will be trained on."""
        raise NotImplementedError

    def _train(self, depth: int, fitting: LevelFitting, job: Job) -> History:
        return train(
            fitting,
            fitting.config,
            job=job,
            head=("head.",),
            rows=fitting.level.row_tables(has_candidates=depth > 0),
            stage=f"{self.name}level{depth}",
            title="training",
            identity=self.identity + fitting.identity(),
        )

    # --- ranking ---

    def _rank_all(
        self, tree: LabelTree, depth: int, above: Level, documents: list[TreeDocuments], budget: TimeBudget
    ) -> list[TreeDocuments]:
        """The documents with the nodes that the level above ranks highest; some or none of them, with little time."""
        found = on_rank_zero(lambda: self._rankings(tree, depth, above, documents, budget))
        ranked = [part for part in documents if part.name in found]
        for part in ranked:
            log_ranked(part, found[part.name][0])
            if part.name == "train" and len(found[part.name][0]) < len(part.inputs):
                budget.end_early()
        return [part.some(found[part.name][0], parents_of(found[part.name][1], tree, depth)) for part in ranked]

    def _rankings(
        self, tree: LabelTree, depth: int, above: Level, documents: list[TreeDocuments], budget: TimeBudget
    ) -> dict[str, tuple[np.ndarray, TopK]]:
        """Indices of documents and their best nodes at the level above; held-out ones first, in little time."""
        found = {}
        for part in reversed(documents):
            if part.name == "valid" and budget.expired():
                continue  # there will be no time to validate
            own = budget.part(VALID_TIME) if part.name == "valid" else budget
            found[part.name] = self._rank(tree, depth - 1, above, part, own)
        return found

    def _rank(
        self, tree: LabelTree, depth: int, level: Level, part: TreeDocuments, budget: TimeBudget
    ) -> tuple[np.ndarray, TopK]:
        """Indices of documents and their best nodes; from disk if an earlier attempt has saved them."""
        count = min(self.beam, tree.sizes[depth])

        def rank() -> tuple[np.ndarray, TopK]:
            return best_nodes_of_some(level, part.inputs, count, part.parents, budget, self.training.seed)

        return self._kept_ranking(depth, part, level, budget, rank, count)

    def _kept_ranking(
        self,
        depth: int,
        part: TreeDocuments,
        level: Level,
        budget: TimeBudget,
        rank: Callable[[], tuple[np.ndarray, TopK]],
        *settings: Any,
    ) -> tuple[np.ndarray, TopK]:
        """What `rank` returns, from disk if an earlier attempt has saved it; it depends on the level and `settings`."""
        folder = self.job.folder
        if folder is None:
            return rank()
        path = folder / f"{self.name}level{depth}-{part.name}-ranking"
        nodes = [] if part.parents is None else [part.parents.nodes]
        own = fingerprint(*settings, *part.inputs.identity(), *nodes, *level.state_dict().values())
        by_budget = fingerprint_by_budget(own, self.job.budget.seconds) if budget.is_limited else own
        held = find_finished(path, RANKING_KIND, own, by_budget)
        arrays = {} if held is None else held.tensors(RANKING_FILE)
        if {"ids", "scores"} <= arrays.keys():
            return arrays.get("rows", np.arange(len(part.inputs))), TopK(arrays["ids"], arrays["scores"])
        rows, top = rank()
        arrays = {"ids": top.ids, "scores": top.scores}
        if len(rows) < len(part.inputs):
            own, arrays["rows"] = by_budget, rows
        keep_finished(path, RANKING_KIND, own, RANKING_FILE, arrays)
        return rows, top


@dataclass(frozen=True)
class WordTreeTraining(TreeTraining):
    """Training of networks over words, each initialised from the level above; `levels` builds them."""

    levels: LevelFactory

    def run(self, tree: LabelTree, train_on: TreeData, valid: TreeData | None) -> tuple[AttentionTree, list[History]]:
        """Train all levels."""
        levels, histories = self.train_levels(tree, tree.depth, train_on, valid)
        return AttentionTree(tree, levels, self.beam), histories

    def _new_level(
        self,
        tree: LabelTree,
        depth: int,
        documents: TreeDocuments,
        data: LevelData,
        above: Level | None,
        job: Job,
    ) -> Level:
        seed = self.training.seed + depth
        level = self.levels.new(tree.sizes[depth], seed)
        if above is None:
            level.initialise(data.targets, seed)
        else:
            level.initialise_from(above, seed)
        return level


def best_nodes_of_some(
    level: Level, inputs: Inputs, k: int, parents: Parents | None, budget: TimeBudget, seed: int
) -> tuple[np.ndarray, TopK]:
    """Indices and best nodes of as many documents as the time budget allows, drawn at random; all without a limit."""
    if not budget.is_limited:
        return np.arange(len(inputs)), best_nodes(level, inputs, k, parents, "ranking")
    blocks, tops = [], []
    with progress("ranking", len(inputs), seconds_left=budget.remaining) as step:
        for rows in timed_blocks(np.random.default_rng(seed).permutation(len(inputs)), budget):
            with step.part(len(rows)):
                own = None if parents is None else parents.of(rows)
                tops.append(best_nodes(level, Part(inputs, rows=rows), k, own, "ranking"))
            blocks.append(rows)
    rows, top = np.concatenate(blocks), TopK.concatenate(tops)
    order = np.argsort(rows)
    return rows[order], TopK(top.ids[order], top.scores[order])


def train_trees(
    trees: Sequence[LabelTree],
    seeds: Sequence[int],
    levels: LevelFactory,
    beam: int,
    training: TrainingConfig,
    data: tuple[TreeData, TreeData | None],
    job: Job,
    identity: str,
) -> tuple[list[AttentionTree], list[list[History]]]:
    """Train the networks of several trees, each with its own seed; `data` is to train on and to validate with.

    Trees have equal parts of the time budget. The other parameters are those of `WordTreeTraining`.
    """
    trained: list[AttentionTree] = []
    histories: list[list[History]] = []
    for number, (tree, seed) in enumerate(zip(trees, seeds, strict=True)):
        own = training.model_copy(update={"seed": seed})
        name = f"tree{number}-" if len(trees) > 1 else ""
        within = job.within(job.budget.part(1 / (len(trees) - number)))
        with stage(f"tree {number + 1} of {len(trees)}" if len(trees) > 1 else ""):
            one, of_levels = WordTreeTraining(beam, own, within, name, identity, levels).run(tree, *data)
        trained.append(one)
        histories.append(of_levels)
    return trained, histories


def log_ranked(part: TreeDocuments, rows: np.ndarray) -> None:
    """Log that the time budget has ended the ranking of a split, if it has."""
    if len(rows) < len(part.inputs):
        log.info(
            "%s: ended by the time budget after %s of %s documents (%s), which the level uses",
            stage_name("ranking"), f"{len(rows):,}", f"{len(part.inputs):,}", part.name,
        )  # fmt: skip


def level_targets(tree: LabelTree, labels: Any, counts: bool) -> list[Any]:
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
