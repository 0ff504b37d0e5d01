"""Evaluator: metrics of documents that arrive in chunks, so that predictions need not all be in memory.

Blocks of 4096 documents are evaluated on the shared threads and summed in the order of the documents: results are
bitwise independent of the number of threads and of how the documents were split into chunks. Memory is a few vectors
with one element per label, plus two numbers per metric and resampling group.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_csr
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.block import (
    NO_WEIGHTS,
    THRESHOLDED,
    CoverageCounter,
    DocumentBlock,
    LabelCounter,
    TieCounter,
    block_rows,
    check_threshold,
)
from labelwise.metrics.bootstrap import RESAMPLING_GROUPS, ResamplingSums, check_repeats
from labelwise.metrics.evaluate import TrainingCounts
from labelwise.metrics.formulas import (
    PROPENSITY_SCORED,
    RANKING,
    LabelGroups,
    Propensity,
    Terms,
    check_boundaries,
    propensity_constants,
)
from labelwise.metrics.names import check_depth, parse_metrics
from labelwise.metrics.result import Evaluation
from labelwise.runtime.threads import run_stream
from labelwise.topk import TopK

logger = logging.getLogger(__name__)

_FORMULAS: dict[str, Any] = {**RANKING, **PROPENSITY_SCORED, **THRESHOLDED}


@dataclass(frozen=True, eq=False)
class _BlockResult:
    """The contribution of one block to the sums."""

    block: DocumentBlock
    start: int
    terms: list[Terms]
    ties: np.ndarray
    group_hits: np.ndarray | None
    full_lists: int


class Evaluator:
    """Metrics of predictions that arrive in chunks.

    Parameters
    ----------
    metrics
        Names such as ``["P@1", "nDCG@5"]``.
    n_labels
        Columns of the truth; predictions and truth use the same label ids.
    train
        Training data in the same label space: a Dataset, a label matrix, or a vector with the number of
        training documents per label. Needed for PSP, PSnDCG and groups.
    train_documents
        Number of training documents, for PSP and PSnDCG if `train` is a vector.
    propensity
        (A, B), the name of a data set, or None for (0.55, 1.5).
    threshold
        Lowest score at which a label counts as predicted, for F1 without k.
    groups
        Lower bounds of the label groups, in training documents; empty for no groups.
    bootstrap, seed
        Repeats for 95 % intervals, 0 for none, and where the random numbers start.
    n_known
        Upper bound (exclusive) of predicted ids; the columns from there on are labels that only the truth has.
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
            raise DataError(f"{n_labels:,} labels are too many; at most 2^31 - 1 can be evaluated")
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
        self._numerators = np.zeros((len(self._sums), RESAMPLING_GROUPS))
        self._denominators = np.zeros((len(self._sums), RESAMPLING_GROUPS))
        self._occurrences = np.zeros(n_labels, np.int64)
        self._ties = TieCounter(self.cuts)
        self._groups = None
        boundaries = check_boundaries(groups)
        if self.counts is not None and boundaries:
            self._groups = LabelGroups(self.counts.counts, boundaries, depth)
        self._macro = {m.k: LabelCounter(n_labels, m.k) for m in self.metrics if m.kind == "macro-F1"}
        covered = [m.k for m in self.metrics if m.kind == "coverage" and m.k is not None]
        self._coverage = CoverageCounter(n_labels, max(covered)) if covered else None
        self._truth = hashlib.blake2b(digest_size=8)
        self.n_documents = self.n_without_labels = self._full_lists = 0
        self._failed = False

    def _propensity(self, given: str | tuple[float, float] | None) -> Propensity | None:
        a, b = propensity_constants(given)
        needing = [metric.name for metric in self.metrics if metric.needs_propensity]
        if not needing:
            return None
        if self.counts is None:
            raise ConfigError(
                f"{needing[0]} weights labels by their training documents; pass train=, the training data "
                "set, or the number of training documents per label with train_documents="
            )
        if self.counts.n_documents is None:
            raise ConfigError(
                f"{needing[0]} needs the number of training documents as well as the counts; pass train_documents="
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
                    "the label names of the truth and of the predictions differ; "
                    "pass truth.align(top.label_names), and its number of labels to the Evaluator"
                )
        check_depth(self.metrics, top.k)
        self._refuse_after_failure()
        self._failed = True
        for result in self._evaluate_blocks(top, labels):
            self._add(result)
        self._failed = False

    def _evaluate_blocks(self, top: TopK, labels: sparse.csr_array) -> Iterator[_BlockResult]:
        """Evaluate the blocks of a chunk, in order; a single block without a thread."""
        rows = block_rows(self.n_documents, len(top))
        evaluate = partial(self._evaluate_block, top, labels, self.n_documents)
        return run_stream(evaluate, rows) if len(rows) > 1 else map(evaluate, rows)

    def _evaluate_block(self, top: TopK, labels: sparse.csr_array, before: int, rows: tuple[int, int]) -> _BlockResult:
        """Compute what depends on one block only."""
        by_threshold = any(metric.needs_threshold for metric in self.metrics)
        block = DocumentBlock(
            top,
            labels,
            rows,
            n_known=self.n_known,
            first=before + rows[0],
            depth=top.k if by_threshold else self.cuts[-1],
            weights=self._weights,
            threshold=self.threshold,
        )
        return _BlockResult(
            block=block,
            start=(before + rows[0]) % RESAMPLING_GROUPS,
            terms=[_FORMULAS[metric.kind](block, metric.k) for metric in self._sums],
            ties=self._ties.count(block),
            group_hits=None if self._groups is None else self._groups.count(block.ids, block.hits),
            full_lists=int(np.count_nonzero(block.n_above_threshold == top.k)) if by_threshold else 0,
        )

    def _add(self, result: _BlockResult) -> None:
        """Add one block to the sums; called from one thread, in the order of the documents."""
        block = result.block
        columns = slice(result.start, result.start + len(block))
        for row, (numerator, denominator) in enumerate(result.terms):
            self._numerators[row, columns] += numerator
            self._denominators[row, columns] += denominator
        np.add.at(self._occurrences, block.indices, 1)
        self._ties.totals += result.ties
        if self._groups is not None and result.group_hits is not None:
            self._groups.hits += result.group_hits
        for counter in self._macro.values():
            counter.add(block)
        if self._coverage is not None:
            self._coverage.add(block)
        self._truth.update(block.n_true.astype("<i8").tobytes())
        self.n_documents += len(block)
        self.n_without_labels += int(np.count_nonzero(block.n_true == 0))
        self._full_lists += result.full_lists

    def result(self, warn: bool = True) -> Evaluation:
        """The metrics of all documents so far; its remarks are logged as warnings."""
        self._refuse_after_failure()
        if self.n_documents == 0:
            raise DataError("there are no documents to evaluate")
        names = [metric.name for metric in self._sums]
        sums = self._resampling_sums()
        summed = dict(zip(names, sums.values().tolist(), strict=True))
        intervals = sums.intervals(self.repeats, self.seed) if self.repeats and names else {}
        groups = []
        if self._groups is not None:
            groups = self._groups.rows(self._occurrences, self.cuts, self.n_documents)
        ties, cut_off = self._ties.ranges(self.n_documents), self._ties.cut_off()
        evaluation = Evaluation(
            values={m.name: summed[m.name] if m.is_sum else self._by_label(m.kind, m.k) for m in self.metrics},
            intervals=intervals,
            groups=groups,
            ties=ties,
            ties_cut_off=cut_off,
            propensity=self.propensity,
            n_documents=self.n_documents,
            n_without_labels=self.n_without_labels,
            n_unseen_labels=self._unseen_labels(),
            n_cut=self._full_lists,
            sums=sums,
        )
        if warn:
            for remark in evaluation.remarks():
                logger.warning("%s", remark)
        return evaluation

    def _resampling_sums(self) -> ResamplingSums:
        groups = min(self.n_documents, RESAMPLING_GROUPS)
        return ResamplingSums(
            metrics=tuple(metric.name for metric in self._sums),
            numerators=self._numerators[:, :groups].copy(),
            denominators=self._denominators[:, :groups].copy(),
            n_documents=self.n_documents,
            truth=int.from_bytes(self._truth.digest(), "little"),
        )

    def _by_label(self, kind: str, k: int | None) -> float:
        """Value of a metric that is not a ratio of sums over documents."""
        if kind == "coverage" and self._coverage is not None and k is not None:
            return self._coverage.coverage(k, self._occurrences)
        return self._macro[k].macro_f1(self._occurrences)

    def _unseen_labels(self) -> int:
        if self.counts is not None:
            return int(np.count_nonzero(self._occurrences[self.counts.counts == 0]))
        return int(np.count_nonzero(self._occurrences[self.n_known :]))

    def _refuse_after_failure(self) -> None:
        if self._failed:
            raise DataError(
                "an earlier chunk of predictions was invalid and is partly counted; start again with a new Evaluator"
            )
