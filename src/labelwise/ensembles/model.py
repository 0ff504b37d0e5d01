"""What an ensemble has learned: its members, their labels as one list, and how their predictions are combined."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.data.csr import positions_in
from labelwise.ensembles.combine import MISSING, Candidates, Combination, side_by_side
from labelwise.ensembles.members import common_facts, facts_of_model, kinds_read
from labelwise.errors import ConfigError, DataError, LabelwiseError, ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.model.card import CORE_PACKAGES, Card, TrainingData, now
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
from labelwise.model.fitted import Saved
from labelwise.model.inputs import Documents, FeatureWidth, Overlap, TrainingDocuments
from labelwise.model.method import Method
from labelwise.model.predictions import LabelFilter
from labelwise.registry import can, installed_versions, method_class
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

log = logging.getLogger("labelwise")

BLOCK = 2048
"""Documents whose candidates are combined at once."""
SEEN = "members know their labels, so the learned weights favour members that remember their training documents"
MEMBER_BITS = 40
"""A feature of a member has its number in so many bits, and the member's number above them."""
AMONG = {"top_of": all, "explain": any, "shrunk": any}
"""What an ensemble can do if all, or any, of its members can."""


@dataclass(frozen=True, eq=False)
class MergedLabels:
    """The labels of all members, and the ids of each member's labels among them (None: the same)."""

    names: Strings
    columns: list[np.ndarray | None]
    texts: Strings | None
    counts: np.ndarray
    """Training documents per label, of the member that has most."""

    @classmethod
    def of(cls, members: Sequence[Method], first: Strings | None = None) -> MergedLabels:
        """Of trained members; labels of `first` come before the others."""
        names = common_labels(first, members)
        columns: list[np.ndarray | None] = []
        for own in (member.label_names_ for member in members):
            columns.append(None if own is names or own == names else positions_in(own, names).astype(np.int32))
        counts, texts = np.zeros(len(names), np.int64), None
        for member, own in zip(reversed(members), reversed(columns), strict=True):
            ids = np.arange(len(names)) if own is None else own
            counts[ids] = np.maximum(counts[ids], member.label_counts_)
            if member.label_texts_ is not None:
                texts = list(names) if texts is None else texts
                for label, text in zip(ids.tolist(), member.label_texts_, strict=True):
                    texts[label] = text
        return cls(names, columns, None if texts is None else Strings.of(texts), counts)


