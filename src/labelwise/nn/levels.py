"""One level of a label tree as a network, and its best nodes.

The top level scores all its nodes; lower levels the children of a few nodes per document. A flat model is one level.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.labelspace.tree import LabelTree, children_of
from labelwise.nn.arrays import as_tensor
from labelwise.nn.config import HeadConfig, LossConfig, RecurrentConfig
from labelwise.nn.heads.attention import Attention, AttentionInputs, LabelOutput, SharedOutput
from labelwise.nn.heads.base import Targets
from labelwise.nn.heads.linear import CandidateHead, Outputs, exact_topk
from labelwise.nn.heads.losses import label_priors
from labelwise.nn.inputs import Inputs, batches_by_length, tensors_of
from labelwise.nn.words.recurrent import RecurrentEncoder
from labelwise.runtime.device import computing_device
from labelwise.runtime.progress import progress
from labelwise.runtime.time_budget import check_pace
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

LENGTH_AT_ONCE = 16_384
"""Words per batch in prediction, padding included."""
SCORES_AT_ONCE = 1 << 24
"""Documents x nodes per batch in prediction: batches of short texts have many documents."""


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

    def of(self, documents: np.ndarray) -> Parents:
        """The parents of some documents."""
        return Parents(self.nodes[documents], self.scores[documents], self.offsets, self.child_ids)


class Level(nn.Module):
    """Interface of a level for training and search; `inputs` are the arguments of its encoder."""

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        raise NotImplementedError

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the top level; `targets` is CSR [documents, nodes]."""
        raise NotImplementedError

    def initialise_from(self, above: Any, seed: int) -> None:
        """Copy all weights from the level above, except those of the nodes, which are drawn."""
        raise NotImplementedError

    def row_tables(self, has_candidates: bool) -> list[str]:
        """Names of the parameters whose gradients are row-sparse."""
        raise NotImplementedError

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch; `targets` is 1 for true nodes, over all nodes or the candidates."""
        raise NotImplementedError

    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The best nodes of each document, at most k, and their probabilities times those of their parents."""
        raise NotImplementedError

    def free_memory(self) -> None:
        """Free the buffers that are kept for the next batch."""


class AttentionLevel(Level):
    """Recurrent states and label-wise attention."""

    def __init__(self, encoder: RecurrentEncoder, head: Attention) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.head.n_labels

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the head."""
        self.head.initialise(seed, label_priors(_counts(targets), targets.shape[0]))

    def initialise_from(self, above: AttentionLevel, seed: int) -> None:
        """Copy encoder and output layers from the level above; a frozen word table is shared by all levels."""
        frozen = [] if self.encoder.words.requires_grad else ["words"]
        learned = {name: part for name, part in above.encoder.state_dict().items() if name not in frozen}
        self.encoder.load_state_dict(learned, strict=False)
        self.head.initialise(seed)
        self.head.output.load_state_dict(above.head.output.state_dict())

    def row_tables(self, has_candidates: bool) -> list[str]:
        """The word table if it is trained, and the label vectors if only candidates are scored."""
        return [*_learned_words(self.encoder), *(["head.weight"] if has_candidates else [])]

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch of packed words."""
        return self.head.loss(self._attention_inputs(inputs, candidates), targets)

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best nodes of each document and their probabilities, times those of their parents."""
        if parents is None:
            scores = torch.sigmoid(self.head.scores(self._attention_inputs(inputs, None)))
            best, nodes = exact_topk(scores, min(k, scores.shape[1]))
            return nodes, best
        children = children_of(parents.nodes, parents.offsets)
        candidates = torch.from_numpy(children).to(inputs[0].device)
        scores = torch.sigmoid(self.head.scores(self._attention_inputs(inputs, candidates)))
        above = torch.from_numpy(parents.scores).to(scores.device)
        scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
        scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
        if parents.child_ids is not None:
            order = torch.from_numpy(np.argsort(parents.child_ids[children], axis=1, kind="stable")).to(scores.device)
            scores, candidates = scores.gather(1, order), candidates.gather(1, order)
        best, columns = exact_topk(scores, min(k, scores.shape[1]))
        return candidates.gather(1, columns), best

    def free_memory(self) -> None:
        """Free the buffers that are kept for the next batch."""
        self.encoder.pool.clear()
        self.head.pool.clear()

    def _attention_inputs(self, inputs: Sequence[Tensor], candidates: Tensor | None) -> AttentionInputs:
        ids, lengths = inputs
        sizes = lengths.cpu()
        return AttentionInputs(self.encoder(ids, sizes), sizes, candidates)


class PooledLevel(Level):
    """Recurrent states, their mean, and one linear output per label: a baseline. It scores all labels."""

    def __init__(self, encoder: RecurrentEncoder, head: Outputs) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def n_nodes(self) -> int:
        """Number of labels."""
        return self.head.n_labels

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the head."""
        self.head.initialise(_counts(targets), targets.shape[0], seed)

    def row_tables(self, has_candidates: bool) -> list[str]:
        """The word table if it is trained."""
        return _learned_words(self.encoder)

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch of packed words."""
        labels, documents = torch.nonzero(targets.T, as_tuple=True)
        return self.head.loss(self._vectors(inputs), Targets(documents, labels))

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best labels of each document and their probabilities."""
        labels, best = self.head.best(self._vectors(inputs), min(k, self.n_nodes))
        return labels, torch.sigmoid(best)

    def free_memory(self) -> None:
        """Free the buffers that are kept for the next batch."""
        self.encoder.pool.clear()

    def _vectors(self, inputs: Sequence[Tensor]) -> Tensor:
        """The mean state of each document."""
        ids, lengths = inputs
        sizes = lengths.cpu()
        return self.encoder(ids, sizes).sum(1) / sizes[:, None].to(ids.device)


