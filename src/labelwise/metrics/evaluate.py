"""evaluate: compute all metrics of a set of predictions in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError
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
    """Compute metrics of predictions.

    Parameters
    ----------
    top
        Predictions, one row per document.
    truth
        A Dataset, a sparse (or small dense) documents x labels matrix, or a list of labels per document: names
        as str, ids as int. Labels are matched by name if both sides have label names.
    metrics
        Names such as ``["P@1", "nDCG@5", "PSP@5", "macro-F1@5"]``; `default_metrics` when None.
    train
        The training data: a Dataset, a label matrix, or a vector with the number of training documents per label.
        Needed for PSP, PSnDCG and groups.
    train_documents
        Number of training documents, for PSP and PSnDCG if `train` is a vector.
    propensity
        The constants (A, B), the name of a data set such as ``"Amazon-670K"``, or None for (0.55, 1.5).
    threshold
        Lowest score at which a label counts as predicted, for F1 without k.
    groups
        Lower bounds of the label groups, in training documents; empty or None for no groups.
    bootstrap, seed
        Number of bootstrap repeats for 95 % intervals (0: no intervals), and the random seed.

    Notes
    -----
    A truth without any label is an error.
    The rules for ties, documents without labels, unseen labels and short lists are in docs/metrics.md.
    """
    counts = None if train is None else TrainingCounts.of(train, train_documents)
    common = common_labels(top, truth, 0 if counts is None else len(counts.counts))
    if counts is not None:
        counts = counts.within(common)
    if metrics is None:
        has_propensity = counts is not None and counts.n_documents is not None
        metrics = default_metrics(top.k, has_propensity, threshold is not None)
        if not metrics:
            raise ConfigError("the predictions are empty lists (k = 0); predict with k=1 or more")

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
    check_labelled(common.labels, "the truth")
    return evaluator.result()


def check_labelled(labels: Any, name: str, without: str = "there is nothing to compare predictions with") -> None:
    """Refuse documents of which none has a label: nothing could be learned from them, and all metrics would be 0."""
    if labels.shape[0] and labels.nnz == 0:
        raise DataError(
            f"{name}: none of the {labels.shape[0]:,} documents has a label, so {without}; "
            "is this a file without labels, or are they in another column?"
        )


def check_known(data: Dataset, n_known: int) -> None:
    """Refuse documents of which no label is among the first `n_known`, those of the model: all metrics would be 0."""
    labels = data.labels
    if labels.nnz and labels.indices.min() >= n_known:
        names = data.label_names
        raise DataError(
            f"{data.name}: none of its {len(set(labels.indices.tolist())):,} labels is known to the model, so every "
            f"prediction would count as wrong; a label is called '{names[int(labels.indices[0])]}', one of the model's "
            f"'{names[0]}': are these documents of another vocabulary, or ids where the model has names?"
        )