@dataclass(eq=False)
class EnsembleModel:
    """Members that are combined."""

    members: Sequence[Method]
    """The models, in the order of the config."""
    labels: MergedLabels
    combination: Combination
    """The rule, the weights, and what else was learned."""
    learned_on: tuple[int, int]
    """Documents that the combination was learned on, and how many of them a member was trained on."""

    @property
    def weights(self) -> np.ndarray:
        """The weight of each member."""
        return self.combination.weights

    # --- predict ---

    def tops(self, documents: Documents, count: int, chosen: LabelFilter | None = None) -> list[TopK]:
        """What each member predicts, in the label space of the ensemble."""
        pairs = zip(self.members, self.labels.columns, strict=True)
        return [member_top(member, columns, documents, count, chosen) for member, columns in pairs]

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        return self._combined(self.tops(documents, max(k, config.candidates)), k, None)

    def top_of(self, documents: Documents, k: int, config: Any, chosen: LabelFilter) -> TopK:
        return self._combined(self.tops(documents, max(k, config.candidates), chosen), k, chosen.weights)

    def _combined(self, tops: list[TopK], k: int, factors: np.ndarray | None) -> TopK:
        parts = [
            self.combination.best(side_by_side([top[begin : begin + BLOCK] for top in tops]), k, factors)
            for begin in range(0, max(len(tops[0]), 1), BLOCK)
        ]
        return TopK.concatenate(parts)

    # --- explain and shrink ---

    def explanations(
        self, model: Method, document: Any, labels: Sequence[str] | None, k: int, terms: Any
    ) -> Explanations:
        """Why one document gets its labels: what each member says, and how much that counts."""
        data, ids, _ = labels_to_explain(model, document, labels, k)
        combination, members = self.combination, self.members
        tops = self.tops(data, max(k, model.config.candidates))
        added = TopK(ids[None, :].astype(np.int32), np.zeros((1, len(ids)), np.float32))
        candidates = side_by_side([*tops, added])  # so that every label to explain is a candidate
        candidates = Candidates(candidates.labels, candidates.scores[..., :-1], candidates.ranks[..., :-1])
        parts = combination.parts(candidates)
        found = combination.scores(candidates, parts)[0].astype(np.float32)
        biases = combination.bias_of(candidates.labels)
        weights = np.broadcast_to(combination.weights_of(candidates.labels), parts.shape)
        shown = 10 if terms == "auto" else terms
        own = [self._own_explanations(number, document, ids, shown) for number in range(len(members))]
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
            score = calibrated_score(model, float(found[column]))
            ranked, bias = any(part.rank for part in said), float(biases[0, column])
            results.append(EnsembleExplanation(*named(model, label), score, ranked, bias, tuple(said), calibrated))
        return results

    def _own_explanations(self, number: int, document: Any, ids: np.ndarray, terms: int | None) -> dict[int, Any]:
        """A member's explanations of the labels that it has, by their index."""
        member, columns = self.members[number], self.labels.columns[number]
        if terms == 0 or not can(member, "explain"):
            return {}
        have = [index for index, label in enumerate(ids.tolist()) if columns is None or label in columns]
        names = [self.labels.names[int(ids[index])] for index in have]
        found: list[Explanation] = list(member.explain(document, names, terms=terms)) if names else []
        return dict(zip(have, found, strict=True))

    def contributions(self, documents: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Features with the largest contributions over all members that explain themselves, by name and weight."""
        found = [
            self._member_contributions(number, documents, labels, count)
            for number, member in enumerate(self.members)
            if can(member, "explain")
        ]
        features = np.concatenate([one for one, _ in found], axis=2)
        amounts = np.concatenate([one for _, one in found], axis=2)
        distinct, inverse = np.unique(features, return_inverse=True)
        names = self.names(distinct[distinct >= 0])
        first: dict[str, int] = {}
        same = [
            int(number) if number < 0 else first.setdefault(names.pop(0), int(number)) for number in distinct.tolist()
        ]
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

    def _member_contributions(
        self, number: int, documents: Documents, labels: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """A member's features with the largest contributions, numbered in the ensemble, and the weighted amounts."""
        member, columns = self.members[number], self.labels.columns[number]
        own = labels
        if columns is not None:
            inside = np.full(len(self.labels.names) + 1, NO_LABEL, np.int64)
            inside[columns] = np.arange(len(columns))
            own = inside[labels]  # the last entry stands for NO_LABEL
        order = np.argsort(own == NO_LABEL, axis=1, kind="stable")  # gaps go to the end of their row
        found, amounts = contributions(
            member, documents_for(member, documents), np.take_along_axis(own, order, 1).astype(labels.dtype), count
        )
        features, weighted = np.full(found.shape, -1, np.int64), np.zeros(found.shape)
        moved = np.where(found < 0, -1, found.astype(np.int64) + (number << MEMBER_BITS))
        np.put_along_axis(features, order[..., None], moved, 1)
        np.put_along_axis(weighted, order[..., None], amounts, 1)
        weights = self.combination.weights_of(labels)[..., number]
        return features, weighted * np.broadcast_to(weights, labels.shape)[..., None]

    def names(self, columns: np.ndarray) -> list[str]:
        """The names of features that are numbered within the ensemble."""
        names: list[str] = [""] * len(columns)
        for number, member in enumerate(self.members):
            mine = np.flatnonzero(columns >> MEMBER_BITS == number)
            found = feature_names(member, columns[mine] & ((1 << MEMBER_BITS) - 1)) if len(mine) else []
            for place, name in zip(mine.tolist(), found, strict=True):
                names[place] = name
        return names

    def shrunk(self, precision: str | None, threshold: float | None, config: Any) -> tuple[EnsembleModel, dict]:
        members, refusals = [], []
        for number, member in enumerate(self.members):
            try:
                members.append(member.shrink(precision=precision, threshold=threshold))
            except LabelwiseError as error:
                members.append(member)
                refusals.append(f"member {number}: {error}")
        if len(refusals) == len(members):
            raise ConfigError("; ".join(refusals))
        for refusal in refusals:
            log.warning("kept as it is: %s", refusal)
        return EnsembleModel(members, self.labels, self.combination, self.learned_on), {}

    # --- what is known of all members together ---

    @property
    def lacks(self) -> dict[str, str]:
        """What it cannot do because of its members, with those that are to blame."""
        able = [{ability for ability in AMONG if can(member, ability)} for member in self.members]
        named = [f"member {number} ({member.name})" for number, member in enumerate(self.members)]
        return {
            ability: " and ".join(name for name, abilities in zip(named, able, strict=True) if ability not in abilities)
            for ability in self.saved_lacks(None, (), able)
        }

    @staticmethod
    def saved_lacks(config: Any, arrays: Collection[str], members: Sequence[Collection[str]]) -> set[str]:
        return {ability for ability, among in AMONG.items() if not among(ability in member for member in members)}

    @property
    def remarks(self) -> list[str]:
        """That weights were learned on documents that members were trained on."""
        documents, seen = self.learned_on
        return [Overlap(documents, seen).remark(SEEN)] if seen else []

    def facts(self) -> dict[str, Any]:
        return common_facts([facts_of_model(member) for member in self.members])

    def about(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes of the model, from those of the documents that members were trained on, if any were."""
        counts = self.labels.counts.copy()
        texts, trained_on = known.get("label_texts_"), known.get("trained_on_")
        own = known.get("label_counts_", counts[:0])
        counts[: len(own)] = np.maximum(counts[: len(own)], own)
        if texts is None or len(texts) < len(counts):
            texts = self.labels.texts
        kind, width = common_input(self.members)
        merged = {
            "label_names_": self.labels.names, "label_counts_": counts, "label_texts_": texts,
            "input_": kind, "feature_width_": width,
            "n_documents_": max(known.get("n_documents_", 0), *(member.n_documents_ for member in self.members)),
            "trained_on_": merged_hashes(trained_on, self.members),
        }  # fmt: skip
        return merged if known else {**merged, "card_": self._card(merged["n_documents_"])}

    def _card(self, n_documents: int) -> Card:
        """The card of an ensemble of models that were trained before: their common training data."""
        data = [member.card_.data for member in self.members]
        same = data[0] if all(one == data[0] for one in data) else TrainingData()
        about = same.model_copy(update={"documents": n_documents, "labels": len(self.labels.names)})
        reading = [member.card_.reading for member in self.members]
        first = reading[0] if all(one == reading[0] for one in reading) else None
        packages = installed_versions([*CORE_PACKAGES, *self.facts()["needs"]])
        return Card(created=now(), data=about, reading=first, packages=packages)

    # --- files ---

    def tensors(self) -> dict[str, np.ndarray]:
        return {**self.combination.to_tensors(), "learned_on": np.array(self.learned_on, np.int64)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Saved) -> EnsembleModel:
        path, members = about.path, about.members
        counts = get_tensor(tensors, "learned_on", path)
        if counts.shape != (2,) or counts.dtype != np.int64 or not 0 <= counts[1] <= counts[0]:
            raise ModelFormatError(f"{path}: the numbers of held-out documents are damaged")
        combination = Combination.from_tensors(about.config.combine, tensors, about.n_labels, path)
        if len(members) != len(combination.weights) or len(members) != len(about.config.members):
            raise ModelFormatError(f"{path}: the number of members does not match their weights and parameters")
        try:
            labels = MergedLabels.of(members, about.labels)
            fits = labels.names == about.labels and common_input(members) == (about.input, about.width)
        except LabelwiseError as error:
            raise ModelFormatError(f"{path}: {error}") from None
        if not fits:
            raise ModelFormatError(f"{path}: the members have other labels, or read other documents, than the ensemble")
        return cls(members, labels, combination, (int(counts[0]), int(counts[1])))


# --- explanations ---

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


def ensemble_of(
    members: Sequence[Method], combination: Combination, learned_on: int, settings: Mapping[str, Any]
) -> Method:
    """The fitted ensemble that a training with these settings would have given.

    Parameters
    ----------
    members
        Trained models with the same labels.
    combination
        How they are combined.
    learned_on
        Held-out documents that the combination was learned on.
    settings
        Parameters of the ensemble, whose `members` are methods with parameters: a refit trains them again.
    """
    ensemble = method_class("ensemble")(**settings)
    fitted = EnsembleModel(members, MergedLabels.of(members), combination, (learned_on, 0))
    ensemble._become(fitted, fitted.about({}))
    return ensemble


# --- labels and documents of members ---


def common_labels(first: Strings | None, members: Sequence[Method]) -> Strings:
    """The labels of all members by name, those of `first`, or of the first member, before the others."""
    names = members[0].label_names_ if first is None else first
    for number, member in enumerate(members):
        own = member.label_names_
        if own is names or own == names:
            continue
        if own.column_numbers or names.column_numbers:
            raise DataError(
                f"member {number} has {len(own):,} labels, others {len(names):,}, and not all of them have names: "
                "labels without names cannot be matched"
            )
        new = np.flatnonzero(positions_in(own, names) < 0)
        names = names + [own[int(label)] for label in new] if len(new) else names
    return names


def common_input(members: Sequence[Method]) -> tuple[str, FeatureWidth | None]:
    """What documents have to be given as, and the width of their features, next to texts if members read both."""
    kinds = sorted({member.input_ for member in members})
    if len(kinds) > 1 and kinds != ["features", "texts"]:
        read = ", ".join(f"member {number} reads {member.input_}" for number, member in enumerate(members))
        raise ConfigError(f"no document can be given to all members: {read}; texts and features go together")
    widths = {number: member.feature_width_ for number, member in enumerate(members) if member.feature_width_}
    width = next(iter(widths.values()), None)
    for number, other in widths.items():
        if width is not None and other != width:
            raise ConfigError(f"member {number} reads {other}, another member {width}; all need the same features")
    return ("texts" if "texts" in kinds else kinds[0]), width


def merged_hashes(own: TrainingDocuments | None, members: Sequence[Method]) -> TrainingDocuments | None:
    """The training documents of all members together; None if none are known."""
    known = [one for one in (own, *(member.trained_on_ for member in members)) if one is not None]
    if not known:
        return None
    hashes = np.unique(np.concatenate([one.hashes for one in known]))
    return TrainingDocuments(hashes, max(one.labels_per_document for one in known))


def member_top(
    member: Method, columns: np.ndarray | None, data: Documents, count: int, chosen: LabelFilter | None
) -> TopK:
    """A member's best labels with plain scores, in the label space of the ensemble; of each document what it reads."""
    own = documents_for(member, data)
    wanted = None if chosen is None else _filter_for(member, columns, chosen)
    if wanted is not None and wanted.allowed is not None and not wanted.allowed.any():
        return TopK(np.full((len(data), 1), NO_LABEL, np.int32), np.full((len(data), 1), -np.inf, np.float32))
    top = member._ranked(own, min(count, len(member.label_names_)), wanted)
    scores, ids = top.scores, top.ids
    if wanted is not None and wanted.weights is not None:
        scores = scores / np.where(ids == NO_LABEL, 1.0, wanted.weights[np.maximum(ids, 0)]).astype(np.float32)
    if columns is not None:
        ids = np.where(ids == NO_LABEL, NO_LABEL, columns[np.maximum(ids, 0)])
    return TopK(ids, scores) if wanted is None else sorted_by_score(ids, scores)


def documents_for(member: Method, data: Documents) -> Documents:
    """Of some documents what a member reads."""
    return Documents(**{kind: getattr(data, kind) for kind in kinds_read(member)})


def _filter_for(member: Method, columns: np.ndarray | None, chosen: LabelFilter) -> LabelFilter:
    """The user's choice of labels as vectors over a member's labels."""
    if columns is None:
        return chosen
    allowed = None if chosen.allowed is None else chosen.allowed[columns]
    weights = None if chosen.weights is None else chosen.weights[columns]
    return LabelFilter(allowed, weights, len(columns))
