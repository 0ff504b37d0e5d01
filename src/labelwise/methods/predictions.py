"""Predictions of any method: cut at k labels per document, at a threshold or at both, and checked scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ConfigError, ModelFormatError, NotFittedError
from labelwise.topk import NO_LABEL, TopK

DEFAULT_K = 10
MAX_K = 100_000
FIRST_K = 16
"""Labels per document that are ranked first when only a threshold is given; doubled for documents that need more."""


def checked_k(k: Any) -> int:
    """The number of labels per document, or an error."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= MAX_K:
        raise ConfigError(f"k must be a whole number from 1 to {MAX_K:,}, got {k!r}")
    return int(k)


def checked_limits(k: Any, threshold: Any, calibrated: float | None) -> tuple[int | None, float | None]:
    """What limits the labels per document: their number, None if a threshold alone does, and the threshold."""
    if k is not None:
        checked_k(k)
    if threshold is None:
        return (DEFAULT_K if k is None else int(k)), None
    if isinstance(threshold, str) and threshold == "auto":
        if calibrated is None:
            raise NotFittedError(
                "threshold='auto': the model is not calibrated; call calibrate first, or pass a number"
            )
        return k, calibrated
    number = isinstance(threshold, int | float | np.integer | np.floating) and not isinstance(threshold, bool)
    if not number or math.isnan(threshold):
        raise ConfigError(f"threshold must be a number or 'auto', got {threshold!r}")
    return k, float(threshold)


def limited(
    ranked: Callable[[np.ndarray | None, int], TopK],
    k: int | None,
    threshold: float | None,
    n_documents: int,
    n_labels: int,
) -> TopK:
    """The best k labels, or those that reach the threshold, or the labels that satisfy both.

    `ranked(rows, k)` returns the best k labels of some documents (None: of all).
    """
    if k is None and threshold is not None:
        return _all_above(ranked, threshold, n_documents, n_labels)
    top = ranked(None, k or DEFAULT_K)
    return top if threshold is None else top.above(threshold)


def _all_above(
    ranked: Callable[[np.ndarray | None, int], TopK], threshold: float, n_documents: int, n_labels: int
) -> TopK:
    """Every label that reaches the threshold, in as many columns as the document with most labels needs.

    Only documents whose last label still reaches the threshold are ranked again, with twice as many labels.
    """
    k = min(FIRST_K, n_labels)
    first = ranked(None, k)
    rounds, pending = [(np.arange(n_documents), first)], _reaching(first, threshold)
    while len(pending) and k < n_labels:
        if k == MAX_K:
            raise ConfigError(
                f"more than {MAX_K:,} labels of a document reach the threshold {threshold:g}; give a higher one, or k"
            )
        k = min(2 * k, n_labels, MAX_K)
        top = ranked(pending, k)
        rounds.append((pending, top))
        pending = pending[_reaching(top, threshold)]
    above = [(rows, top.above(threshold)) for rows, top in rounds]
    width = max(1, *(int((top.ids != NO_LABEL).sum(1).max(initial=0)) for _, top in above))
    ids = np.full((n_documents, width), NO_LABEL, first.ids.dtype)
    scores = np.full((n_documents, width), -np.inf, first.scores.dtype)
    for rows, top in above:
        ids[rows, : top.k], scores[rows, : top.k] = top.ids[:, :width], top.scores[:, :width]
    return TopK(ids, scores, first.label_names)


def _reaching(top: TopK, threshold: float) -> np.ndarray:
    """Documents whose last rank is filled and reaches the threshold."""
    return np.flatnonzero((top.ids[:, -1] != NO_LABEL) & (top.scores[:, -1] >= threshold))


def check_scores(top: TopK, folder: Path, filtered: bool) -> None:
    """Refuse scores that are not finite, and unfiltered predictions without any label, which NaN weights cause."""
    if np.isfinite(top.scores).all():
        return
    empty = top.ids == NO_LABEL
    wrong = ~(np.isfinite(top.scores) | empty)
    if not filtered:
        wrong[:, :1] |= empty[:, :1]
    if wrong.any():
        raise ModelFormatError(
            f"{folder}: the scores of document {int(wrong.any(1).argmax())} are not finite numbers; the weights are "
            "damaged, the training has diverged, or features of the document are too large"
        )
