"""Product head of multi-head encoding (MHP): one output per value of each digit, sum_h C_h outputs instead of C.

Multi-Head Encoding for Extreme Label Classification, Liang et al., TPAMI 2025. The score of a label is the sum of its
digits' scores, so the digits are independent given the document, and the matrix of scores has a rank of at most the
number of outputs: fewest parameters, and the lowest accuracy of the three heads.

`softmax`, the default, is the consistent loss: the negative log-likelihood of the label in the softmax over all labels
whose scores are these sums. Without surplus codes it is the sum of a cross-entropy per digit; with some, its normaliser
leaves them out, which costs no more: all valid codes are those that agree with the last one up to some digit, are below
it there, and free after it. The original's losses are `joint_softmax` (one softmax over the outputs of all digits) and
`bce` (a binary cross-entropy per output against the digits of all labels).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labelwise.labelspace.digits import DigitCode, best_labels_of_digits
from labelwise.nn.config import DigitHeadConfig, LossConfig
from labelwise.nn.heads.base import LinearHead, Targets
from labelwise.nn.heads.losses import best_constants, label_priors, make_loss


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
        if candidates is not None:
            raise self._needs_all_labels()
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
