"""Which labels a prediction may use, and how much each counts: what a user asks for, as vectors over all labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import DataError, did_you_mean
from labelwise.strings import Strings


@dataclass(frozen=True)
class LabelFilter:
    """Labels that may be predicted, and what their scores are multiplied by; both over all labels. None: all, 1."""

    allowed: np.ndarray | None
    weights: np.ndarray | None
    n_labels: int

    @classmethod
    def of(cls, labels: Any, weights: Any, names: Strings) -> LabelFilter | None:
        """Checked vectors from whatever a user gives; None when nothing is given.

        Parameters
        ----------
        labels
            Names or numbers of the labels allowed, a vector of bool over all labels, or a filter made before.
        weights
            From names or numbers of labels to factors (the others have 1), or a vector of factors over all labels. A
            label of factor 0 is not predicted.
        """
        if isinstance(labels, LabelFilter):
            if weights is not None or labels.n_labels != len(names):
                raise DataError("a label filter is of one model and holds the weights too: give it alone, as `labels`")
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
        raise DataError(f"labels must be a list of names or numbers of labels, got {labels!r}")
    mask = np.zeros(len(names), bool)
    mask[_places(labels, names, "labels")] = True
    return mask


def _factors(weights: Any, names: Strings) -> np.ndarray:
    if isinstance(weights, Mapping):
        factors = np.ones(len(names), np.float32)
        places = _places(weights, names, "label_weights")
        factors[places] = _numbers(list(weights.values()))
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


def _places(labels: Iterable[Any], names: Strings, what: str) -> np.ndarray:
    """The places of labels given by name or number."""
    found = []
    for label in labels:
        if isinstance(label, str):
            place = names.positions.get(label)
            if place is None:
                hint = did_you_mean(label, list(names[:1000])) if len(names) else ""
                raise DataError(f"{what}: the model has no label '{label}'; {hint}")
        elif isinstance(label, int | np.integer) and not isinstance(label, bool):
            place = int(label)
            if not 0 <= place < len(names):
                raise DataError(f"{what}: label {place} is not among the {len(names):,} labels, counted from 0")
        else:
            raise DataError(f"{what}: a label is given by its name or number, got {label!r}")
        found.append(place)
    return np.array(found, np.int64)
