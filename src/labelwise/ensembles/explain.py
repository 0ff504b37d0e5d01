"""Why an ensemble predicts a label: what each member says, how much that counts, and the members' own explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.ensembles.combine import MISSING, Candidates, side_by_side
from labelwise.ensembles.model import EnsembleModel, documents_for
from labelwise.model.explanation import (
    Explanation,
    Term,
    calibrated_score,
    contributions,
    feature_names,
    labels_to_explain,
    named,
)
from labelwise.model.explanation_text import Explanations, causes, named_score, plain_score, shortened, title
from labelwise.model.inputs import Documents
from labelwise.model.method import Method
from labelwise.registry import can
from labelwise.topk import NO_LABEL, TopK

BAR = 24


@dataclass(frozen=True)
class MemberPart:
    """What one member says about a label, and how much that counts."""

    member: str
    """Its number and method."""
    weight: float
    score: float | None
    """The member's own score, before any calibration; None if it does not rank the label."""
    rank: int | None
    """From 1; None if it does not rank the label."""
    contribution: float
    """Its part of the score; of its log-odds with `combine: logistic`. A label that is not ranked has one too."""
    explanation: Any
    """The member's own explanation; None if it has none."""
    calibrated: bool = False
    """Whether the member itself predicts probabilities."""


@dataclass(frozen=True, repr=False)
class EnsembleExplanation:
    """Why a document gets a label, or not."""

    label: str
    text: str | None
    score: float
    """As in `predict`: a probability if the ensemble is calibrated."""
    predicted: bool
    """Whether any member ranks the label."""
    bias: float
    """Of `combine: logistic`, where contributions and bias add up to the log-odds of the score before calibration."""
    members: tuple[MemberPart, ...]
    calibrated: bool = False
    """Whether `score` is a probability."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The words of the member that counts most among those that explain themselves."""
        able = [part for part in self.members if part.explanation is not None]
        return max(able, key=lambda part: part.contribution).explanation.terms if able else ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Explanation: {title(self)}   {named_score(self)}   {causes(self)}>"

    def __str__(self) -> str:
        unranked = "" if self.predicted else "   (not ranked by any member)"
        lines = [f"{title(self)}   {named_score(self)}{unranked}"]
        largest = max((abs(part.contribution) for part in self.members), default=0) or 1.0
        width = max(len(part.member) for part in self.members)
        for part in self.members:
            rank = "not ranked"
            if part.rank is not None and part.score is not None:
                rank = f"rank {part.rank}, {plain_score(part.score, part.calibrated)}"
            bar = ("█" if part.contribution > 0 else "░") * round(BAR * abs(part.contribution) / largest)
            own = f"    {part.member:<{width}}  {part.contribution:+.4f}  {rank}, weight {part.weight:.3f}  {bar}"
            words = "" if part.explanation is None else causes(part.explanation)
            lines.append(own.rstrip())
            lines += [f"    {'':<{width}}  {shortened(words, 100)}"] if words else []
        return "\n".join(lines)


def explained(
    ensemble: EnsembleModel, model: Method, document: Any, labels: Sequence[str] | None, k: int, terms: int | None
) -> Explanations:
    """Why one document gets its labels: what each member says, and how much that counts."""
    data, ids, _ = labels_to_explain(model, document, labels, k)
    combination, members = ensemble.combination, ensemble.members
    tops = ensemble.tops(data, max(k, model.config.candidates))
    added = TopK(ids[None, :].astype(np.int32), np.zeros((1, len(ids)), np.float32))
    candidates = side_by_side([*tops, added])  # so that every label to explain is a candidate
    candidates = Candidates(candidates.labels, candidates.scores[..., :-1], candidates.ranks[..., :-1])
    parts = combination.parts(candidates)
    found, biases = combination.scores(candidates, parts)[0].astype(np.float32), combination.bias_of(candidates.labels)
    weights = np.broadcast_to(combination.weights_of(candidates.labels), parts.shape)
    own = [_own(ensemble, number, document, ids, terms) for number in range(len(members))]
    results = Explanations()
    for index, label in enumerate(ids.tolist()):
        column = int(np.flatnonzero(candidates.labels[0] == label)[0])
        said = []
        for number, member in enumerate(members):
            place = 0, column, number
            rank = int(candidates.ranks[place])
            ranked = rank != MISSING
            part = MemberPart(
                f"{number} {member.name}",
                float(weights[place]),
                float(candidates.scores[place]) if ranked else None,
                rank + 1 if ranked else None,
                float(parts[place]),
                own[number].get(index),
                member.calibration_ is not None,
            )
            said.append(part)
        calibrated = model.calibration_ is not None
        score = calibrated_score(model, found[column]) if calibrated else float(found[column])
        ranked, bias = any(part.rank for part in said), float(biases[0, column])
        results.append(EnsembleExplanation(*named(model, label), score, ranked, bias, tuple(said), calibrated))
    return results


