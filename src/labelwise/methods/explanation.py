"""Explanations with names: from label paths to names of labels, nodes and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.codes.label_path import LabelPath, PathStep
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.formatting import cut
from labelwise.methods.explanation_text import explanation_lines, short_explanation
from labelwise.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from labelwise.methods.base import Method
    from labelwise.methods.inputs import Documents

N_EXAMPLES = 3


@dataclass(frozen=True)
class Term:
    """A word (a feature) of the document and its contribution to the margin: value x weight."""

    name: str
    value: float
    weight: float
    contribution: float


@dataclass(frozen=True)
class TreePath:
    """The path to a label in one tree; ``bias + sum of terms' contributions + other == margin``."""

    steps: tuple[PathStep, ...]
    margin: float
    bias: float
    terms: tuple[Term, ...]
    """The terms with the largest absolute contributions in the label's own classifier, largest first."""
    other: float
    """The sum of all other contributions."""
    score: float
    """The score of the label in this tree, if reached."""
    reached: bool
    """Whether the beam search reached the label."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a document gets a label, or not. Margin, bias and terms are means over the trees and add up as in one."""

    label: str
    text: str | None
    """The label's text, if the model has one."""
    score: float
    """As in `predict`: a probability if the model is calibrated."""
    predicted: bool
    """Whether the label was reached in any tree."""
    margin: float
    bias: float
    terms: tuple[Term, ...]
    other: float
    paths: tuple[TreePath, ...]
    """With scores before calibration."""
    calibrated: bool = False
    """Whether `score` is a probability."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Explanation: {short_explanation(self)}>"

    def __str__(self) -> str:
        return "\n".join(explanation_lines(self))


class Explanations(list[Explanation]):
    """The explanations of one document; `print` shows them as the command line does."""

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def explanations(model: Method, document: Any, labels: Sequence[str] | None, k: int, terms: int | None) -> Explanations:
    """What `Method.explain` returns."""
    if terms is not None and terms < 0:
        raise ConfigError(f"terms must be 0 or more, got {terms}")
    data, ids, scores = labels_to_explain(model, document, labels, k)
    trees = model._explain(data, ids)
    results = Explanations()
    for index, label in enumerate(ids.tolist()):
        paths = [paths[index] for paths in trees]
        score = scores.get(label)
        results.append(_explanation(model, paths, _score(model, paths) if score is None else score, terms))
    return results


def labels_to_explain(
    model: Method, document: Any, labels: Sequence[str] | None, k: int
) -> tuple[Documents, np.ndarray, dict[int, float]]:
    """The one document, the ids of the labels to explain (None: the best k), and the scores of the best k by id."""
    model._check_fitted()
    data = model._as_documents(document)
    if len(data) != 1:
        raise DataError(f"explain takes one document, got {len(data):,}")
    top = model.predict(document, k)
    ids = top.ids[0][top.ids[0] != NO_LABEL] if labels is None else label_ids(model, labels)
    return data, ids, dict(zip(top.ids[0].tolist(), top.scores[0].tolist(), strict=True))


def label_ids(model: Method, labels: Sequence[str]) -> np.ndarray:
    positions = model.label_names_.positions
    given = [labels] if isinstance(labels, str) else list(labels)
    for label in given:
        if label not in positions:
            raise DataError(f"the model has no label {cut(repr(label), 100)}; {cut(_nearest(model, str(label)), 300)}")
    return np.array([positions[label] for label in given], np.int64)


def _nearest(model: Method, label: str) -> str:
    """A hint: the label with that text, or the nearest among the first names (a search of millions takes minutes)."""
    if model.label_texts_ is not None and label in (meanings := model.label_texts_.positions):
        return f"the label with that text is {model.label_names_[meanings[label]]!r}"
    return did_you_mean(label, model.label_names_[:100_000])


def _score(model: Method, paths: Sequence[LabelPath]) -> float:
    """The score of a label that is not among the best: the mean over the trees."""
    raw = sum(path.given for path in paths) / len(paths)
    if model.calibration_ is None:
        return raw
    one = TopK(np.zeros((1, 1), np.int32), np.full((1, 1), raw, np.float32))
    return float(model.calibration_.apply(one).scores[0, 0])


def _explanation(model: Method, paths: Sequence[LabelPath], score: float, terms: int | None) -> Explanation:
    label = paths[0].label
    shown = tuple(_tree_path(model, path, terms) for path in paths)
    best, other = _terms(model, *mean_over_trees(paths), terms)
    bias = sum(path.bias for path in shown) / len(shown)
    margin = bias + sum(term.contribution for term in best) + other
    text = None if model.label_texts_ is None else model.label_texts_[label]
    reached = any(path.reached for path in paths)
    return Explanation(
        model.label_names_[label],
        text,
        score,
        reached,
        margin,
        bias,
        best,
        other,
        shown,
        model.calibration_ is not None,
    )


def mean_over_trees(paths: Sequence[LabelPath]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, their values, and their weights as means over the trees."""
    features = np.concatenate([path.features for path in paths])
    values = np.concatenate([path.values for path in paths])
    weights = np.concatenate([path.weights for path in paths]) / len(paths)
    distinct, first, inverse = np.unique(features, return_index=True, return_inverse=True)
    summed, shown_values = np.bincount(inverse, weights, minlength=len(distinct)), values[first]
    if (values != shown_values[inverse]).any():  # values that differ between trees: means with the same products
        shown_values = np.bincount(inverse, values, len(distinct)) / np.bincount(inverse, minlength=len(distinct))
        summed = np.bincount(inverse, weights * values, len(distinct)) / shown_values
    return distinct, shown_values, summed


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
    """The terms with the largest absolute contributions, and the sum of the others."""
    contributions = values * weights
    order = np.argsort(-np.abs(contributions), kind="stable")
    chosen = order[:count]
    names = feature_names(model, features[chosen])
    columns = zip(names, values[chosen].tolist(), weights[chosen].tolist(), contributions[chosen].tolist(), strict=True)
    return tuple(Term(*column) for column in columns), float(contributions[order[len(chosen) :]].sum())


def feature_names(model: Method, features: np.ndarray) -> list[str]:
    """The words of some features, or `feature 123` where the model does not know them."""
    return model._feature_names(features) or [f"feature {number}" for number in features.tolist()]


def _examples(model: Method, labels: np.ndarray) -> tuple[str, ...]:
    """The most frequent of some labels, by text where known."""
    frequent = labels[np.argsort(-model.label_counts_[labels], kind="stable")[:N_EXAMPLES]]
    meanings = model.label_names_ if model.label_texts_ is None else model.label_texts_
    return tuple(meanings[int(label)] for label in frequent)
