"""What every head of an encoder is: the contract between encoders, training and the heads.

A head owns the weights between a document's vector (or the states of its words) and the scores of its labels, or of the
nodes of one level of a label tree. Whoever trains, saves or predicts with one knows nothing else about it, so that
texts, images and faces share all heads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.nn.inputs import as_array, take_weights

INITIAL_STD = 0.02
"""Standard deviation of initial weights."""


@dataclass(frozen=True)
class Targets:
    """The labels of a batch of documents as pairs, sorted by label."""

    documents: Tensor
    labels: Tensor
    weights: Tensor | None = None
    """Weight of each pair in the loss; None: 1."""

    @classmethod
    def of_rows(cls, labels: Any, rows: np.ndarray, weighted: bool = False) -> Targets:
        """The labels of some rows of a CSR matrix; `weighted` by its values."""
        picked = labels[rows]
        documents = np.repeat(np.arange(len(rows)), np.diff(picked.indptr))
        order = np.argsort(picked.indices, kind="stable")
        weights = torch.from_numpy(picked.data[order]) if weighted else None
        return cls(
            torch.from_numpy(documents[order]), torch.from_numpy(picked.indices[order].astype(np.int64)), weights
        )

    def to(self, device: torch.device) -> Targets:
        """Copy to a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return Targets(self.documents.to(device), self.labels.to(device), weights)

    def among(self, labels: slice) -> Targets:
        """The pairs of a range of labels, counted from its first."""
        edges = torch.searchsorted(self.labels, torch.tensor([labels.start, labels.stop], device=self.labels.device))
        part = slice(*edges.tolist())
        return Targets(
            self.documents[part], self.labels[part] - labels.start, None if self.weights is None else self.weights[part]
        )

    def masses(self, n_documents: int) -> Tensor:
        """The target distribution of cross-entropy: a mass of 1 per document, divided equally among its labels.

        Weights of pairs are factors of it, so that a weight of 2 counts a label twice in the loss.
        """
        counts = torch.bincount(self.documents, minlength=n_documents)
        equal = 1.0 / counts[self.documents].to(torch.get_default_dtype())
        return equal if self.weights is None else equal * self.weights.to(equal.dtype)


class States(NamedTuple):
    """What an encoder returns that has a state per word, in order of descending length."""

    values: Tensor
    """[documents, longest, width]."""
    lengths: Tensor
    """Words of each document, on the CPU."""


class Head(nn.Module):
    """A head: losses, scores and best labels from documents' vectors or `States`.

    Either all labels are scored, or only candidates [documents, candidates], -1 where a document has fewer.
    """

    def __init__(self, n_labels: int) -> None:
        super().__init__()
        self.n_labels = n_labels
        """Number of labels, or of nodes."""

    def row_tables(self, candidates: bool = False) -> tuple[str, ...]:
        """Names of the parameters whose gradients are row-sparse, which the training loop needs."""
        return ()

    @abstractmethod
    def initialise(self, counts: np.ndarray, n_documents: int, seed: int) -> Self:
        """Draw the initial weights; `counts` are the documents of each label among `n_documents`."""

    @abstractmethod
    def loss(self, states: Any, targets: Any, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of the documents.

        `targets` are `Targets`, or with candidates [documents, candidates]: 0 for labels that a document does not have,
        and the weight of the loss, usually 1, for those it has. A true label that is no candidate is ignored. Heads of
        digits and of faces have no candidates.
        """

    def scores(self, states: Any, candidates: Tensor) -> Tensor:
        """Scores of candidates [documents, candidates], -inf where there is none."""
        raise TypeError(f"{type(self).__name__} scores all labels, not candidates")

    @abstractmethod
    def best(self, states: Any, k: int) -> tuple[Tensor, Tensor]:
        """Ids and scores of the k best labels of each document, best first, ties in order of ids.

        Ranks without a label have the id -1 and the score -inf. In the precision of the weights.
        """

    @abstractmethod
    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores as numbers in [0, 1], in the same order; that of an empty rank may be anything."""

    def constant_loss(self, labels: Any, rows: np.ndarray) -> float:
        """The lowest mean loss of `rows` with scores that are equal for all documents of `labels` (CSR); NaN: unknown.

        A training whose loss stays above it has learned nothing from the documents.
        """
        return float("nan")

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    # --- files ---

    def state(self) -> dict[str, np.ndarray]:
        """The arrays to write to a model file."""
        return {name: as_array(parameter) for name, parameter in self.named_parameters()}

    def restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> Self:
        """Restore what `state` returned, without copying. The head may have been built on the meta device."""
        take_weights(self, tensors, path, f"the head does not fit {self.n_labels:,} labels")
        return self.requires_grad_(False)


class LinearHead(Head):
    """A head with one linear layer: an output per label, or per value of a digit.

    Parameters
    ----------
    width
        Dimension of a vector.
    n_labels
        Number of labels.
    n_outputs
        Number of outputs.
    config
        Settings, among them `dropout` and `bias`.
    """

    config: Any

    def __init__(self, width: int, n_labels: int, n_outputs: int, config: Any) -> None:
        super().__init__(n_labels)
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.weight = nn.Parameter(torch.empty(n_outputs, width))
        self.bias = nn.Parameter(torch.zeros(n_outputs))

    @torch.no_grad()
    def initialise(self, counts: np.ndarray, n_documents: int, seed: int) -> Self:
        """Draw the initial weights, and set biases from the frequencies of labels."""
        self.weight.normal_(0, INITIAL_STD, generator=torch.Generator().manual_seed(seed))
        if self.config.bias == "prior":
            self.bias.copy_(torch.from_numpy(self._constants(counts, n_documents)))
        return self

    @abstractmethod
    def _constants(self, counts: np.ndarray, n_documents: int) -> np.ndarray:
        """The constant score of each output with (about) the lowest loss."""


def rows_of(candidates: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct labels among candidates, ascending, and for each candidate its index in them.

    Missing candidates are replaced by one of the document's own, so that no other row is read or gets a gradient.
    """
    filled = torch.where(candidates < 0, candidates.amax(1, keepdim=True).clamp_min(0), candidates)
    return torch.unique(filled, return_inverse=True)


def label_priors(counts: np.ndarray, n_documents: int) -> np.ndarray:
    """The fraction of documents with each label, smoothed by half a document so that it is never 0 or 1."""
    return (np.asarray(counts, np.float64) + 0.5) / (n_documents + 1.0)


def exact_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` with deterministic ties: the lower index comes first."""
    best, indices = scores.topk(k, dim=1)
    indices, by_index = indices.sort(dim=1)
    best, by_score = best.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, by_score)
    tied = torch.nonzero((scores >= best[:, -1:]).sum(1) > k).squeeze(1)
    if len(tied):
        best[tied], indices[tied] = (
            part[:, :k] for part in torch.sort(scores[tied], dim=1, descending=True, stable=True)
        )
    return best, indices
