"""evaluate: all metrics of a set of predictions in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labelwise.errors import ConfigError
from labelwise.metrics.inputs import TrainingCounts, common_labels
from labelwise.metrics.names import default_metrics
from labelwise.metrics.result import Evaluation
from labelwise.topk import TopK


def evaluate(
    top: TopK,
    truth: Any,
    metrics: str | Sequence[str] | None = None,
    *,
    train: Any = None,
    train_documents: int | None = None,
    propensity: str | tuple[float, float] | None = None,
    threshold: float | None = None,
    groups: Sequence[int] | None = (10, 100),
    bootstrap: int = 0,
    seed: int = 0,
) -> Evaluation:
    """How good predictions are.

    Parameters
    ----------
    top
        Predictions, a row for each document.
    truth
        A Dataset, a sparse (or small dense) documents x labels matrix, or a list of labels a document: names
        as str, ids as int. Where both sides have label names, labels are matched by name.
    metrics
        Names such as ``["P@1", "nDCG@5", "PSP@5", "macro-F1@5"]``; `default_metrics` when None.
    train
        The training data: a Dataset, a label matrix, or a vector with the training documents of each label.
        Needed for PSP, PSnDCG and groups.
    train_documents
        Number of training documents, for PSP and PSnDCG where `train` is a vector.
    propensity
        The constants (A, B), the name of a data set such as ``"Amazon-670K"``, or None for (0.55, 1.5).
    threshold
        The score from which on a label is predicted, for F1 without a number of places.
    groups
        Where groups of labels begin, in training documents; empty or None for no groups.
    bootstrap, seed
        Repeats for 95 % intervals (0: none), and where the random numbers start.

    Notes
    -----
    The rules for ties, documents without labels, unseen labels and short lists are in docs/metrics.md.
    """
    counts = None if train is None else TrainingCounts.of(train, train_documents)
    common = common_labels(top, truth, 0 if counts is None else len(counts.counts))
    if counts is not None:
        counts = counts.within(common)
    if metrics is None:
        weighable = counts is not None and counts.n_documents is not None
        metrics = default_metrics(top.k, weighable, threshold is not None)
        if not metrics:
            raise ConfigError("the predictions have no places (k = 0); predict with k=1 or more")

    from labelwise.metrics.streaming import Evaluator

    evaluator = Evaluator(
        metrics,
        common.n_labels,
        train=counts,
        propensity=propensity,
        threshold=threshold,
        groups=groups,
        bootstrap=bootstrap,
        seed=seed,
        n_known=common.n_known,
    )
    evaluator.update(top, common.labels)
    return evaluator.result()
