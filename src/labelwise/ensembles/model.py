"""What an ensemble has learned: its members, their labels as one list, and how their predictions are combined."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.csr import positions_in
from labelwise.ensembles.combine import Combination, side_by_side
from labelwise.ensembles.members import common_facts, facts_of_model, kinds_read
from labelwise.errors import ConfigError, DataError, LabelwiseError, ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.model.card import CORE_PACKAGES, Card, TrainingData, now
from labelwise.model.fitted import ModelLabels, Saved
from labelwise.model.folder import SavedModel
from labelwise.model.inputs import Documents, FeatureWidth, Overlap, TrainingDocuments
from labelwise.model.method import Method
from labelwise.model.predictions import LabelFilter
from labelwise.registry import can, installed_versions, method_class
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

if TYPE_CHECKING:
    from labelwise.model.explanation_text import Explanations

log = logging.getLogger("labelwise")

BLOCK = 2048
"""Documents whose candidates are combined at once."""
SEEN = "members know their labels, so the learned weights favour members that remember their training documents"
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
        columns = [columns_of(member, names) for member in members]
        counts, texts = np.zeros(len(names), np.int64), None
        for member, own in zip(reversed(members), reversed(columns), strict=True):
            ids = np.arange(len(names)) if own is None else own
            counts[ids] = np.maximum(counts[ids], member.label_counts_)
            if member.label_texts_ is not None:
                texts = list(names) if texts is None else texts
                for label, text in zip(ids.tolist(), member.label_texts_, strict=True):
                    texts[label] = text
        return cls(names, columns, None if texts is None else Strings.of(texts), counts)


class EnsembleModel:
    """Members that are combined.

    Parameters
    ----------
    members
        The models, in the order of the config.
    labels
        Their labels.
    combination
        The rule, the weights, and what else was learned.
    learned_on
        Documents that the combination was learned on, and how many of them a member was trained on.
    """

    def __init__(
        self, members: Sequence[Method], labels: MergedLabels, combination: Combination, learned_on: tuple[int, int]
    ) -> None:
        self.members, self.labels = list(members), labels
        self.combination, self.learned_on = combination, learned_on

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
        from labelwise.ensembles.explain import explained

        return explained(self, model, document, labels, k, 10 if terms == "auto" else terms)

    def contributions(self, documents: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        from labelwise.ensembles.explain import top_contributions

        return top_contributions(self, documents, labels, count)

    def names(self, columns: np.ndarray) -> list[str]:
        from labelwise.ensembles.explain import names_in_members

        return names_in_members(self, columns)

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
        able = {ability: [can(member, ability) for member in self.members] for ability in AMONG}
        return {
            ability: " and ".join(
                f"member {number} ({member.name})"
                for number, member in enumerate(self.members)
                if not able[ability][number]
            )
            for ability, among in AMONG.items()
            if not among(able[ability])
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
    ensemble = method_class("ensemble")
    fitted = EnsembleModel(members, MergedLabels.of(members), combination, (learned_on, 0))
    known = fitted.about({})
    labels = ModelLabels(known["label_names_"], known["label_texts_"], known["label_counts_"])
    return ensemble.of(fitted, SavedModel(
        ensemble(**settings).config, labels, known["input_"], known["n_documents_"], known["feature_width_"],
        fitted.tensors(), None, known["trained_on_"], known["card_"],
    ))  # fmt: skip


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


def columns_of(member: Method, names: Strings) -> np.ndarray | None:
    """The id of each of a member's labels among these names; None if they are the same."""
    own = member.label_names_
    return None if own is names or own == names else positions_in(own, names).astype(np.int32)


def common_input(members: Sequence[Method]) -> tuple[str, FeatureWidth | None]:
    """What documents have to be given as, and the width of their features, next to texts if members read both."""
    kinds = sorted({member.input_ for member in members})
    if len(kinds) > 1 and kinds != ["features", "texts"]:
        read = ", ".join(f"member {number} reads {member.input_}" for number, member in enumerate(members))
        raise ConfigError(f"no document can be given to all members: {read}; texts and features go together")
    widths = {number: member.feature_width_ for number, member in enumerate(members) if member.feature_width_}
    width = next(iter(widths.values()), None)
    for number, other in widths.items():
        if width is not None and (other.columns, other.dense or 0) != (width.columns, width.dense or 0):
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
