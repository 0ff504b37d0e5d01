"""A label tree with a network at every level: trained from the top down, searched with a beam, kept as arrays.

A level is trained on the nodes above the true ones and on those that the trained level above ranks highest, and starts
from the weights of that level. Every level is a stage of its own for checkpoints; what a finished level ranks highest
is kept as well, so that a resumed run does not rank all documents again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from labelwise.codes.candidates import nodes_to_learn_from
from labelwise.codes.tree import LabelTree
from labelwise.encoders.words import WordTokens
from labelwise.errors import LabelwiseError, ModelFormatError
from labelwise.store import Folder, new_folder, stored
from labelwise.topk import NOTHING, TopK
from labelwise.training.checkpoint import fingerprint
from labelwise.training.label_levels import Level, LevelFitting, LevelPart, Parents, best_nodes
from labelwise.training.loop import train
from labelwise.training.settings import TrainingConfig

if TYPE_CHECKING:
    from labelwise.methods.base import FitContext
    from labelwise.training.watching import History

RANKING_KIND, RANKING_FILE = "ranking", "ranking.safetensors"


@dataclass(frozen=True)
class Documents:
    """Words and labels of one part of the data."""

    tokens: WordTokens
    labels: Any
    """CSR [documents, labels]; may have labels at the end that the tree does not know."""


@dataclass(frozen=True)
class AttentionTree:
    """The tree and its levels' networks."""

    tree: LabelTree
    levels: Sequence[Level]
    beam: int

    def searched(self, tokens: WordTokens, k: int) -> list[TopK]:
        """The best nodes of each level: `beam` of them, and k labels (as places in the tree) at the last."""
        found: list[TopK] = []
        for depth, level in enumerate(self.levels):
            parents = None if depth == 0 else parents_of(found[-1], self.tree, depth)
            wanted = k if depth == len(self.levels) - 1 else min(self.beam, self.tree.sizes[depth])
            found.append(best_nodes(level, tokens, wanted, parents, "predicting"))
        return found

    def best(self, tokens: WordTokens, k: int) -> TopK:
        """The k best labels of each document."""
        top = self.searched(tokens, k)[-1]
        ids = np.where(top.ids == NOTHING, NOTHING, self.tree.label_order[np.maximum(top.ids, 0)]).astype(np.int32)
        order = np.lexsort((np.where(ids == NOTHING, np.iinfo(np.int32).max, ids), -top.scores), axis=1)
        return TopK(np.take_along_axis(ids, order, 1), np.take_along_axis(top.scores, order, 1))

    def state(self, prefix: str, without: Sequence[str]) -> dict[str, np.ndarray]:
        """Tree and weights as arrays, but for the weights named in `without`."""
        state = self.tree.to_tensors(prefix)
        for depth, level in enumerate(self.levels):
            for name, weight in level.state_dict().items():
                if name not in without:
                    state[f"{prefix}.level{depth}.{name}"] = weight.cpu().numpy()
        return state


def parents_of(top: TopK, tree: LabelTree, depth: int) -> Parents:
    """Ranked nodes as those under which the next level looks."""
    return Parents(top.ids, np.where(top.ids == NOTHING, 0, top.scores), tree.children_offsets(depth))


def restored_levels(
    tree: LabelTree,
    make: Callable[[int, int], Level],
    tensors: Mapping[str, np.ndarray],
    prefix: str,
    shared: Mapping[str, np.ndarray],
    path: Path,
) -> list[Level]:
    """The levels from what `AttentionTree.state` gave: `make` gives an empty network for (level, nodes)."""
    from labelwise.encoders.arrays import as_tensor

    levels = []
    for depth, size in enumerate(tree.sizes):
        level = make(depth, size)
        weights = {}
        for name, expected in level.state_dict().items():
            found = shared[name] if name in shared else stored(tensors, f"{prefix}.level{depth}.{name}", path)
            if found.shape != tuple(expected.shape) or found.dtype != np.float32:
                raise ModelFormatError(
                    f"{path}: {prefix}.level{depth}.{name} is {found.dtype} {found.shape}, not {tuple(expected.shape)}"
                )
            weights[name] = as_tensor(found)
        level.load_state_dict(weights, assign=True)
        levels.append(level.requires_grad_(False).eval())
    return levels