def _counts(targets: Any) -> np.ndarray:
    return np.bincount(targets.indices, minlength=targets.shape[1])


def _learned_words(encoder: RecurrentEncoder) -> list[str]:
    return ["encoder.words"] if encoder.words.requires_grad else []


def best_nodes(level: Level, inputs: Inputs, k: int, parents: Parents | None, what: str) -> TopK:
    """The k best nodes of each document, ordered by score and then by id; NO_LABEL where there are fewer."""
    ids = np.full((len(inputs), k), NO_LABEL, np.int32)
    scores = np.full((len(inputs), k), -np.inf, np.float32)
    device = next(level.parameters()).device
    batch_size = max(1, SCORES_AT_ONCE // level.n_nodes) if parents is None else None
    lengths = inputs.lengths
    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(inputs)) as step:
        for documents in batches_by_length(lengths, LENGTH_AT_ONCE, batch_size):
            batch = inputs.batch(documents)
            own = None if parents is None else parents.of(batch.rows)
            nodes, best = level.best(tensors_of(batch, device), k, own)
            count = nodes.shape[1]
            ids[batch.rows, :count], scores[batch.rows, :count] = nodes.cpu().numpy(), best.cpu().numpy()
            step(len(documents))
            done += int(lengths[documents].sum())
            check_pace(begin, done, total)
    ids[~np.isfinite(scores)] = NO_LABEL  # a model that has diverged predicts nothing
    scores[ids == NO_LABEL] = -np.inf
    return sorted_by_score(ids, scores)


# --- attention tree ---
# A label tree with a network at every level: beam search, and its state as arrays.


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


# --- level factory ---
# Builds the network of a level over words, with new weights for training or with those of a saved model.

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
            return PooledLevel(encoder, Outputs(width, size, HeadConfig(dropout=0.0)))
        output = LabelOutput(width, size) if self.head.kind == "own" else SharedOutput(width, self.head.hidden)
        return AttentionLevel(encoder, Attention(width, size, output))


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


# --- encoder level ---
# One level of a label tree over an encoder that all levels share: one vector per document, one linear output per node.
#
# The encoder is carried over from level to level, so the levels of a tree hold the same module, with the weights of the
# last training. The top level scores all nodes, lower ones the children of a few parents per document.


class EncoderLevel(Level):
    """An encoder and a head.

    Parameters
    ----------
    encoder
        A module that returns one vector per document; `torch.nn.Identity` for documents that are vectors.
    head
        Of all nodes, or of candidates.
    hinge
        Whether scores are margins, trained by a hinge loss; otherwise they are log-odds.
    weighted
        Whether the values of targets are weights of the loss of true nodes; otherwise the weight is 1.
    """

    def __init__(self, encoder: Any, head: Outputs | CandidateHead, hinge: bool, weighted: bool) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head, self.hinge, self.weighted = head, hinge, weighted

    @classmethod
    def new(
        cls, encoder: Any, n_nodes: int, loss: LossConfig, weighted: bool, dropout: float, has_candidates: bool
    ) -> EncoderLevel:
        """A level whose head has no weights yet."""
        if has_candidates:
            head: Outputs | CandidateHead = CandidateHead(encoder.width, n_nodes, loss, dropout)
        else:
            head = Outputs(encoder.width, n_nodes, HeadConfig(loss=loss, dropout=dropout))
        return cls(encoder, head, "hinge" in loss.name, weighted)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.head.n_labels

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the head."""
        if isinstance(self.head, CandidateHead):
            self.head.initialise(seed)
        else:
            counts = np.bincount(targets.indices, minlength=targets.shape[1])[: self.n_nodes]
            self.head.initialise(counts, targets.shape[0], seed)

    @torch.no_grad()
    def initialise_head(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Copy given weights [nodes, width] and biases."""
        self.head.weight.copy_(torch.from_numpy(weight))
        self.head.bias.copy_(torch.from_numpy(bias))

    def row_tables(self, has_candidates: bool) -> list[str]:
        """Weights and biases of the nodes if only candidates are scored."""
        return ["head.weight", "head.bias"] if has_candidates else []

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch; `targets` is above 0 for true nodes."""
        vectors = self.encoder(*inputs)
        if not self.weighted:
            targets = (targets > 0).to(targets.dtype)
        if candidates is None:
            assert isinstance(self.head, Outputs)
            nodes, documents = torch.nonzero(targets.T, as_tuple=True)
            return self.head.loss(vectors, Targets(documents, nodes, targets[documents, nodes]))
        assert isinstance(self.head, CandidateHead)
        used = (candidates >= 0).any(0)
        return self.head.loss(vectors, candidates[:, used], targets[:, used])

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best nodes of each document and their scores between 0 and 1, times those of their parents."""
        vectors = self.encoder(*inputs).float()
        if parents is None:
            assert isinstance(self.head, Outputs)
            nodes, best = self.head.best(vectors, min(k, self.n_nodes))
            return nodes, self._probabilities(best)
        assert isinstance(self.head, CandidateHead)
        candidates = torch.from_numpy(children_of(parents.nodes, parents.offsets)).to(vectors.device)
        scores = self._probabilities(self.head.scores(vectors, candidates))
        above = torch.from_numpy(parents.scores).to(scores.device)
        scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
        scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
        best, columns = exact_topk(scores, min(k, scores.shape[1]))
        return candidates.gather(1, columns), best

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Margins as exp(-max(0, 1 - margin)^3), as the linear trees do; log-odds as probabilities."""
        return torch.exp(-((1 - scores).clamp_min(0) ** 3)) if self.hinge else torch.sigmoid(scores)
