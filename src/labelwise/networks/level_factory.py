"""Builds the network of a level over words, with new weights for training or with those of a saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.codes.tree import LabelTree
from labelwise.device import computing_device
from labelwise.encoders.arrays import as_tensor
from labelwise.encoders.recurrent import RecurrentEncoder
from labelwise.encoders.word_config import RecurrentConfig
from labelwise.errors import ModelFormatError
from labelwise.heads.config import HeadConfig
from labelwise.heads.flat import FlatHead
from labelwise.heads.label_attention import LabelAttention
from labelwise.heads.label_outputs import LabelOutput, SharedOutput
from labelwise.networks.attention_tree import AttentionTree
from labelwise.networks.levels import AttentionLevel, Level, PooledLevel
from labelwise.store import get_tensor

WORDS = "encoder.words"
MAX_TREES = 10_000


@dataclass(frozen=True)
class LevelHead:
    """What follows the recurrent states.

    ``shared``: label-wise attention, then layers of the sizes `hidden` shared by all labels. ``own``: label-wise
    attention, then one linear output per label. ``mean``: the mean state, then one linear output per label.
    """

    kind: Literal["shared", "own", "mean"]
    hidden: Sequence[int] = ()


@dataclass(frozen=True)
class LevelFactory:
    """Builds the levels of a method's trees.

    Parameters
    ----------
    vectors
        Word vectors [words, width].
    frozen
        Whether the vectors are not trained; all levels then share them.
    recurrent, head
        The layers that follow.
    """

    vectors: Tensor
    frozen: bool
    recurrent: RecurrentConfig
    head: LevelHead

    def new(self, size: int, seed: int) -> Level:
        """A level of `size` nodes; its encoder is initialised with the seed."""
        return self._level(self.vectors, size, seed)

    def restored(self, tree: LabelTree, tensors: Mapping[str, np.ndarray], prefix: str, path: Path) -> list[Level]:
        """Rebuild the levels of a tree from what `AttentionTree.state` returned."""
        levels = []
        for depth, size in enumerate(tree.sizes):
            with torch.device("meta"):
                level = self._level(torch.empty(self.vectors.shape), size, 0)
            weights = {}
            for name, expected in level.state_dict().items():
                if self.frozen and name == WORDS:
                    weights[name] = self.vectors
                    continue
                key = f"{prefix}.level{depth}.{name}"
                array = get_tensor(tensors, key, path)
                if array.shape != tuple(expected.shape) or array.dtype != np.float32:
                    raise ModelFormatError(f"{path}: {key} is {array.dtype} {array.shape}, not {tuple(expected.shape)}")
                weights[name] = as_tensor(array)
            level.load_state_dict(weights, assign=True)
            levels.append(level.requires_grad_(False).eval().to(computing_device()))
        return levels

    def _level(self, vectors: Tensor, size: int, seed: int) -> Level:
        encoder = RecurrentEncoder(vectors, self.frozen, self.recurrent, seed)
        width = encoder.width
        if self.head.kind == "mean":
            return PooledLevel(encoder, FlatHead(width, size, HeadConfig(dropout=0.0)))
        output = LabelOutput(width, size) if self.head.kind == "own" else SharedOutput(width, self.head.hidden)
        return AttentionLevel(encoder, LabelAttention(width, size, output))


def state_of_trees(trees: Sequence[AttentionTree], frozen: bool) -> dict[str, np.ndarray]:
    """All trees as named arrays; frozen word vectors once."""
    state = {"trees": np.array([len(trees)], np.int64)}
    if frozen:
        state["words"] = trees[0].levels[0].encoder.words.detach().cpu().numpy()
    for number, tree in enumerate(trees):
        state |= tree.state(f"tree{number}", [WORDS] if frozen else [])
    return state


def stored_vectors(tensors: Mapping[str, np.ndarray], n_words: int, frozen: bool, path: Path) -> Tensor:
    """The word vectors in what `state_of_trees` returned: the shared ones, or those of the first level."""
    vectors = get_tensor(tensors, "words" if frozen else f"tree0.level0.{WORDS}", path)
    if vectors.ndim != 2 or len(vectors) != n_words or vectors.dtype != np.float32:
        raise ModelFormatError(f"{path}: one vector is needed for each of {n_words:,} words")
    return as_tensor(vectors)


def restored_trees(
    levels: LevelFactory, beam: int, tensors: Mapping[str, np.ndarray], n_labels: int, path: Path
) -> list[AttentionTree]:
    """Rebuild the trees from what `state_of_trees` returned."""
    count = get_tensor(tensors, "trees", path)
    if count.shape != (1,) or count.dtype != np.int64 or not 1 <= count[0] <= MAX_TREES:
        raise ModelFormatError(f"{path}: the number of trees is damaged")
    trees = []
    for number in range(int(count[0])):
        tree = LabelTree.from_tensors(f"tree{number}", tensors, path)
        if tree.n_labels != n_labels:
            raise ModelFormatError(f"{path}: tree {number} has {tree.n_labels:,} labels, not {n_labels:,}")
        trees.append(AttentionTree(tree, levels.restored(tree, tensors, f"tree{number}", path), beam))
    return trees