@dataclass(frozen=True)
class TreeTraining:
    """How the levels of one tree are trained.

    Parameters
    ----------
    make
        A new network for (level, nodes, what is true [documents, nodes], network above).
    beam
        Nodes a document keeps at each level.
    training
        Settings of the loop, for each level; levels share the time budget.
    rows
        Names of tables with row-sparse gradients, by level.
    context, name, identity
        Where to keep unfinished work, under which name, and what else decides the result.
    """

    make: Callable[[int, int, Any, Level | None], Level]
    beam: int
    training: TrainingConfig
    rows: Callable[[int], Sequence[str]]
    context: FitContext
    name: str
    identity: str

    def run(self, tree: LabelTree, train_on: Documents, valid: Documents | None) -> tuple[AttentionTree, list[History]]:
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
                nodes = nodes_to_learn_from(targets[depth - 1], learn_from.nodes, count)
                learn_from = Parents(nodes, np.empty((len(nodes), 0), np.float32), learn_from.offsets)
            part = LevelPart(train_on.tokens, targets[depth], learn_from)
            held_out = None
            if valid is not None and valid_targets is not None:
                held_out = LevelPart(valid.tokens, valid_targets[depth], ranked[1])
            level = self.make(depth, size, targets[depth], levels[-1] if levels else None)
            spent = sum(history.seconds for history in histories)
            training = with_budget(self.training, spent, tree.depth - depth)
            histories.append(self._train(depth, LevelFitting(level, part, held_out, training)))
            levels.append(level)
            if depth + 1 < tree.depth:
                documents = [train_on.tokens, *([] if valid is None else [valid.tokens])]
                tops = [self._ranked(tree, depth, level, d, ranked[n], n) for n, d in enumerate(documents)]
                ranked = [parents_of(top, tree, depth + 1) for top in tops] + [None] * (2 - len(tops))
            level.free_memory()
        return AttentionTree(tree, levels, self.beam), histories

    def _train(self, depth: int, fitting: LevelFitting) -> History:
        return train(
            fitting,
            fitting.config,
            context=self.context,
            head=("head.",),
            rows=self.rows(depth),
            stage=f"{self.name}level{depth}",
            identity=self.identity + fitting.identity(),
        )

    def _ranked(
        self, tree: LabelTree, depth: int, level: Level, tokens: WordTokens, above: Parents | None, part: int
    ) -> TopK:
        """The best nodes of a trained level, or the very ones that an earlier try has found."""
        count = min(self.beam, tree.sizes[depth])
        folder = self.context.checkpoints
        if folder is None:
            return best_nodes(level, tokens, count, above, "ranking")
        path = folder / f"{self.name}level{depth}-{('train', 'valid')[part]}-ranking"
        nodes = [] if above is None else [above.nodes]
        mark = fingerprint(count, tokens.ids, tokens.starts, *nodes, *level.state_dict().values())
        try:
            held = Folder(path, RANKING_KIND)
            if held.manifest.get("fingerprint") == mark:
                arrays = held.tensors(RANKING_FILE)
                return TopK(arrays["ids"], arrays["scores"])
        except (LabelwiseError, KeyError):
            pass  # not there, or damaged: it is made again
        top = best_nodes(level, tokens, count, above, "ranking")
        with new_folder(path, RANKING_KIND, {"fingerprint": mark}, force=True) as new:
            new.write_tensors(RANKING_FILE, {"ids": top.ids, "scores": top.scores})
        return top


def with_budget(training: TrainingConfig, spent: float, left: int) -> TrainingConfig:
    """The settings of a stage, with its equal share of what is left of the time for all."""
    if training.time_budget is None:
        return training
    return training.model_copy(update={"time_budget": max((training.time_budget - spent) / left, 1e-9)})


def _targets(tree: LabelTree, labels: Any) -> list[Any]:
    """What is true at each level; labels that the tree does not know stay at the end of the last."""
    known, unknown = labels[:, : tree.n_labels], labels[:, tree.n_labels :]
    targets = tree.aggregate(known)
    if unknown.shape[1]:
        targets[-1] = sparse.csr_array(sparse.hstack([targets[-1], unknown]))
        targets[-1].sort_indices()
    for matrix in targets:
        matrix.data = np.ones(len(matrix.data), np.float32)
    return targets
