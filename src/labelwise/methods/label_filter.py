"""Restricts predictions to some labels and weights labels: the user's choice as vectors over all labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import DataError, did_you_mean
from labelwise.formatting import cut
from labelwise.strings import Strings


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
    mask[_label_ids(labels, names, "labels")] = True
    return mask


def _factors(weights: Any, names: Strings) -> np.ndarray:
    if isinstance(weights, Mapping):
        factors = np.ones(len(names), np.float32)
        ids = _label_ids(weights, names, "label_weights")
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


def _label_ids(labels: Iterable[Any], names: Strings, what: str) -> np.ndarray:
    """The ids of labels given by name or id."""
    ids = []
    for label in labels:
        if isinstance(label, str):
            label_id = names.positions.get(label)
            if label_id is None:
                hint = did_you_mean(label, list(names[:1000])) if len(names) else ""
                raise DataError(f"{what}: the model has no label '{cut(label, 100)}'; {cut(hint, 300)}")
        elif isinstance(label, int | np.integer) and not isinstance(label, bool):
            label_id = int(label)
            if not 0 <= label_id < len(names):
                raise DataError(f"{what}: label {label_id} is not among the {len(names):,} labels, counted from 0")
        else:
            raise DataError(f"{what}: a label is given by its name or id, got {label!r}")
        ids.append(label_id)
    return np.array(ids, np.int64)
