"""A label tree with a network at every level: beam search, and its state as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.codes.tree import LabelTree
from labelwise.encoders.base import Inputs
from labelwise.networks.levels import Parents, best_nodes
from labelwise.progress import progress
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
        with progress("predicting", len(self.levels), "work") as step:
            for depth, level in enumerate(self.levels):
                parents = None
                if depth > 0:
                    parents = parents_of(tops[-1], self.tree, depth, self.tree.label_order if depth == last else None)
                count = k if depth == last else min(self.beam, self.tree.sizes[depth])
                with step.part(1):
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
