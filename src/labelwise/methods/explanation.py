"""Explanations in words: from paths of numbers to names of labels, nodes and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.codes.label_path import LabelPath, PathStep
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.methods.inputs import as_inputs
from labelwise.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from labelwise.methods.base import Method

STAND_INS = 3


@dataclass(frozen=True)
class Term:
    """A word (a feature) of the document and what it adds to the margin: its value times its weight."""

    name: str
    value: float
    weight: float
    contribution: float


@dataclass(frozen=True)
class TreePath:
    """The way to a label in one tree; ``bias + sum of terms' contributions + other == margin``."""

    steps: tuple[PathStep, ...]
    margin: float
    bias: float
    terms: tuple[Term, ...]
    """What speaks most for or against the label in its own classifier, strongest first."""
    other: float
    """What all further terms add."""
    score: float
    """What this tree gives the label if it looks at it."""
    reached: bool
    """Whether the beam search came by and looked at it."""


@dataclass(frozen=True)
class Explanation:
    """Why a document gets a label, or not. Margin, bias and terms are means over the trees and add up as in one."""

    label: str
    text: str | None
    """What the label means, where the model knows."""
    score: float
    """As `predict` gives it: a probability when the model is calibrated."""
    predicted: bool
    """Whether any tree looked at the label."""
    margin: float
    bias: float
    terms: tuple[Term, ...]
    other: float
    paths: tuple[TreePath, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


def explanations(
    model: Method, document: Any, labels: Sequence[str] | None, k: int, terms: int | None
) -> list[Explanation]:
    """What `Method.explain` returns."""
    if terms is not None and terms < 0:
        raise ConfigError(f"terms must be 0 or more, got {terms}")
    model._check_fitted()
    data = as_inputs(document, model.input_, model.n_features_in_)
    if len(data) != 1:
        raise DataError(f"explain takes one document, got {len(data):,}")
    top = model.predict(document, k)
    ids = top.ids[0][top.ids[0] != NO_LABEL] if labels is None else _ids(model, labels)
    scores = dict(zip(top.ids[0].tolist(), top.scores[0].tolist(), strict=True))
    trees = model._explain(data, ids)
    found = []
    for place, label in enumerate(ids.tolist()):
        paths = [paths[place] for paths in trees]
        score = scores.get(label)
        found.append(_explanation(model, paths, _score(model, paths) if score is None else score, terms))
    return found


def _ids(model: Method, labels: Sequence[str]) -> np.ndarray:
    places = model.label_names_.positions
    given = [labels] if isinstance(labels, str) else list(labels)
    for label in given:
        if label not in places:
            raise DataError(f"the model has no label {label!r}; {_nearest(model, str(label))}")
    return np.array([places[label] for label in given], np.int64)


def _nearest(model: Method, label: str) -> str:
    """A hint: the label with that meaning, or the nearest name (looking through millions would take minutes)."""
    if model.label_texts_ is not None and label in (meanings := model.label_texts_.positions):
        return f"the label with that meaning is {model.label_names_[meanings[label]]!r}"
    return did_you_mean(label, model.label_names_[:100_000])


def _score(model: Method, paths: Sequence[LabelPath]) -> float:
    """The score of a label that is not among the best: the mean of what the trees give."""
    raw = sum(path.given for path in paths) / len(paths)
    if model.calibration_ is None:
        return raw
    one = TopK(np.zeros((1, 1), np.int32), np.full((1, 1), raw, np.float32))
    return float(model.calibration_.apply(one).scores[0, 0])


def _explanation(model: Method, paths: Sequence[LabelPath], score: float, terms: int | None) -> Explanation:
    label = paths[0].label
    shown = tuple(_tree_path(model, path, terms) for path in paths)
    features = np.concatenate([path.features for path in paths])
    values = np.concatenate([path.values for path in paths])
    weights = np.concatenate([path.weights for path in paths]) / len(paths)
    distinct, first, places = np.unique(features, return_index=True, return_inverse=True)
    summed, shown_values = np.bincount(places, weights, minlength=len(distinct)), values[first]
    if (values != shown_values[places]).any():  # trees that see a word differently: means that give the same products
        shown_values = np.bincount(places, values, len(distinct)) / np.bincount(places, minlength=len(distinct))
        summed = np.bincount(places, weights * values, len(distinct)) / shown_values
    best, other = _terms(model, distinct, shown_values, summed, terms)
    bias = sum(path.bias for path in shown) / len(shown)
    margin = bias + sum(term.contribution for term in best) + other
    text = None if model.label_texts_ is None else model.label_texts_[label]
    reached = any(path.reached for path in paths)
    return Explanation(model.label_names_[label], text, score, reached, margin, bias, best, other, shown)


def _tree_path(model: Method, path: LabelPath, terms: int | None) -> TreePath:
    best, other = _terms(model, path.features, path.values, path.weights, terms)
    last = path.steps[-1]
    steps = tuple(
        replace(step, examples=_examples(model, labels)) for step, labels in zip(path.steps, path.below, strict=True)
    )
    return TreePath(steps, last.margin, last.bias, best, other, last.total, path.reached)


def _terms(
    model: Method, features: np.ndarray, values: np.ndarray, weights: np.ndarray, count: int | None
) -> tuple[tuple[Term, ...], float]:
    """The strongest terms by name, and the sum of the others."""
    contributions = values * weights
    order = np.argsort(-np.abs(contributions), kind="stable")
    chosen = order[:count]
    names = model._feature_names(features[chosen]) or [f"feature {number}" for number in features[chosen].tolist()]
    columns = zip(names, values[chosen].tolist(), weights[chosen].tolist(), contributions[chosen].tolist(), strict=True)
    return tuple(Term(*column) for column in columns), float(contributions[order[len(chosen) :]].sum())


def _examples(model: Method, labels: np.ndarray) -> tuple[str, ...]:
    """The most frequent of some labels, by meaning where it is known."""
    frequent = labels[np.argsort(-model.label_counts_[labels], kind="stable")[:STAND_INS]]
    meanings = model.label_names_ if model.label_texts_ is None else model.label_texts_
    return tuple(meanings[int(label)] for label in frequent)
