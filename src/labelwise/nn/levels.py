"""What attention_xml and bigru learn: label trees with a network at each level. Does not import torch.

A flat model is a tree of one level. The networks are in `level_networks`, their training in `train/levels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.errors import ModelFormatError, import_required
from labelwise.io.folder import get_tensor
from labelwise.labelspace.tree import LabelPath, LabelTree, children_of
from labelwise.linear.trees import averaged
from labelwise.nn.inputs import Inputs, Part, as_tensor, texts_of
from labelwise.nn.words.vocabulary import Vocabulary, WordTokens
from labelwise.runtime.device import torch_threads
from labelwise.runtime.progress import progress
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

if TYPE_CHECKING:
    from labelwise.data.dataset import Documents
    from labelwise.nn.train.loop import History

LABELS_PER_TREE = 100
"""Minimum number of labels predicted per tree, if there are several trees."""
MAX_TREES = 10_000
WORDS = "encoder.words"
"""The name of the word vectors among the weights of a level."""
MAX_VALID_WORDS = 1000
"""Maximum number of documents held out from the training documents: they are validated every hundred steps."""


@dataclass(frozen=True)
class Parents:
    """Parent nodes whose children are scored.

    Parameters
    ----------
    nodes, scores
        [documents, ranks]: their ids (-1 where there is none) and probabilities.
    offsets
        Node n has the children from ``offsets[n]`` to ``offsets[n + 1]``.
    child_ids
        Ids of the children, which break ties (lower first); None: their indices.
    """

    nodes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray
    child_ids: np.ndarray | None = None

    @classmethod
    def ranked(cls, top: TopK, tree: LabelTree, depth: int, child_ids: np.ndarray | None = None) -> Parents:
        """Ranked nodes as the parents of the nodes that are scored at a level."""
        scores = np.where(top.ids == NO_LABEL, 0, top.scores)
        return cls(top.ids, scores, tree.children_offsets(depth), child_ids)

    def of(self, documents: np.ndarray) -> Parents:
        """The parents of some documents."""
        return Parents(self.nodes[documents], self.scores[documents], self.offsets, self.child_ids)

    def children(self) -> np.ndarray:
        """Candidates [documents, ranks x maximum children], padded with NO_LABEL."""
        return children_of(self.nodes, self.offsets)


@dataclass(frozen=True)
class LevelTree:
    """A tree and the networks of its levels (`EncoderHead`)."""

    tree: LabelTree
    levels: Sequence[Any]
    beam: int

    def search(self, inputs: Inputs, k: int) -> list[TopK]:
        """Beam search: the best `beam` nodes of each level, and the best k leaves (labels) at the last."""
        from labelwise.nn.level_networks import best_nodes

        tops: list[TopK] = []
        last = len(self.levels) - 1
        with progress("predicting", len(self.levels), "work") as step:
            for depth, level in enumerate(self.levels):
                parents = None
                if depth > 0:
                    child_ids = self.tree.label_order if depth == last else None
                    parents = Parents.ranked(tops[-1], self.tree, depth, child_ids)
                count = k if depth == last else min(self.beam, self.tree.sizes[depth])
                with step.part(1):
                    tops.append(best_nodes(level, Part(inputs, parents=parents), count, "predicting"))
        return tops

    def best(self, inputs: Inputs, k: int) -> TopK:
        """The k best labels of each document."""
        top = self.search(inputs, k)[-1]
        ids = np.where(top.ids == NO_LABEL, NO_LABEL, self.tree.label_order[np.maximum(top.ids, 0)]).astype(np.int32)
        return sorted_by_score(ids, top.scores)


class LevelsModel:
    """A vocabulary and trees of networks over its words; `histories` has the training of each level, per tree.

    Parameters
    ----------
    vocabulary, trees
        What was learned.
    frozen
        Whether word vectors were not trained; all levels then share them.
    histories
        Empty after loading.
    """

    def __init__(
        self, vocabulary: Vocabulary, trees: list[LevelTree], frozen: bool, histories: Sequence[Sequence[History]] = ()
    ) -> None:
        self.vocabulary, self.trees, self.frozen, self.histories = vocabulary, trees, frozen, histories
        pooled = trees[0].levels[0].encoder.pooled
        self.lacks = ("explain",) if pooled else ()

    @property
    def tree(self) -> LabelTree:
        """The first label tree."""
        return self.trees[0].tree

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        """The best k labels: products of probabilities along the path, averaged over trees."""

        words = self._words(documents)
        with torch_threads():
            if len(self.trees) == 1:
                return self.trees[0].best(words, k)
            each, tops = min(max(k, LABELS_PER_TREE), self.tree.n_labels), []
            with progress("predicting", len(self.trees), "work") as step:
                for tree in self.trees:
                    with step.part(1):
                        tops.append(tree.best(words, each))
            return averaged(tops, k, product=True)

    def vectors(self, documents: Documents, config: Any) -> np.ndarray:
        """The mean hidden state of each document at the last level, concatenated over the trees."""
        from labelwise.nn.level_networks import mean_states

        with torch_threads():
            return mean_states([tree.levels[-1].encoder for tree in self.trees], self._words(documents))

    def explain(self, documents: Documents, labels: np.ndarray, config: Any) -> list[list[LabelPath]]:
        """Per tree the paths of labels, with the attention that their words get."""
        from labelwise.nn.level_networks import explain_labels

        words = self._words(documents)
        with torch_threads():
            return [explain_labels(tree, words, labels) for tree in self.trees]

    def names(self, columns: np.ndarray) -> list[str]:
        """The words of ids."""
        return [self.vocabulary.name(int(word)) for word in columns]

    def _words(self, documents: Documents) -> WordTokens:
        return self.vocabulary.encode(texts_of(documents))

    # --- files ---

    @classmethod
    def saved_lacks(cls, config: Any, arrays: Any, members: Any) -> set[str]:
        """Members that a saved model lacks: without attention there are no explanations."""
        return {"explain"} if getattr(config, "attention", "label") == "none" else set()

    def tensors(self) -> dict[str, np.ndarray]:
        """Vocabulary, trees and weights; frozen word vectors once."""
        state = {"trees": np.array([len(self.trees)], np.int64), **self.vocabulary.state()}
        if self.frozen:
            state["words"] = self.trees[0].levels[0].encoder.words.detach().cpu().numpy()
        for number, one in enumerate(self.trees):
            state |= one.tree.to_tensors(f"tree{number}")
            for depth, level in enumerate(one.levels):
                for name, weight in level.state_dict().items():
                    if not (self.frozen and name == WORDS):
                        state[f"tree{number}.level{depth}.{name}"] = weight.cpu().numpy()
        return state

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> LevelsModel:
        """Rebuild what `tensors` returned; shapes and types of all arrays are checked."""
        import_required("this model", "nn", "torch")
        from labelwise.nn.level_networks import restored_network

        config, path, frozen = about.config, about.path, about.config.words.is_frozen
        vocabulary = Vocabulary.restored(tensors, config.words, path)
        vectors = get_tensor(tensors, "words" if frozen else f"tree0.level0.{WORDS}", path)
        if vectors.ndim != 2 or len(vectors) != len(vocabulary) or vectors.dtype != np.float32:
            raise ModelFormatError(f"{path}: one vector is needed for each of {len(vocabulary):,} words")
        count = get_tensor(tensors, "trees", path)
        if count.shape != (1,) or count.dtype != np.int64 or not 1 <= count[0] <= MAX_TREES:
            raise ModelFormatError(f"{path}: the number of trees is damaged")
        trees, table = [], as_tensor(vectors)
        for number in range(int(count[0])):
            name = f"tree{number}"
            tree = LabelTree.from_tensors(name, tensors, path)
            if tree.n_labels != about.n_labels:
                raise ModelFormatError(f"{path}: tree {number} has {tree.n_labels:,} labels, not {about.n_labels:,}")
            levels = [
                restored_network(table, config, size, tensors, f"{name}.level{depth}.", path)
                for depth, size in enumerate(tree.sizes)
            ]
            trees.append(LevelTree(tree, levels, getattr(config, "beam_width", 1)))
        return cls(vocabulary, trees, frozen)
