"""Predictions of any method: cut at k labels per document, at a threshold or at both, and checked scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ConfigError, DataError, ModelFormatError, NotFittedError, did_you_mean
from labelwise.formatting import cut
from labelwise.model.inputs import TrainingDocuments
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

DEFAULT_K, CALIBRATION_K = 10, 20
MAX_K = 100_000
MOST_LABELS = 1000
"""Limit of the labels per document that calibration and evaluation rank in search of all that reach a threshold."""
MOST_FROM_DATA = 100
"""Limit of the k that follows from the training data."""

Ranked = Callable[[np.ndarray | None, int], TopK]
"""Returns the best k labels of some documents, given by index (None: of all)."""


def k_from_data(least: int, trained_on: TrainingDocuments | None) -> int:
    """Labels to rank per document: as many as nearly all training documents have, from `least` to 100."""
    return max(least, 0 if trained_on is None else min(trained_on.labels_per_document, MOST_FROM_DATA))


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


def all_above(ranked: Ranked, threshold: float, n_documents: int, n_labels: int, first: int) -> TopK:
    """Every label that reaches the threshold, in as many columns as the document with most labels needs.

    `first` labels per document are ranked, and more where more reach it.
    """
    top = best_and_reaching(ranked, first, threshold, n_documents, n_labels)
    if top.k == MAX_K < n_labels and len(_reaching(top, threshold)):
        raise ConfigError(
            f"more than {MAX_K:,} labels of a document reach the threshold {threshold:g}; give a higher one, or k"
        )
    above = top.above(threshold)
    return above.head(max(1, int((above.ids != NO_LABEL).sum(1).max(initial=0))))


def best_and_reaching(
    ranked: Ranked, k: int, threshold: float, n_documents: int, n_labels: int, most: int = MAX_K
) -> TopK:
    """The best k labels per document, and all further ones that reach the threshold, at most `most`.

    Only documents whose last label still reaches the threshold are ranked again, with twice as many labels.
    """
    top = ranked(None, k)
    rounds: list[tuple[np.ndarray | None, TopK]] = [(None, top)]
    pending = _reaching(top, threshold)
    while len(pending) and k < min(n_labels, most):
        k = min(2 * k, n_labels, most)
        top = ranked(pending, k)
        rounds.append((pending, top))
        pending = pending[_reaching(top, threshold)]
    if len(rounds) == 1:
        return top
    ids = np.full((n_documents, k), NO_LABEL, top.ids.dtype)
    scores = np.full((n_documents, k), -np.inf, top.scores.dtype)
    for rows, top in rounds:
        chosen = slice(None) if rows is None else rows
        ids[chosen, : top.k], scores[chosen, : top.k] = top.ids, top.scores
    return TopK(ids, scores, top.label_names)


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


# --- label filter ---
# Restricts predictions to some labels and weights labels: the user's choice as vectors over all labels.


@dataclass(frozen=True)
class LabelFilter:
    """Labels that may be predicted, and factors of their scores, as vectors over all labels. None: all, factor 1."""

    allowed: np.ndarray | None
    weights: np.ndarray | None
    n_labels: int

    @classmethod
    def of(cls, labels: Any, weights: Any, names: Strings) -> LabelFilter | None:
        """Check the user's choice and convert it to vectors; None if nothing is given.

        Parameters
        ----------
        labels
            Names or ids of the allowed labels, a bool vector over all labels, or a `LabelFilter`.
        weights
            A mapping from names or ids of labels to factors (others have 1), or a vector of factors over all labels.
            Labels with factor 0 are not predicted.
        """
        if isinstance(labels, LabelFilter):
            if weights is not None or labels.n_labels != len(names):
                raise DataError("a label filter belongs to one model and includes weights: pass it alone, as `labels`")
            return labels
        allowed = None if labels is None else _mask(labels, names)
        factors = None if weights is None else _factors(weights, names)
        if factors is not None and (factors == 0).any():
            allowed = (factors > 0) if allowed is None else allowed & (factors > 0)
            factors = np.where(factors == 0, 1, factors)
        if allowed is not None and not allowed.any():
            raise DataError("no label may be predicted: the list of labels is empty, or all have a weight of 0")
        return None if allowed is None and factors is None else cls(allowed, factors, len(names))


def _mask(labels: Any, names: Strings) -> np.ndarray:
    if isinstance(labels, np.ndarray) and labels.dtype == bool:
        if labels.shape != (len(names),):
            raise DataError(f"labels: {labels.shape} is not a vector over the {len(names):,} labels of the model")
        return labels
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise DataError(f"labels must be a list of names or ids of labels, got {labels!r}")
    mask = np.zeros(len(names), bool)
    mask[label_ids(labels, names, "labels")] = True
    return mask


def _factors(weights: Any, names: Strings) -> np.ndarray:
    if isinstance(weights, Mapping):
        factors = np.ones(len(names), np.float32)
        ids = label_ids(weights, names, "label_weights")
        factors[ids] = _numbers(list(weights.values()))
    else:
        factors = _numbers(weights)
        if factors.shape != (len(names),):
            raise DataError(f"label_weights: {factors.shape} is not a vector over the {len(names):,} labels")
    if not np.isfinite(factors).all() or (factors < 0).any():
        raise DataError("label_weights must be finite and not below 0: scores are multiplied by them")
    return factors


def _numbers(values: Any) -> np.ndarray:
    try:
        return np.array(values, np.float32)
    except (TypeError, ValueError):
        raise DataError("label_weights must be numbers: scores are multiplied by them") from None


def label_ids(labels: Iterable[Any], names: Strings, what: str, texts: Strings | None = None) -> np.ndarray:
    """The ids of labels given by name or id; `what` was given, and the labels' texts, are for messages."""
    ids = []
    for label in labels:
        if isinstance(label, str):
            label_id = names.positions.get(label)
            if label_id is None:
                raise DataError(
                    f"{what}: the model has no label '{cut(label, 100)}'; {cut(_hint(label, names, texts), 300)}"
                )
        elif isinstance(label, int | np.integer) and not isinstance(label, bool):
            label_id = int(label)
            if not 0 <= label_id < len(names):
                raise DataError(f"{what}: label {label_id} is not among the {len(names):,} labels, counted from 0")
        else:
            raise DataError(f"{what}: a label is given by its name or id, got {label!r}")
        ids.append(label_id)
    return np.array(ids, np.int64)


def _hint(label: str, names: Strings, texts: Strings | None) -> str:
    """The label with that text, or the nearest among the first names: a search of millions takes minutes."""
    if texts is not None and label in texts.positions:
        return f"the label with that text is {names[texts.positions[label]]!r}"
    return did_you_mean(label, names[:100_000]) if len(names) else ""
