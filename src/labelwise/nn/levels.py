"""What attention_xml and bigru learn: label trees with a network at each level. Does not import torch.

A flat model is a tree of one level. Networks are in `level_networks`, their training in `train/levels`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ModelFormatError, import_required
from labelwise.io.folder import get_tensor
from labelwise.labelspace.tree import LabelPath, LabelTree, PathStep, children_of
from labelwise.linear.trees import averaged
from labelwise.nn.config import HeadConfig
from labelwise.nn.encode import TOKENS_AT_ONCE, EncoderHead
from labelwise.nn.heads.attention import Attention, LabelOutput, SharedOutput
from labelwise.nn.heads.base import exact_topk
from labelwise.nn.heads.linear import Outputs
from labelwise.nn.inputs import Inputs, Part, as_tensor, batches_by_length, tensors_of
from labelwise.nn.words.recurrent import RecurrentEncoder
from labelwise.nn.words.vocabulary import Vocabulary, WordTokens
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.device import computing_device
from labelwise.runtime.progress import progress
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

if TYPE_CHECKING:
    from labelwise.data.dataset import Documents
    from labelwise.nn.train.loop import History


LABELS_PER_TREE = 100
"""Minimum number of labels predicted per tree, if there are several trees."""
MAX_TREES = 10_000
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
        self,
        vocabulary: Vocabulary,
        trees: list[LevelTree],
        frozen: bool,
        histories: Sequence[Sequence[History]] = (),
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
        from labelwise.runtime.device import torch_threads

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
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            return mean_states([tree.levels[-1].encoder for tree in self.trees], self._words(documents))

    def explain(self, documents: Documents, labels: np.ndarray, config: Any) -> list[list[LabelPath]]:
        """Per tree the paths of labels, with the attention that their words get."""
        from labelwise.runtime.device import torch_threads

        words = self._words(documents)
        with torch_threads():
            return [explain_labels(tree, words, labels) for tree in self.trees]

    def names(self, columns: np.ndarray) -> list[str]:
        """The words of ids."""
        return [self.vocabulary.name(int(word)) for word in columns]

    def _words(self, documents: Documents) -> WordTokens:
        return self.vocabulary.encode(documents.texts or Strings.of(()))

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
        from labelwise.nn.inputs import as_tensor

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


# --- level networks ---
# The networks of the levels of a label tree: an encoder and a head each, and the best nodes of documents.
#
# The top level scores all its nodes; lower levels the children of a few nodes per document. A flat model is one level.

LENGTH_AT_ONCE = 16_384
"""Words per batch in prediction, padding included."""
SCORES_AT_ONCE = 1 << 24
"""Documents x nodes per batch in prediction: batches of short texts have many documents."""
WORDS = "encoder.words"


# --- ranking ---


def best_nodes(network: Any, part: Inputs, k: int, what: str, budget: Budget = NO_LIMIT) -> TopK:
    """The k best nodes of each document, ordered by score and then by id; NO_LABEL where there are fewer.

    A `Part` with parents: among their children, with probabilities times those of the parents.
    """
    ids = np.full((len(part), k), NO_LABEL, np.int32)
    scores = np.full((len(part), k), -np.inf, np.float32)
    parents, head = getattr(part, "parents", None), network.head
    batch_size = max(1, SCORES_AT_ONCE // head.n_labels) if parents is None else None
    lengths = part.lengths
    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(part)) as step:
        for documents in batches_by_length(lengths, LENGTH_AT_ONCE, batch_size):
            batch = part.batch(documents)
            own = None if parents is None else parents.of(batch.rows)
            nodes, best = best_of_batch(network, tensors_of(batch, head.device), k, own)
            count = nodes.shape[1]
            ids[batch.rows, :count], scores[batch.rows, :count] = nodes.cpu().numpy(), best.cpu().numpy()
            step(len(documents))
            done += int(lengths[documents].sum())
            budget.check_pace(begin, done, total)
    ids[~np.isfinite(scores)] = NO_LABEL  # a model that has diverged predicts nothing
    scores[ids == NO_LABEL] = -np.inf
    return sorted_by_score(ids, scores)


@torch.no_grad()
def best_of_batch(network: Any, arrays: tuple[Tensor, ...], k: int, parents: Any) -> tuple[Tensor, Tensor]:
    """The best nodes of each document, at most k, and their probabilities times those of their parents."""
    head, states = network.head, network(*arrays)
    if parents is None:
        nodes, best = head.best(states, min(k, head.n_labels))
        return nodes, head.probabilities(best)
    children = parents.children()
    candidates = torch.from_numpy(children).to(head.device)
    scores = head.probabilities(head.scores(states, candidates))
    above = torch.from_numpy(parents.scores).to(scores.device)
    scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
    scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
    if parents.child_ids is not None:
        order = torch.from_numpy(np.argsort(parents.child_ids[children], axis=1, kind="stable")).to(scores.device)
        scores, candidates = scores.gather(1, order), candidates.gather(1, order)
    best, columns = exact_topk(scores, min(k, scores.shape[1]))
    return candidates.gather(1, columns), best


# --- networks over words ---


def new_network(vectors: Tensor, config: Any, size: int, seed: int) -> EncoderHead:
    """The network of a level of `size` nodes, by the config of attention_xml or bigru; its head has no weights yet.

    attention_xml: label-wise attention, then layers that all labels share. bigru: label-wise attention, then one output
    per label, or without attention the mean state, then one output per label.
    """
    attention = getattr(config, "attention", "shared")
    encoder: Any = RecurrentEncoder(vectors, config.words.is_frozen, config.recurrent, seed, pooled=attention == "none")
    width = encoder.width
    if attention == "none":
        return EncoderHead(encoder, Outputs(width, size, HeadConfig(dropout=0.0)))
    output = LabelOutput(width, size) if attention == "label" else SharedOutput(width, config.hidden)
    return EncoderHead(encoder, Attention(width, size, output))


def initialised(network: EncoderHead, above: Any, targets: Any, seed: int) -> EncoderHead:
    """Draw the weights of the head, for targets [documents, nodes]; all but those of the nodes are as in `above`."""
    network.head.initialise(np.bincount(targets.indices, minlength=targets.shape[1]), targets.shape[0], seed)
    if above is not None:
        frozen = [] if network.encoder.words.requires_grad else ["words"]  # a frozen table is shared by all levels
        learned = {name: part for name, part in above.encoder.state_dict().items() if name not in frozen}
        network.encoder.load_state_dict(learned, strict=False)
        head: Any = network.head
        head.output.load_state_dict(above.head.output.state_dict())
    return network


def restored_network(
    vectors: Tensor, config: Any, size: int, tensors: Mapping[str, np.ndarray], prefix: str, path: Path
) -> EncoderHead:
    """The network of a level from the arrays of a model file, whose names begin with `prefix`, on its device."""
    with torch.device("meta"):
        network = new_network(torch.empty(vectors.shape), config, size, 0)
    weights = {}
    for name, expected in network.state_dict().items():
        if config.words.is_frozen and name == WORDS:
            weights[name] = vectors
            continue
        array = get_tensor(tensors, prefix + name, path)
        if array.shape != tuple(expected.shape) or array.dtype != np.float32:
            raise ModelFormatError(
                f"{path}: {prefix}{name} is {array.dtype} {array.shape}, not {tuple(expected.shape)}"
            )
        weights[name] = as_tensor(array)
    network.load_state_dict(weights, assign=True)
    return network.requires_grad_(False).eval().to(computing_device())


def free_buffers(network: EncoderHead) -> None:
    """Free the buffers that encoder and head keep for their next batch."""
    parts: list[Any] = [network.encoder, network.head]
    for part in parts:
        if hasattr(part, "pool"):
            part.pool.clear()


def mean_states(encoders: Sequence[RecurrentEncoder], words: Inputs) -> np.ndarray:
    """The mean state of each document in each encoder, concatenated [documents, widths]."""
    vectors = np.empty((len(words), sum(encoder.width for encoder in encoders)), np.float32)
    with torch.no_grad(), progress("encoding", len(words)) as step:
        for documents in batches_by_length(words.lengths, TOKENS_AT_ONCE):
            batch = words.batch(documents)
            ids, lengths = tensors_of(batch)
            means = [
                encoder.states(ids.to(encoder.words.device), lengths).sum(1).cpu() / lengths[:, None]
                for encoder in encoders
            ]
            vectors[batch.rows] = torch.cat(means, 1).numpy()
            step(len(documents))
    return vectors


# --- explanation ---
# Explains scores of networks with label-wise attention: attention weights of words and their contributions.
#
# The output layers are linear wherever their ReLUs do not switch, so at a document the score before the sigmoid is
# exactly ``bias + sum over words of (weight of the word) x (gradient . state of the word)``. A term's value is the
# weight: the fraction of the label's attention that the word gets. A term's weight is the gradient times the state.


def explain_labels(tree: LevelTree, tokens: WordTokens, labels: np.ndarray) -> list[LabelPath]:
    """The paths of some labels (ids) for one document."""
    shape = tree.tree
    nodes = [shape.ancestors(depth)[labels] for depth in range(shape.depth)]
    kept = [np.ones(len(labels), bool)]
    for depth, top in enumerate(tree.search(tokens, 1)[:-1]):
        kept.append(kept[-1] & np.isin(nodes[depth], top.ids[0][top.ids[0] != NO_LABEL]))
    ids, _ = tokens.batch(np.arange(1)).arrays
    views = [_view(level, ids, own) for level, own in zip(tree.levels, nodes, strict=True)]
    words, inverse = np.unique(ids, return_inverse=True)
    paths = []
    for number, label in enumerate(labels.tolist()):
        steps, labels_below, total = [], [], 1.0
        for depth, view in enumerate(views):
            margin = float(view.margins[number])
            score = 1 / (1 + np.exp(-margin))
            total *= score
            below = np.flatnonzero(shape.ancestors(depth) == nodes[depth][number])
            reached = bool(kept[min(depth + 1, len(kept) - 1)][number])
            labels_below.append(below)
            bias = float(view.biases[number])
            steps.append(PathStep(int(nodes[depth][number]), len(below), (), margin, bias, score, total, reached))
        weights, added = view.weights[number], view.added[number]
        attention = np.bincount(inverse, weights, len(words))
        sums = np.bincount(inverse, weights * added, len(words))
        used = attention > 0
        given = total if steps[-1].kept else 0.0
        means = sums[used] / attention[used]
        paths.append(LabelPath(label, tuple(steps), tuple(labels_below), words[used], attention[used], means, given))
    return paths


class _AttentionView:
    """Attention of nodes over a document: weights, contributions [nodes, words], margins and biases [nodes]."""

    def __init__(self, weights: Tensor, added: Tensor, margins: Tensor) -> None:
        self.weights, self.added, self.margins = (part.cpu().double().numpy() for part in (weights, added, margins))
        self.biases = self.margins - (self.weights * self.added).sum(1)


def _view(level: EncoderHead, ids: np.ndarray, nodes: np.ndarray) -> _AttentionView:
    head: Any = level.head
    device = level.encoder.words.device
    with torch.no_grad():
        states = level.encoder.states(torch.from_numpy(ids).to(device), torch.tensor([len(ids)]))[0]
        chosen = torch.from_numpy(nodes.astype(np.int64)).to(device)
        weights = head.weights_of_words(states, chosen)
        views = weights @ states
    views.requires_grad_()
    output = head.output
    with torch.enable_grad():
        margins = output(views, chosen) if isinstance(output, LabelOutput) else output(views)
        (gradients,) = torch.autograd.grad(margins.sum(), views)
    return _AttentionView(weights, gradients @ states.T, margins.detach())