def _own(model: EnsembleModel, number: int, document: Any, ids: np.ndarray, terms: int | None) -> dict[int, Any]:
    """A member's explanations of the labels that it has, by their index."""
    member, columns = model.members[number], model.labels.columns[number]
    if terms == 0 or not can(member, "explain"):
        return {}
    have = [index for index, label in enumerate(ids.tolist()) if columns is None or label in columns]
    names = [model.labels.names[int(ids[index])] for index in have]
    found: list[Explanation] = list(member.explain(document, names, terms=terms)) if names else []
    return dict(zip(have, found, strict=True))


MEMBER_BITS = 40
"""A feature of a member has its number in so many bits, and the member's number above them."""


def top_contributions(
    model: EnsembleModel, data: Documents, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Features with the largest contributions over all members that explain themselves, by name and weight."""
    found = [
        _contributions(model, number, data, labels, count)
        for number, member in enumerate(model.members)
        if can(member, "explain")
    ]
    features = np.concatenate([one for one, _ in found], axis=2)
    amounts = np.concatenate([one for _, one in found], axis=2)
    distinct, inverse = np.unique(features, return_inverse=True)
    names = names_in_members(model, distinct[distinct >= 0])
    first: dict[str, int] = {}
    same = [int(number) if number < 0 else first.setdefault(names.pop(0), int(number)) for number in distinct.tolist()]
    features = np.array(same, np.int64)[inverse].reshape(features.shape)
    best, sums = np.full((*labels.shape, count), -1, np.int64), np.zeros((*labels.shape, count))
    for place in np.ndindex(*labels.shape):
        numbers, index = np.unique(features[place], return_inverse=True)
        total = np.bincount(index, amounts[place], len(numbers))
        total[numbers < 0] = 0.0
        order = np.argsort(-total, kind="stable")[:count]
        order = order[total[order] > 0]
        best[place][: len(order)], sums[place][: len(order)] = numbers[order], total[order]
    return best, sums


def _contributions(
    model: EnsembleModel, number: int, data: Documents, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """A member's features with the largest contributions, numbered within the ensemble, and the weighted amounts."""
    member, columns = model.members[number], model.labels.columns[number]
    own = labels
    if columns is not None:
        inside = np.full(len(model.labels.names) + 1, NO_LABEL, np.int64)
        inside[columns] = np.arange(len(columns))
        own = inside[labels]  # the last entry stands for NO_LABEL
    order = np.argsort(own == NO_LABEL, axis=1, kind="stable")  # gaps go to the end of their row
    found, amounts = contributions(
        member, documents_for(member, data), np.take_along_axis(own, order, 1).astype(labels.dtype), count
    )
    features, weighted = np.full(found.shape, -1, np.int64), np.zeros(found.shape)
    moved = np.where(found < 0, -1, found.astype(np.int64) + (number << MEMBER_BITS))
    np.put_along_axis(features, order[..., None], moved, 1)
    np.put_along_axis(weighted, order[..., None], amounts, 1)
    weights = model.combination.weights_of(labels)[..., number]
    return features, weighted * np.broadcast_to(weights, labels.shape)[..., None]


def names_in_members(model: EnsembleModel, features: np.ndarray) -> list[str]:
    """The names of features that are numbered within the ensemble."""
    names: list[str] = [""] * len(features)
    for number, member in enumerate(model.members):
        mine = np.flatnonzero(features >> MEMBER_BITS == number)
        found = feature_names(member, features[mine] & ((1 << MEMBER_BITS) - 1)) if len(mine) else []
        for place, name in zip(mine.tolist(), found, strict=True):
            names[place] = name
    return names
