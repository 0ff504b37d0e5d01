"""Heads of digits: labels as numbers in mixed radix, of which a head scores the digits instead of all labels.

Multi-Head Encoding for Extreme Label Classification, Liang et al., TPAMI 2025.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from scipy.special import logit
from torch import Tensor, nn
from torch.nn import functional

from labelwise.labelspace.digits import DigitCode, best_labels_of_digits
from labelwise.nn.config import DigitHeadConfig, LossConfig
from labelwise.nn.heads.base import INITIAL_STD, Head, LinearHead, Targets, exact_topk, label_priors
from labelwise.nn.heads.linear import Outputs, Softmax
from labelwise.nn.heads.losses import best_constants, loss_with_gradients, make_loss
from labelwise.topk import NO_LABEL

# --- product ---
# One output per value of each digit (MHP), sum_h C_h outputs instead of C.
#
# The score of a label is the sum of its digits' scores, so the digits are independent given the document, and the
# matrix of scores has a rank of at most the number of outputs: fewest parameters, and the lowest accuracy of the three
# heads.
#
# `softmax`, the default, is the consistent loss: the negative log-likelihood of the label in the softmax over all
# labels whose scores are these sums. Without surplus codes it is the sum of a cross-entropy per digit; with some, its
# normaliser leaves them out, which costs no more: all valid codes are those that agree with the last one up to some
# digit, are below it there, and free after it. The original's losses are `joint_softmax` (one softmax over the outputs
# of all digits) and `bce` (a binary cross-entropy per output against the digits of all labels).


class Product(LinearHead):
    """Outputs per value of each digit, digit after digit.

    Parameters
    ----------
    width
        Dimension of a vector.
    code
        The digits of the labels; values that no label has get no output.
    config
        Settings.
    """

    config: DigitHeadConfig

    def __init__(self, width: int, code: DigitCode, config: DigitHeadConfig) -> None:
        super().__init__(width, code.n_labels, sum(code.sizes), config)
        self.code = code
        starts = np.concatenate([[0], np.cumsum(code.sizes)[:-1]])
        columns = torch.from_numpy(code.encode(np.arange(code.n_labels)) + starts)
        self.columns: Tensor
        self.register_buffer("columns", columns, persistent=False)  # outputs of each label [labels, digits]
        last = code.n_labels - 1
        self.last_digits = [last // place % radix for place, radix in zip(code.places, code.radices, strict=True)]

    def _constants(self, counts: np.ndarray, n_documents: int) -> np.ndarray:
        sums = np.zeros(len(self.bias))
        np.add.at(sums, self.columns.cpu().numpy(), np.asarray(counts, np.float64)[:, None])
        if self.config.loss == "bce":
            priors = label_priors(np.minimum(sums, n_documents), n_documents)
            return best_constants(make_loss(LossConfig()), priors)
        parts = torch.from_numpy(sums + 0.5).split(self.code.sizes)
        return torch.cat([torch.log(part / part.sum()) for part in parts]).numpy()

    # --- loss ---

    def loss(self, states: Tensor, targets: Targets, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of the documents."""
        return self._loss(functional.linear(self.dropout(states), self.weight, self.bias), targets)

    def _loss(self, outputs: Tensor, targets: Targets) -> Tensor:
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        count = max(len(outputs), 1)
        columns = self.columns[targets.labels]
        if self.config.loss == "bce":
            return self._binary(outputs, targets, columns)
        masses = targets.masses(len(outputs)).to(outputs.dtype)
        if self.config.loss == "joint_softmax":
            outputs = functional.log_softmax(outputs, 1)
        own = outputs[targets.documents[:, None], columns].sum(1) @ masses
        if self.config.loss == "joint_softmax":
            return -own / count
        totals = torch.zeros(len(outputs), dtype=outputs.dtype, device=outputs.device)
        totals.index_add_(0, targets.documents, masses)
        return (self.normaliser(outputs) @ totals - own) / count

    def _binary(self, outputs: Tensor, targets: Targets, columns: Tensor) -> Tensor:
        true = torch.zeros_like(outputs)
        weights = torch.ones_like(outputs)
        true[targets.documents[:, None], columns] = 1.0
        if targets.weights is not None:
            # a digit of several labels has the largest of their weights
            flat = (targets.documents[:, None] * outputs.shape[1] + columns).ravel()
            own = targets.weights.to(outputs.dtype).repeat_interleave(columns.shape[1])
            weights.view(-1).scatter_reduce_(0, flat, own, "amax", include_self=False)
        loss = functional.binary_cross_entropy_with_logits(outputs, true, weights, reduction="sum")
        scale = outputs.shape[1] if self.config.reduction == "mean" else 1
        return loss / (max(len(outputs), 1) * scale)

    def normaliser(self, outputs: Tensor) -> Tensor:
        """The log-sum-exp of the scores of all labels [documents], without surplus codes."""
        parts = outputs.split(self.code.sizes, 1)
        sums = [torch.logsumexp(part, 1) for part in parts]
        if self.code.surplus == 0:
            return torch.stack(sums).sum(0)
        terms, agreeing = [], torch.zeros_like(sums[0])
        for digit, (part, last) in enumerate(zip(parts, self.last_digits, strict=True)):
            if last > 0:
                free = [torch.logsumexp(part[:, :last], 1), *sums[digit + 1 :]]
                terms.append(agreeing + torch.stack(free).sum(0))
            agreeing = agreeing + part[:, last]
        return torch.logsumexp(torch.stack([*terms, agreeing]), 0)

    # --- prediction ---

    @torch.no_grad()
    def best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities of the k best labels; with `bce` the sum of the logarithms of the digits'."""
        with torch.autocast(states.device.type, enabled=False):
            outputs = functional.linear(states.to(self.weight.dtype), self.weight, self.bias)
            if self.config.loss == "bce":
                scores = functional.logsigmoid(outputs)
            else:
                scores = torch.cat([functional.log_softmax(part, 1) for part in outputs.split(self.code.sizes, 1)], 1)
                if self.code.surplus:  # before the search, so that ties are those of the final scores
                    scores[:, : self.code.sizes[0]] -= self.normaliser(scores)[:, None]
            ids, best = best_labels_of_digits(scores.cpu().numpy(), self.code, k)
        return torch.from_numpy(ids).to(states.device), torch.from_numpy(best).to(scores).clamp_max(0)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The exponential of log-probabilities."""
        return torch.exp(scores)

    def constant_loss(self, labels: Any, rows: np.ndarray) -> float:
        """The loss of `rows` with the constant scores that fit the frequencies of digits."""
        counts = np.bincount(labels.indices, minlength=self.n_labels)
        constants = torch.from_numpy(self._constants(counts, labels.shape[0])).to(self.device)
        targets = Targets.of_rows(labels, rows).to(self.device)
        with torch.no_grad():
            return float(self._loss(constants.expand(len(rows), -1), targets))


# --- cascade ---
# The first digit is a group, later digits are scored below a few nodes (MHC).
#
# An output per group; below it, at each level, a narrow layer (the bottleneck) and an embedding per node, of which only
# the children of a few nodes per document are scored. It has labels x bottleneck parameters instead of labels x width,
# and a step costs as much as the labels of the groups that it visits.
#
# Training visits the true nodes of a document, all of them, and those that the model itself ranks highest, as
# negatives. With `bce` a score is the product of the probabilities of the nodes on its path. With `softmax` and only
# true nodes it is p(group) p(label | group), a hierarchical softmax. With other nodes as negatives, the softmax of a
# level is over the children of all visited nodes, in training and in prediction, and the score is still the product
# over the path: on Omniglot it has 77 % top-1 accuracy, p(group) p(label | group) of the same weights 62 %, the last
# level alone 69 %. The order of labels does not depend on the beam then, but the sum that normalises their scores does.
# Prediction is a beam search; the original is greedy.

USUAL_BOTTLENECK = 256
"""Width of embeddings when the config has none."""
WEIGHTS_AT_ONCE = 1 << 25
"""Weights of embeddings that a beam search copies at a time: 128 MB."""
LEAST = 1e-12
"""Priors are at least this, so that initial biases are finite."""
USUAL_GROUPS = {"softmax": 1, "bce": 10}
"""Nodes per document and level in training, when the config has no number of them."""


class Cascade(Head):
    """Outputs per group, and embeddings per node below.

    Parameters
    ----------
    width
        Dimension of a vector.
    code
        The digits of the labels.
    config
        Settings.
    """

    def __init__(self, width: int, code: DigitCode, config: DigitHeadConfig) -> None:
        super().__init__(code.n_labels)
        self.code, self.config = code, config
        flat = config.flat().model_copy(update={"dropout": 0.0})  # one mask for all levels
        narrow = config.bottleneck or min(USUAL_BOTTLENECK, width)
        below = range(1, code.depth)
        self.dropout = nn.Dropout(config.dropout)
        self.groups = Outputs(width, code.n_nodes(0), flat)
        self.bottlenecks: Any = nn.ModuleList(nn.Linear(width, narrow) for _ in below)
        self.visited = config.groups or USUAL_GROUPS[config.loss]
        segments = code.radices if self.is_conditional else [None] * code.depth
        self.levels: Any = nn.ModuleList(Outputs(narrow, code.n_nodes(digit), flat, segments[digit]) for digit in below)
        self.code_of: Tensor
        self.register_buffer("code_of", torch.from_numpy(code.code_of), persistent=False)
        order = None if code.label_at is None else torch.from_numpy(code.label_at.astype(np.int64))
        self.label_at: Tensor | None
        self.register_buffer("label_at", order, persistent=False)

    def row_tables(self, candidates: bool = False) -> tuple[str, ...]:
        """Embeddings of nodes and their biases."""
        return tuple(f"levels.{level}.{name}" for level in range(len(self.levels)) for name in ("weight", "bias"))

    @property
    def is_conditional(self) -> bool:
        """Whether a level's softmax is over the children of one node."""
        return self.config.loss == "softmax" and self.visited == 1

    @torch.no_grad()
    def initialise(self, counts: np.ndarray, n_documents: int, seed: int) -> Self:
        """Draw the initial weights, and set biases from the frequencies of nodes below their parents."""
        nodes = [self._node_priors(counts, n_documents, digit) for digit in range(self.code.depth)]
        self.groups.initialise(nodes[0] * n_documents, n_documents, seed)
        generator = torch.Generator().manual_seed(seed + 1)
        for digit in range(1, self.code.depth):
            bottleneck, level = self.bottlenecks[digit - 1], self.levels[digit - 1]
            bottleneck.weight.normal_(0, bottleneck.in_features**-0.5, generator=generator)
            bottleneck.bias.zero_()
            level.weight.normal_(0, INITIAL_STD, generator=generator)
            if self.config.bias == "prior":
                above = nodes[digit - 1].repeat(self.code.radices[digit])[: len(nodes[digit])]
                documents = above * n_documents  # an only child is no certainty: its parent is a negative too
                most = (documents + 0.5) / (documents + 1.0)
                priors = self._by_label(np.clip(nodes[digit] / above, LEAST, most), digit)
                constants = np.log(priors) if self.config.loss == "softmax" else logit(priors)
                level.bias.copy_(torch.from_numpy(constants))
        return self

    def _node_priors(self, counts: np.ndarray, n_documents: int, digit: int) -> np.ndarray:
        """Probabilities of the nodes of a level, such that the product along a path is the prior of the label.

        With bce that a document has any label of the node, as if labels were independent; with softmax their sum.
        """
        nodes, priors = self.code.node_of(digit), label_priors(counts, n_documents)
        if self.config.loss == "softmax":
            return np.bincount(nodes, priors / priors.sum(), minlength=self.code.n_nodes(digit))
        return -np.expm1(np.bincount(nodes, np.log1p(-priors), minlength=self.code.n_nodes(digit)))

    def _by_label(self, values: np.ndarray, digit: int) -> np.ndarray:
        """Values per node in the order of the embeddings: labels at the last level."""
        return values[self.code.code_of] if digit == self.code.depth - 1 else values

    # --- loss ---

    def loss(self, states: Tensor, targets: Targets, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of the documents, the sum over all levels."""
        tops = self._search(states.detach(), self.visited, self.code.depth - 1) if self.visited > 1 else []
        vectors = self.dropout(states)
        true = [self._true_nodes(targets, digit, len(vectors)) for digit in range(self.code.depth)]
        if self.config.loss == "bce":
            loss = self.groups.loss(vectors, true[0])
        else:
            softmax = Softmax(true[0], self.config.block)
            loss = loss_with_gradients(vectors, self.groups.weight, self.groups.bias, softmax)
        for digit in range(1, self.code.depth):
            best = tops[digit - 1][0] if tops else None
            parents = visited_nodes(true[digit - 1], len(vectors), best, self.visited)
            if parents.shape[1] == 0:
                self.levels[digit - 1].without_candidates()
                continue
            nodes = self._rows(self._children(parents, digit), digit)
            masses = self._target_masses(true[digit], parents, digit)
            narrow = self.bottlenecks[digit - 1](vectors)
            loss = loss + self.levels[digit - 1].loss(narrow, masses, nodes)
        return loss

    def _true_nodes(self, targets: Targets, digit: int, n_documents: int) -> Targets:
        """The nodes of the documents' labels at a level as distinct pairs, sorted by node.

        Weights: with softmax the sum of the labels' masses, with bce the largest of the labels' weights.
        """
        nodes = self.code_of[targets.labels] // self.code.places[digit]
        keys = nodes * n_documents + targets.documents
        pairs, inverse = torch.unique(keys, return_inverse=True)
        documents, distinct = pairs % max(n_documents, 1), pairs // max(n_documents, 1)
        if self.config.loss == "bce":
            if targets.weights is None:
                return Targets(documents, distinct)
            weights = torch.zeros(len(pairs), dtype=targets.weights.dtype, device=keys.device)
            return Targets(documents, distinct, weights.scatter_reduce_(0, inverse, targets.weights, "amax"))
        masses = targets.masses(n_documents)
        summed = torch.zeros(len(pairs), dtype=masses.dtype, device=keys.device).index_add_(0, inverse, masses)
        return Targets(documents, distinct, summed)

    def _target_masses(self, true: Targets, parents: Tensor, digit: int) -> Tensor:
        """What the loss needs of the true nodes, in the layout of the candidates [documents, candidates]."""
        radix = self.code.radices[digit]
        slots = (parents[true.documents] == (true.labels // radix)[:, None]).to(torch.int8).argmax(1)
        values = torch.ones(len(true.labels)) if true.weights is None else true.weights
        masses = torch.zeros(len(parents), parents.shape[1] * radix, dtype=values.dtype, device=parents.device)
        masses[true.documents, slots * radix + true.labels % radix] = values.to(parents.device)
        return masses

    # --- nodes ---

    def _children(self, parents: Tensor, digit: int) -> Tensor:
        """Nodes below parents [documents, parents]: [documents, parents x radix], -1 where there is none."""
        radix = self.code.radices[digit]
        children = parents[:, :, None] * radix + torch.arange(radix, device=parents.device)
        missing = (parents < 0)[:, :, None] | (children >= self.code.n_nodes(digit))
        return children.masked_fill_(missing, NO_LABEL).flatten(1)

    def _rows(self, nodes: Tensor, digit: int) -> Tensor:
        """Rows of the embeddings: labels at the last level, nodes above."""
        if digit < self.code.depth - 1 or self.label_at is None:
            return nodes
        return torch.where(nodes < 0, nodes, self.label_at[nodes.clamp_min(0)])

    # --- prediction ---

    @torch.no_grad()
    def best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities of the k best labels that the beam search finds, ties in order of ids."""
        with torch.autocast(states.device.type, enabled=False):
            vectors = states.to(self.groups.weight.dtype)
            scored = self.config.beam * max(self.code.radices[1:]) * self.bottlenecks[0].out_features
            rows = max(1, WEIGHTS_AT_ONCE // scored)
            parts = [self._best_of_few(some, k) for some in vectors.split(rows)]
        return torch.cat([ids for ids, _ in parts]), torch.cat([best for _, best in parts])

    def _best_of_few(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        nodes, scores = self._search(vectors, self.config.beam, self.code.depth, k)[-1]
        ids = self._rows(nodes, self.code.depth - 1).masked_fill_(scores == -torch.inf, NO_LABEL)
        beyond = (0, k - ids.shape[1])
        return functional.pad(ids, beyond, value=NO_LABEL), functional.pad(scores, beyond, value=-torch.inf)

    @torch.no_grad()
    def _search(self, vectors: Tensor, beam: int, depth: int, k: int = 1) -> list[tuple[Tensor, Tensor]]:
        """The best nodes of each of the first levels, and the logarithms of their probabilities.

        All levels but the last keep `beam` nodes, or more if k labels need them.
        """
        found = []
        for digit in range(depth):
            last = digit == self.code.depth - 1
            # all nodes but the last one have all their labels below
            count = min(k if last else max(beam, -(-k // self.code.places[digit]) + 1), self.code.n_nodes(digit))
            if digit == 0:
                nodes, scores = self.groups.best(vectors, count)
                if self.config.loss == "bce":
                    scores = functional.logsigmoid(scores)
                found.append((nodes, scores.masked_fill_(nodes == NO_LABEL, -torch.inf)))
                continue
            found.append(self._step(vectors, *found[-1], digit, count))
        return found

    def _step(self, vectors: Tensor, parents: Tensor, above: Tensor, digit: int, count: int) -> tuple[Tensor, Tensor]:
        """The best children of parents whose scores are `above`."""
        parents, order = parents.sort(1)  # in the order of nodes, so that ties are
        above = above.gather(1, order)
        candidates = self._children(parents, digit)
        rows = self._rows(candidates, digit)
        scores = self.levels[digit - 1].scores(self.bottlenecks[digit - 1](vectors), rows)
        scores = self._log_probabilities(scores, digit) + above.repeat_interleave(self.code.radices[digit], 1)
        scores = scores.nan_to_num(-torch.inf, neginf=-torch.inf).masked_fill_(candidates < 0, -torch.inf)
        if digit == self.code.depth - 1 and self.label_at is not None:
            order = rows.argsort(1)
            candidates, scores = candidates.gather(1, order), scores.gather(1, order)
        best, columns = exact_topk(scores, min(count, scores.shape[1]))
        return candidates.gather(1, columns).masked_fill_(best == -torch.inf, NO_LABEL), best

    def _log_probabilities(self, scores: Tensor, digit: int) -> Tensor:
        """Of nodes: given their parents, or among the children of all visited parents."""
        if self.config.loss == "bce":
            return functional.logsigmoid(scores)
        if not self.is_conditional:
            return functional.log_softmax(scores, 1)
        segments = scores.unflatten(1, (-1, self.code.radices[digit]))
        return functional.log_softmax(segments, 2).flatten(1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The exponential of log-probabilities."""
        return torch.exp(scores)

    def constant_loss(self, labels: Any, rows: np.ndarray) -> float:
        """The loss of `rows` with the constant scores that fit the frequencies of nodes."""
        counts = np.bincount(labels.indices, minlength=self.n_labels)
        narrow = self.config.model_copy(update={"bottleneck": 1, "bias": "prior", "dropout": 0.0})
        constant = Cascade(1, self.code, narrow).initialise(counts, labels.shape[0], 0).eval()
        with torch.no_grad():
            return float(constant.loss(torch.zeros(len(rows), 1), Targets.of_rows(labels, rows)))


def visited_nodes(true: Targets, n_documents: int, best: Tensor | None, count: int) -> Tensor:
    """Nodes of each document in training: its true ones, all of them, then the best others up to `count` in total.

    [documents, nodes], -1 where a document has fewer.
    """
    device = true.documents.device
    own = torch.bincount(true.documents, minlength=n_documents)
    width = int(own.max()) if n_documents else 0
    nodes = torch.full((n_documents, width), NO_LABEL, dtype=torch.long, device=device)
    order = torch.argsort(true.documents, stable=True)
    documents = true.documents[order]
    columns = torch.arange(len(order), device=device) - (own.cumsum(0) - own)[documents]
    nodes[documents, columns] = true.labels[order]
    if best is None:
        return nodes
    known = (best[:, :, None] == nodes[:, None, :]).any(2) | (best < 0)
    ranks = (~known).cumsum(1)
    best = best.masked_fill(known | (ranks > (count - own).clamp_min(0)[:, None]), NO_LABEL)
    merged = torch.cat([nodes, best], 1)
    return merged[:, (merged >= 0).any(0)]
