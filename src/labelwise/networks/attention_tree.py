"""A label tree with a network at every level: beam search, and its state as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.codes.tree import LabelTree
from labelwise.encoders.arrays import as_tensor
from labelwise.encoders.base import Inputs
from labelwise.errors import ModelFormatError
from labelwise.networks.levels import Level, Parents, best_nodes
from labelwise.store import get_tensor
from labelwise.topk import NO_LABEL, TopK, sorted_by_score


@dataclass(frozen=True)
class AttentionTree:
    """A tree and the networks of its levels."""

    tree: LabelTree
    levels: Sequence[Any]
    """One `Level` per level of the tree."""
    beam: int

    def search(self, inputs: Inputs, k: int) -> list[TopK]:
        """Beam search: the best `beam` nodes of each level, and the best k leaves (labels) at the last."""
        tops: list[TopK] = []
        last = len(self.levels) - 1
        for depth, level in enumerate(self.levels):
            parents = None
            if depth > 0:
                parents = parents_of(tops[-1], self.tree, depth, self.tree.label_order if depth == last else None)
            count = k if depth == last else min(self.beam, self.tree.sizes[depth])
            tops.append(best_nodes(level, inputs, count, parents, "predicting"))
        return tops

    def best(self, inputs: Inputs, k: int) -> TopK:
        """The k best labels of each document."""
        top = self.search(inputs, k)[-1]
        ids = np.where(top.ids == NO_LABEL, NO_LABEL, self.tree.label_order[np.maximum(top.ids, 0)]).astype(np.int32)
        return sorted_by_score(ids, top.scores)

    def state(self, prefix: str, without: Sequence[str]) -> dict[str, np.ndarray]:
        """Tree and weights as arrays, except the weights named in `without`."""
        state = self.tree.to_tensors(prefix)
        for depth, level in enumerate(self.levels):
            for name, weight in level.state_dict().items():
                if name not in without:
                    state[f"{prefix}.level{depth}.{name}"] = weight.cpu().numpy()
        return state


def parents_of(top: TopK, tree: LabelTree, depth: int, child_ids: np.ndarray | None = None) -> Parents:
    """Ranked nodes as the parents of the nodes that are scored at the next level."""
    return Parents(top.ids, np.where(top.ids == NO_LABEL, 0, top.scores), tree.children_offsets(depth), child_ids)


def restored_levels(
    tree: LabelTree,
    make: Callable[[int], Level],
    tensors: Mapping[str, np.ndarray],
    prefix: str,
    shared: Mapping[str, np.ndarray],
    path: Path,
) -> list[Level]:
    """Rebuild the levels from what `AttentionTree.state` returned; `make(size)` builds a network without weights."""
    levels = []
    for depth, size in enumerate(tree.sizes):
        level = make(size)
        weights = {}
        for name, expected in level.state_dict().items():
            array = shared[name] if name in shared else get_tensor(tensors, f"{prefix}.level{depth}.{name}", path)
            if array.shape != tuple(expected.shape) or array.dtype != np.float32:
                raise ModelFormatError(
                    f"{path}: {prefix}.level{depth}.{name} is {array.dtype} {array.shape}, not {tuple(expected.shape)}"
                )
            weights[name] = as_tensor(array)
        level.load_state_dict(weights, assign=True)
        levels.append(level.requires_grad_(False).eval())
    return levels
