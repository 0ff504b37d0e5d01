"""Evaluator: metrics over documents that come in pieces, so that predictions need not be held all at once.

Work is done in blocks of 4096 documents on the shared threads, and added up in the order of the documents:
figures do not depend on the number of threads, nor on how the documents were cut into pieces, not even in the
last digit. Memory is a few vectors of the length of the label space plus two numbers for each metric and
bootstrap group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_csr
from labelwise.errors import ConfigError, DataError
from labelwise.metrics import propensity as propensity_scored
from labelwise.metrics import ranking, thresholded
from labelwise.metrics.block import NO_WEIGHTS, Block, block_rows
from labelwise.metrics.bootstrap import GROUPS, bootstrap_intervals, check_repeats
from labelwise.metrics.groups import LabelGroups, check_boundaries
from labelwise.metrics.inputs import TrainingCounts
from labelwise.metrics.names import check_depth, parse_metrics
from labelwise.metrics.propensity import Propensity, propensity_constants
from labelwise.metrics.ranking import Terms
from labelwise.metrics.result import Evaluation
from labelwise.metrics.thresholded import CoverageCounter, LabelCounter, check_threshold
from labelwise.metrics.ties import TieCounter
from labelwise.parallel import run_stream
from labelwise.topk import TopK

logger = logging.getLogger(__name__)

TIES_WORTH_A_WARNING = 0.001
_FORMULAS: dict[str, Any] = {**ranking.FORMULAS, **propensity_scored.FORMULAS, **thresholded.FORMULAS}


@dataclass(frozen=True, eq=False)
class _Measured:
    """What one block adds to the sums."""

    block: Block
    start: int
    terms: list[Terms]
    ties: np.ndarray
    group_hits: np.ndarray | None
    full_lists: int


class Evaluator:
    """Metrics of predictions that come in pieces.

    Parameters
    ----------
    metrics
        Names such as ``["P@1", "nDCG@5"]``.
    n_labels
        Columns of the truth; predictions and truth use the same label ids.
    train
        Training data in the same label space: a Dataset, a label matrix, or the training documents of each
        label as a vector. Needed for PSP, PSnDCG and groups.
    train_documents
        Number of training documents, for PSP and PSnDCG where `train` is a vector.
    propensity
        (A, B), the name of a data set, or None for (0.55, 1.5).
    threshold
        The score from which on a label is predicted, for F1 without a cut.
    groups
        Where groups of labels begin, in training documents; empty for none.
    bootstrap, seed
        Repeats for 95 % intervals, 0 for none, and where the random numbers start.
    n_known
        Predictions only have ids below it; the further columns are labels only the truth has.
    """

    def __init__(
        self,
        metrics: str | Sequence[str],
        n_labels: int,
        *,
        train: Any = None,
        train_documents: int | None = None,
        propensity: str | tuple[float, float] | None = None,
        threshold: float | None = None,
        groups: Sequence[int] | None = (10, 100),
        bootstrap: int = 0,
        seed: int = 0,
        n_known: int | None = None,
    ) -> None:
        if n_labels > np.iinfo(np.int32).max:
            raise DataError(f"{n_labels:,} labels are more than can be evaluated (2^31 - 1)")
        self.metrics = parse_metrics(metrics)
        self.n_labels = n_labels
        self.n_known = n_labels if n_known is None else n_known
        self.repeats, self.seed = check_repeats(bootstrap), seed
        self.threshold = check_threshold(threshold, [m.name for m in self.metrics if m.needs_threshold])
        self.counts = None
        if train is not None:
            self.counts = TrainingCounts.of(train, train_documents).padded(self.n_known, n_labels)
        self.propensity = self._propensity(propensity)
        self._weights = NO_WEIGHTS
        if self.propensity is not None and self.counts is not None:
            self._weights = self.propensity.weights(np.append(self.counts.counts, 0))

        self.cuts = sorted({metric.k for metric in self.metrics if metric.k is not None})
        depth = self.cuts[-1] if self.cuts else 0
        self._sums = [metric for metric in self.metrics if metric.is_sum]
        self._above = np.zeros((len(self._sums), GROUPS))
        self._below = np.zeros((len(self._sums), GROUPS))
        self._occurrences = np.zeros(n_labels, np.int64)
        self._ties = TieCounter(self.cuts)
        self._groups = None
        boundaries = check_boundaries(groups)
        if self.counts is not None and boundaries:
            self._groups = LabelGroups(self.counts.counts, boundaries, depth)
        self._macro = {m.k: LabelCounter(n_labels, m.k) for m in self.metrics if m.kind == "macro-F1"}
        covered = [m.k for m in self.metrics if m.kind == "coverage" and m.k is not None]
        self._coverage = CoverageCounter(n_labels, max(covered)) if covered else None
        self.n_documents = self.n_without_labels = self._full_lists = 0
        self._failed = False

    def _propensity(self, given: str | tuple[float, float] | None) -> Propensity | None:
        a, b = propensity_constants(given)
        needing = [metric.name for metric in self.metrics if metric.needs_propensity]
        if not needing:
            return None
        if self.counts is None:
            raise ConfigError(
                f"{needing[0]} weighs labels by their training documents; pass train=, the training data "
                "set, or the training documents of each label with train_documents="
            )
        if self.counts.n_documents is None:
            raise ConfigError(
                f"{needing[0]} needs the number of training documents besides the counts; pass train_documents="
            )
        return Propensity(a, b, self.counts.n_documents)

    def update(self, top: TopK, truth: Any) -> None:
        """Add documents: their predictions and their rows of the truth (a Dataset or a sparse matrix)."""
        labels = truth.labels if isinstance(truth, Dataset) else canonical_csr(truth, "truth")
        if labels.shape[0] != len(top):
            raise DataError(f"predictions of {len(top):,} documents for {labels.shape[0]:,} documents of truth")
        if labels.shape[1] != self.n_labels:
            raise DataError(f"truth has {labels.shape[1]:,} columns; {self.n_labels:,} labels are evaluated")
        if isinstance(truth, Dataset) and top.label_names is not None:
            known = truth.label_names[: len(top.label_names)]
            if known is not top.label_names and known != top.label_names:
                raise DataError(
                    "the truth's label names are not those of the predictions; "
                    "give truth.align(top.label_names), and its number of labels to the Evaluator"
                )
        check_depth(self.metrics, top.k)
        self._refuse_after_failure()
        self._failed = True
        for measured in self._measured(top, labels):
            self._add(measured)
        self._failed = False

    def _measured(self, top: TopK, labels: sparse.csr_array) -> Iterator[_Measured]:
        """The blocks of a piece, in order. A single one is not worth a thread."""
        rows = block_rows(self.n_documents, len(top))
        measure = partial(self._measure, top, labels, self.n_documents)
        return run_stream(measure, rows) if len(rows) > 1 else map(measure, rows)

    def _measure(self, top: TopK, labels: sparse.csr_array, before: int, rows: tuple[int, int]) -> _Measured:
        """The work on one block that needs nothing of the others."""
        by_threshold = any(metric.needs_threshold for metric in self.metrics)
        block = Block(
            top,
            labels,
            rows,
            n_known=self.n_known,
            first=before + rows[0],
            depth=top.k if by_threshold else self.cuts[-1],
            weights=self._weights,
            threshold=self.threshold,
        )
        return _Measured(
            block=block,
            start=(before + rows[0]) % GROUPS,
            terms=[_FORMULAS[metric.kind](block, metric.k) for metric in self._sums],
            ties=self._ties.count(block),
            group_hits=None if self._groups is None else self._groups.count(block.ids, block.hits),
            full_lists=int(np.count_nonzero(block.reaching == top.k)) if by_threshold else 0,
        )

    def _add(self, measured: _Measured) -> None:
        """Add one block to the sums, by one thread and in the order of the documents."""
        block = measured.block
        here = slice(measured.start, measured.start + len(block))
        for row, (above, below) in enumerate(measured.terms):
            self._above[row, here] += above
            self._below[row, here] += below
        np.add.at(self._occurrences, block.indices, 1)
        self._ties.totals += measured.ties
        if self._groups is not None and measured.group_hits is not None:
            self._groups.hits += measured.group_hits
        for counter in self._macro.values():
            counter.add(block)
        if self._coverage is not None:
            self._coverage.add(block)
        self.n_documents += len(block)
        self.n_without_labels += int(np.count_nonzero(block.n_true == 0))
        self._full_lists += measured.full_lists

    def result(self) -> Evaluation:
        """The figures of all documents so far."""
        self._refuse_after_failure()
        if self.n_documents == 0:
            raise DataError("there are no documents to evaluate")
        names = [metric.name for metric in self._sums]
        summed = dict(zip(names, ranking.ratio(self._above.sum(1), self._below.sum(1)).tolist(), strict=True))
        intervals = {}
        if self.repeats and names:
            found = bootstrap_intervals(self._above, self._below, self.n_documents, self.repeats, self.seed)
            intervals = dict(zip(names, found, strict=True))
        groups = []
        if self._groups is not None:
            groups = self._groups.rows(self._occurrences, self.cuts, self.n_documents)
        ties, cut_off = self._ties.ranges(self.n_documents), self._ties.cut_off()
        self._warn(ties, cut_off)
        return Evaluation(
            values={m.name: summed[m.name] if m.is_sum else self._by_label(m.kind, m.k) for m in self.metrics},
            intervals=intervals,
            groups=groups,
            ties=ties,
            ties_cut_off=cut_off,
            propensity=self.propensity,
            n_documents=self.n_documents,
            n_without_labels=self.n_without_labels,
            n_unseen_labels=self._unseen_labels(),
        )

    def _by_label(self, kind: str, k: int | None) -> float:
        """The metrics that are no sums over documents."""
        if kind == "coverage" and self._coverage is not None and k is not None:
            return self._coverage.coverage(k, self._occurrences)
        return self._macro[k].macro_f1(self._occurrences)

    def _unseen_labels(self) -> int:
        if self.counts is not None:
            return int(np.count_nonzero(self._occurrences[self.counts.counts == 0]))
        return int(np.count_nonzero(self._occurrences[self.n_known :]))

    def _warn(self, ties: dict[str, tuple[float, float]], cut_off: dict[str, int]) -> None:
        for name, (low, high) in ties.items():
            if high - low > TIES_WORTH_A_WARNING:
                more = " or more, as ties run past the lists' ends" if cut_off[name] else ""
                logger.warning(
                    "predictions with equal scores: %s lies between %.2f and %.2f depending on their order%s",
                    name, 100 * low, 100 * high, more,
                )  # fmt: skip
        if self._full_lists:
            logger.warning(
                "in %d documents every listed prediction reaches the threshold, and so may labels beyond the "
                "list; predict with a larger k for F1 at a threshold",
                self._full_lists,
            )

    def _refuse_after_failure(self) -> None:
        if self._failed:
            raise DataError("an earlier piece of predictions was faulty and is counted in part; start anew")
